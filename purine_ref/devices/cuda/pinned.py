"""Page-locked memory of the CPU, which a GPU reads and writes while the host goes on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from purine_ref.devices.cpu import CpuDevice
from purine_ref.operation import Array
from purine_ref.tensor import Tensor


def pinned_array(cupy: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """A C-ordered array of zeros in page-locked memory, which CuPy keeps for the next one when it is let go."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = cupy.cuda.alloc_pinned_memory(max(size, 1))
    array = np.frombuffer(memory, np.uint8, size).view(kind).reshape(shape)
    array[...] = 0
    return array


def is_pinned(cupy: Any, array: Array) -> bool:
    """Whether an array of numpy lies in such memory."""
    memory: Any = array
    while memory is not None and not isinstance(memory, cupy.cuda.PinnedMemoryPointer):
        memory = memory.obj if isinstance(memory, memoryview) else getattr(memory, "base", None)
    return memory is not None


class PinnedCpu(CpuDevice):
    """The CPU of a machine with GPUs: its blobs lie in page-locked memory."""

    def __init__(self, machine: Any, kernels: str, threads: int) -> None:
        super().__init__(kernels, threads)
        self.machine: Any = machine

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed array for `tensor`, in the order of `arrange`."""
        flat = pinned_array(self.machine.cupy, (tensor.size,), tensor.dtype)
        return self.arrange(flat, tensor, row_major=row_major)

    def submit(self, work: Any) -> Any:
        """Wait for what the work needs, and do it. Raises UpstreamFailed when that had failed."""
        return self.machine.submit(work)
