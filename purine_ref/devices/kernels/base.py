"""What every kernel set of the CPU has: numpy, the chosen twin of every loop, shared work, and scratch memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from purine_ref import _fast
from purine_ref.devices.helpers import Helpers
from purine_ref.devices.scratch import Scratch
from purine_ref.operation import Array, Pair, RunKey

_ALONE = Helpers(1)
_SCRATCH = Scratch()


def _refuse(suspect: Array, values: Array, complain: Callable[[Array], None]) -> bool:
    """Call `complain(values)`, which may raise, where any of `suspect` is True; returns whether any is."""
    if suspect.any():
        complain(values)
        return True
    return False


def _copy(source: Array, target: Array) -> None:
    """target = source."""
    target[...] = source


def _gather(
    kernels: LoopKernels,
    dy: Array,
    index: Array,
    shape: tuple[int, ...],
    kernel: Pair | None,
    stride: Pair,
    pads: tuple[Pair, Pair],
    out: Array | None = None,
) -> Array:
    """As `max_pool_scatter`: a plane is added up window by window, so it does not matter how they lie."""
    return kernels.max_pool_scatter(dy, index, shape, out=out)


class LoopKernels:
    """The vocabulary that all sets share. `channels_last` says how 4-D arrays are to lie in memory.

    `key` is that of the run; `helpers` share its work, and `scratch` is each thread's own memory.
    """

    name: ClassVar[str]
    channels_last: ClassVar[bool]

    xp: Any = np
    whole: Any = False
    number: Any = float
    im2col: Any = staticmethod(_fast.loops.im2col)
    col2im: Any = staticmethod(_fast.loops.col2im)
    unfold: Any = staticmethod(_fast.loops.unfold)
    fold: Any = staticmethod(_fast.loops.fold)
    max_pool: Any = staticmethod(_fast.loops.max_pool)
    max_pool_scatter: Any = staticmethod(_fast.loops.max_pool_scatter)
    max_pool_gather: Any = _gather
    average_pool: Any = staticmethod(_fast.loops.average_pool)
    average_pool_scatter: Any = staticmethod(_fast.loops.average_pool_scatter)
    window_sum: Any = staticmethod(_fast.loops.window_sum)
    lrn: Any = staticmethod(_fast.loops.lrn)
    lrn_gradient: Any = staticmethod(_fast.loops.lrn_gradient)
    add_bias: Any = staticmethod(_fast.loops.add_bias)
    bias_relu: Any = staticmethod(_fast.loops.bias_relu)
    relu_bias_gradient: Any = staticmethod(_fast.loops.relu_bias_gradient)
    bias_gradient: Any = staticmethod(_fast.loops.bias_gradient)
    relu: Any = staticmethod(_fast.loops.relu)
    relu_gradient: Any = staticmethod(_fast.loops.relu_gradient)
    momentum_update: Any = staticmethod(_fast.loops.momentum_update)
    torch_update: Any = staticmethod(_fast.loops.torch_update)
    adagrad_update: Any = staticmethod(_fast.loops.adagrad_update)
    philox: Any = staticmethod(_fast.loops.philox)
    refuse: Any = staticmethod(_refuse)
    copy: Any = staticmethod(_copy)
    count_hits: Any = staticmethod(_fast.loops.count_hits)  # these four are not in every device's vocabulary
    cross_entropy: Any = staticmethod(_fast.loops.cross_entropy)
    cross_entropy_gradient: Any = staticmethod(_fast.loops.cross_entropy_gradient)
    flatten: Any = staticmethod(_fast.loops.flatten)

    convolution: Any  # these are each set's own
    convolution_data: Any
    convolution_weight: Any
    convolution_data_terms: Any
    convolution_weight_terms: Any

    @classmethod
    def require(cls) -> None:
        """Find what the set needs. Raises GraphError, saying what to install, where it cannot be used."""

    @classmethod
    def describe(cls) -> str:
        """What computes, beyond numpy and the loops; empty for nothing. Raises GraphError as `require` does."""
        return ""

    def __init__(self, key: RunKey, helpers: Helpers = _ALONE, scratch: Scratch = _SCRATCH) -> None:
        self.key = key
        self.transport: Any = None
        self.scratch: Callable[[str, tuple[int, ...], Any], Any] = scratch
        self.share: Callable[[int, Callable[[int], object]], None] = helpers.share
