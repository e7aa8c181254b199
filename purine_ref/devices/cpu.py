"""The CPU device: numpy arrays, and one of the kernel sets that compute on them.

The kernel set also says how arrays lie in memory, which no operation can see but by its speed. BLAS is held to one
thread for the process, once, when the first executor asks for a CPU (`limit_blas`): the bits of a sum may depend on how
many threads share it, and N workers times M BLAS threads oversubscribe the cores.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import threadpoolctl

from purine_ref.devices.helpers import Helpers, quiet
from purine_ref.devices.kernels import KERNEL_SETS, LoopKernels, NumpyKernels
from purine_ref.devices.kernels.rows import channels_last
from purine_ref.devices.scratch import Scratch
from purine_ref.devices.streams import Machine
from purine_ref.devices.work import Event, UpstreamFailed, Work
from purine_ref.errors import GraphError
from purine_ref.operation import Array, Operation, RunKey
from purine_ref.tensor import Location, Tensor

__all__ = ["CpuDevice", "CpuKernels", "blas_threads", "cpu_devices", "limit_blas", "quiet"]

CpuKernels = NumpyKernels
"""The default kernel set."""


class CpuDevice:
    """The memory and kernels of one process's CPU.

    `kernels` names a kernel set, and at most `threads` threads compute at a time: those of the executor, and helpers
    that share the work of one operator while no other needs their core. Raises GraphError for a set that is not there,
    or that cannot be used here, ValueError for fewer than one thread.
    """

    name = "cpu"
    asynchronous = False
    machine: Machine | None = None

    def __init__(self, kernels: str = NumpyKernels.name, threads: int = 1) -> None:
        if kernels not in KERNEL_SETS:
            raise GraphError(f"no kernel set {kernels!r}; there are {', '.join(KERNEL_SETS)}")
        if threads < 1:
            raise ValueError(f"a CPU needs 1 thread or more, got {threads}")
        self.threads = threads
        self._set = KERNEL_SETS[kernels]
        self._set.require()
        self._helpers = Helpers(threads)
        self._scratch = Scratch()
        weakref.finalize(self, self._helpers.close)

    @property
    def kernel_set(self) -> str:
        """The name of the kernel set."""
        return self._set.name

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed numpy array for `tensor`, which blob `name` is to have, in the order of `arrange`."""
        if row_major or not self.reorders(tensor):
            return np.zeros(tensor.shape, tensor.dtype)  # one object: a view of a flat array would be two
        return self.arrange(np.zeros(tensor.size, tensor.dtype), tensor)

    def arrange(self, flat: Array, tensor: Tensor, *, row_major: bool = False) -> Array:
        """The flat array in the shape of `tensor`: in this device's memory order, or in C order where `row_major`."""
        if row_major or not self.reorders(tensor):
            return flat.reshape(tensor.shape)
        return channels_last(flat, tensor.shape)

    def reorders(self, tensor: Tensor) -> bool:
        """Whether this device's memory order for `tensor` is another than C order."""
        shape = tensor.shape
        return self._set.channels_last and len(shape) == 4 and shape[1] != 1 and shape[2] * shape[3] != 1

    @staticmethod
    def write(array: Array, values: Array) -> None:
        """Fill an array of this device."""
        array[...] = values

    @staticmethod
    def read(array: Array) -> Array:
        """A copy of an array of this device."""
        return array.copy()

    def initialise(self, array: Array, operation: Operation, seed: int) -> None:
        """Fill an array with what an operation without inputs gives in iteration 0."""
        operation.compute(self.kernels(RunKey(seed)), (), (array,))

    def kernels(self, key: RunKey) -> LoopKernels:
        """The vocabulary for one run."""
        return self._set(key, self._helpers, self._scratch)

    def missing(self, loops: frozenset[str]) -> tuple[str, ...]:
        """Those of `loops` that the CPU has no kernel for, sorted."""
        return tuple(sorted(name for name in loops if not hasattr(self._set, name)))

    def submit(self, work: Work) -> Event | None:
        """Wait for what the work needs, and do it. Raises UpstreamFailed when that had failed."""
        if not all([before.wait() for before in work.after]):
            raise UpstreamFailed(work.name)
        work.compute()
        return None

    def synchronise(self) -> Sequence[BaseException]:
        """Nothing to wait for: all work is done when it is submitted."""
        return ()


def cpu_devices(kernels: str = NumpyKernels.name, threads: int = 1) -> Callable[[Location], CpuDevice]:
    """The `devices` of an executor: one CPU, whatever the rank, with this kernel set and so many threads.

    Raises GraphError and ValueError as `CpuDevice` does, and when it is asked for another place than a CPU.
    """
    device = CpuDevice(kernels, threads)

    def find(location: Location) -> CpuDevice:
        """The CPU."""
        return require_cpu(device, location)

    return find


def require_cpu(device: CpuDevice, location: Location) -> CpuDevice:
    """`device`, for a location on a CPU. Raises GraphError for another."""
    if location.is_cpu:
        return device
    raise GraphError(f"no device at {location}: only CPUs (device below 0) are available here; place it on a CPU")


_limit_lock = threading.Lock()
_limiter: threadpoolctl.threadpool_limits | None = None  # guarded by _limit_lock; kept, so that the limit stays


def limit_blas() -> None:
    """Hold BLAS to one thread in this process, from the first call on; later calls do nothing."""
    global _limiter
    with _limit_lock:
        if _limiter is None:
            _limiter = threadpoolctl.threadpool_limits(limits=1, user_api="blas")


def blas_threads() -> dict[str, int]:
    """The threads of each BLAS library that numpy may use, by its name and version; empty when none is recognised.

    Where numpy brings its own, others in the process, such as another framework's, are of no account.
    """
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]]
    return {f"{pool['internal_api']} {pool['version']}": int(pool["num_threads"]) for pool in own or pools}
