"""The loops of `Kernels`, by CUDA kernels: names, signatures, checks and bits of the plain twins.

`_fast/loops.py` states what holds for all loops. Arrays are those of any module with numpy's interface, and nothing
here computes but by `launch`, so the same code runs on a GPU and, in tests, on the kernels built for the CPU. Two
things differ from the twins. Powers other than 0.75 in the normalisation are a mathematical library's, not numpy's.
And `max_pool_scatter` leaves out an index that points out of its plane, where the twins raise ValueError: on a GPU,
looking at values would mean waiting for them.
"""

from __future__ import annotations

from purine_ref.devices.cuda.value_loops import ChannelLoops, DrawLoops, ElementLoops, NormalizationLoops
from purine_ref.devices.cuda.window_loops import PatchLoops, PoolLoops

__all__ = ["CudaLoops"]


class CudaLoops(PatchLoops, PoolLoops, NormalizationLoops, ChannelLoops, ElementLoops, DrawLoops):
    """All of them. `xp` is the module of their arrays, numpy or CuPy; `launch` runs a kernel."""
