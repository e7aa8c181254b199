"""The CPU device: numpy arrays, numpy's functions, and the loops of `_fast`.

BLAS is held to one thread for the process, once, when the first executor asks for a CPU (`limit_blas`): the bits of
a sum may depend on how many threads share it, and N workers times M BLAS threads oversubscribe the cores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import threadpoolctl

from purine_ref import _fast
from purine_ref.devices.work import Event, UpstreamFailed, Work
from purine_ref.operation import Array, RunKey
from purine_ref.tensor import Tensor


class CpuKernels:
    """The vocabulary on the CPU: numpy, and the chosen twin of every loop."""

    xp: Any = np
    im2col: Any = staticmethod(_fast.loops.im2col)
    col2im: Any = staticmethod(_fast.loops.col2im)
    max_pool: Any = staticmethod(_fast.loops.max_pool)
    max_pool_scatter: Any = staticmethod(_fast.loops.max_pool_scatter)
    average_pool: Any = staticmethod(_fast.loops.average_pool)
    average_pool_scatter: Any = staticmethod(_fast.loops.average_pool_scatter)
    window_sum: Any = staticmethod(_fast.loops.window_sum)
    philox: Any = staticmethod(_fast.loops.philox)

    def __init__(self, key: RunKey) -> None:
        self.key = key
        self.transport: Any = None


class CpuDevice:
    """The memory and kernels of one process's CPU."""

    name = "cpu"
    asynchronous = False

    def allocate(self, tensor: Tensor, name: str = "") -> Array:
        """A zeroed C-contiguous numpy array for `tensor`, which blob `name` is to have."""
        return np.zeros(tensor.shape, dtype=tensor.dtype)

    def kernels(self, key: RunKey) -> CpuKernels:
        """The vocabulary for one run."""
        return CpuKernels(key)

    def missing(self, loops: frozenset[str]) -> tuple[str, ...]:
        """Those of `loops` that the CPU has no kernel for, sorted."""
        return tuple(sorted(name for name in loops if not hasattr(CpuKernels, name)))

    def submit(self, work: Work) -> Event | None:
        """Wait for what the work needs, and do it. Raises UpstreamFailed when that had failed."""
        if not all([before.wait() for before in work.after]):
            raise UpstreamFailed(work.name)
        work.compute()
        return None

    def synchronise(self) -> Sequence[BaseException]:
        """Nothing to wait for: all work is done when it is submitted."""
        return ()


quiet = partial(np.errstate, all="ignore")
"""A context for one thread, in which overflow and NaN are values like any other (section 3), and warn nobody."""

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
