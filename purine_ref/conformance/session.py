"""A graph under a scheme, fed and read by the serial graph's names, whatever the scheme made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from purine_ref.devices import Device
from purine_ref.executors import Executor
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array, Box
from purine_ref.parallel import Composed, Piece
from purine_ref.tensor import Location


class Session:
    """An executor of `serial` or of a graph composed from it.

    `faults` tells what went wrong beside the values, such as races, and `close` ends what the executor ran on.
    `devices` are those that compute, where they add in another order than the CPU does: a comparison within bounds has
    to know.
    """

    def __init__(
        self,
        executor: Executor,
        serial: Graph,
        *,
        faults: Callable[[], Sequence[object]] = tuple,
        close: Callable[[], None] | None = None,
        devices: Callable[[Location], Device] | None = None,
    ) -> None:
        self.executor = executor
        self.devices = devices
        self.graph = executor.graph
        self.serial = serial
        self._faults = faults
        self._close = close
        self._pieces: Mapping[str, Sequence[Piece]] = (
            self.graph.pieces if isinstance(self.graph, Composed) else {b.name: [_whole(b)] for b in self.graph.blobs}
        )

    def feed(self, arrays: Mapping[str, Array]) -> None:
        """Feed the serial graph's source blobs: each piece gets its part. Raises as `Executor.feed`."""
        parts: dict[str, Array] = {}
        for name, array in arrays.items():
            self.serial[name]  # an unknown name is refused with the serial graph's names
            for piece in self._pieces[name]:
                parts[piece.blob.name] = array[_slices(piece.box)]
        self.executor.feed(parts)

    def run(self) -> None:
        """Run once. Raises as `Executor.run`."""
        self.executor.run()

    def pieces_of(self, name: str) -> Sequence[Piece]:
        """Every piece of a serial blob."""
        return self._pieces[name]

    def pieces(self, name: str) -> Iterator[tuple[Piece, Array]]:
        """Every piece of a serial blob with its values, but those that were overwritten in place."""
        lost = self.executor.plan.lost
        for piece in self._pieces[name]:
            if piece.blob not in lost:
                yield piece, self.executor.fetch(piece.blob.name)

    def faults(self) -> list[str]:
        """What went wrong so far beside the values."""
        return [str(fault) for fault in self._faults()]

    def close(self) -> None:
        """Let go of everything."""
        self.executor.close()
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def part_of(array: Array, box: Box) -> Array:
    """The box out of a serial blob's array."""
    return array[_slices(box)]


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def _whole(blob: Blob) -> Piece:
    return Piece(tuple((0, extent) for extent in blob.shape), blob.location, blob)
