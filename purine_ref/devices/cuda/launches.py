"""Running kernels on arrays: what every family of loops does around a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from purine_ref._fast.geometry import require_out
from purine_ref.devices.cuda.arguments import axes, by_pixels, image, line, strides
from purine_ref.operation import Array


class Launch(Protocol):
    """Runs a kernel of a family, compiled for `dtype`, over so many items.

    Arguments are in the kernel's order: arrays, which it gets as pointers to their first elements, and by value
    structures, as arrays of one element with named fields, and numpy numbers.
    """

    def __call__(self, family: str, kernel: str, dtype: Any, items: int, arguments: Sequence[Any]) -> None:
        """Run it, or put it into the current stream."""


class Launcher:
    """The base of the loops. `xp` is the module of their arrays, numpy or CuPy; `launch` runs a kernel."""

    def __init__(self, xp: Any, launch: Launch) -> None:
        self._xp = xp
        self._launch = launch

    def _run(self, family: str, kernel: str, dtype: Any, items: int, *arguments: Any) -> None:
        """Launch a kernel, unless it has nothing to do."""
        if items:
            given = [np.int64(one) if isinstance(one, int) else one for one in arguments]
            self._launch(family, kernel, np.dtype(dtype), items, given)

    def _over(
        self,
        family: str,
        kernel: str,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *more: Any,
        flat: bool = False,
    ) -> None:
        """Launch a kernel over the elements of arrays of one shape, (N, C, ...), of which the outputs are written.

        Its arguments are each array with its strides, the shape, `more`, and the order in which to count. `flat` says
        that axes do not matter, so that arrays in C order may be counted as one row.
        """
        rooms = [self._room(out, f"room {place}") for place, out in enumerate(outputs)]
        arrays = [*inputs, *rooms]
        alike = flat and all(array.flags.c_contiguous for array in arrays)
        images = [line(array) if alike else image(array) for array in arrays]
        last = images[-1]
        pairs = [part for one in images for part in (one, strides(one))]
        self._run(family, kernel, last.dtype, last.size, *pairs, axes(last.shape), *more, by_pixels(last))
        for out, room in zip(outputs, rooms, strict=True):
            self._settle(out, room)

    def _temporary(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any content, for use within one call; `slot` tells those of a call apart."""
        return self._xp.empty(shape, dtype)

    def _target(self, out: Array | None, shape: Sequence[int], dtype: Any, name: str = "out") -> Array:
        """`out`, or a new array in C order. Raises ValueError."""
        if out is None:
            return self._xp.empty(tuple(shape), dtype)
        require_out(out, name, tuple(shape), dtype)
        return out

    def _room(self, out: Array, slot: str = "room") -> Array:
        """Where a kernel is to write `out`: there, or in C order where it has more axes than a kernel knows."""
        return out if out.ndim <= 4 or out.flags.c_contiguous else self._temporary(slot, out.shape, out.dtype)

    @staticmethod
    def _settle(out: Array, room: Array) -> Array:
        """`out`, with what was written elsewhere."""
        if room is not out:
            out[...] = room
        return out
