"""GPUs, by CuPy: what is there, their kernels, and their streams. Importing this asks for neither CuPy nor a GPU.

`machine.py` and `streams.py` are a backend of `devices/streams.py`, as the virtual devices are; `copies.py` moves
arrays between the CPU's memory and the GPUs'; `tape.py` records an iteration as a CUDA graph; `kernels.py` is the
vocabulary, and the `.cu` files are the loops. Without a GPU, the kernels' own sources are checked on the CPU, and all
of the rest over a stand-in for CuPy. None of it has been run on a GPU yet.
"""

from __future__ import annotations

import threading

from purine_ref.devices.cuda.availability import gpu_facts, require_gpu
from purine_ref.devices.cuda.machine import CudaDevice, CudaMachine, cuda_machine

__all__ = ["CudaDevice", "CudaMachine", "cuda_machine", "gpu_facts", "require_gpu", "shared_machine"]

_lock = threading.Lock()
_shared: CudaMachine | None = None  # guarded by _lock; kept to the end of the process


def shared_machine() -> CudaMachine:
    """The machine of this process, for executors that are not given one. Raises GraphError where there is no GPU."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = cuda_machine()
        return _shared
