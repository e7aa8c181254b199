"""The CPU and the GPUs as one `Machine`: what a place is, where its memory is, and how its streams are opened.

Device d of a location is GPU d modulo how many there are, with streams of its own: two places on one GPU are two sets
of streams. Arrays of blobs are allocated when an executor binds, and no more; kernels keep scratch memory for each
stream; what is left for CuPy's pool, results of CuPy's own functions within an operator, it gives out again in the
order of the stream. Values that a graph begins with are computed on the CPU, and so have the same bits everywhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from purine_ref.devices.cuda.arguments import laid_as
from purine_ref.devices.cuda.availability import require_gpu
from purine_ref.devices.cuda.copies import Copies
from purine_ref.devices.cuda.kernels import CudaKernels, CupyLaunch
from purine_ref.devices.cuda.pinned import PinnedCpu, pinned_array
from purine_ref.devices.cuda.streams import CudaStream, Here
from purine_ref.devices.cuda.tape import CudaTape, TapeStream
from purine_ref.devices.kernels.rows import channels_last
from purine_ref.devices.streams import Machine
from purine_ref.devices.work import Event, Work, queue_of
from purine_ref.operation import Array, Kernels, Operation, RunKey
from purine_ref.tensor import Location, Tensor

WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""What cuBLAS must find in the environment, so that products in several streams at once have the same bits (R8)."""

ENABLED = 704
"""CUDA's code for peer access that has been enabled already."""


class CudaMachine(Machine):
    """A CPU and its GPUs, for one executor or several. Made by `cuda_machine`."""

    def __init__(self, cupy: Any, *, kernels: str = "numpy", threads: int = 1, blocking: bool = False) -> None:
        super().__init__()
        self.cupy = cupy
        self.gpus = int(cupy.cuda.runtime.getDeviceCount())
        self.here = Here()
        self.launches = [CupyLaunch(cupy) for _ in range(self.gpus)]
        self._blocking = blocking
        self._lock = threading.Lock()
        self._devices: dict[Location, CudaDevice] = {}
        self._bridges: dict[int, CudaStream] = {}
        self.cpu = PinnedCpu(self, kernels, threads)
        self.copies = Copies(cupy, self._meet(), self.bridge)

    def device(self, location: Location) -> CudaDevice | PinnedCpu:
        """The device at a location, which is an executor's `devices`."""
        if location.is_cpu:
            return self.cpu
        with self._lock:
            return self._devices.setdefault(location, CudaDevice(self, location))

    def gpu(self, location: Location) -> int:
        """The number of the GPU of a location."""
        return location.device % self.gpus

    def current(self, location: Location, name: str = "main") -> Any:
        """A context in which the place's GPU and its stream of that name are CuPy's current ones."""
        stream: Any = self.stream(location, name)
        return stream.current()

    def bridge(self, gpu: int) -> CudaStream:
        """A stream of that GPU for what is no operator: feeding, fetching, and copies between GPUs that do not meet."""
        with self._lock:
            if gpu not in self._bridges:
                self._bridges[gpu] = CudaStream(self.cupy, gpu, f"the bridge of GPU {gpu}", self.here, self.copies)
            return self._bridges[gpu]

    def close(self) -> None:
        """End all streams, after what was launched into them."""
        super().close()
        with self._lock:
            bridges, self._bridges = list(self._bridges.values()), {}
        for stream in bridges:
            stream.close()

    def __enter__(self) -> CudaMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _meet(self) -> frozenset[tuple[int, int]]:
        """The pairs of GPUs that reach each other's memory, once that is enabled."""
        runtime, found = self.cupy.cuda.runtime, set()
        for one in range(self.gpus):
            for other in range(one):
                ways = [(one, other), (other, one)]
                if all(runtime.deviceCanAccessPeer(*way) for way in ways):
                    for own, peer in ways:
                        self._enable(own, peer)
                    found.update(ways)
        return frozenset(found)

    def _enable(self, own: int, peer: int) -> None:
        """Let kernels of one GPU reach another's memory."""
        with self.cupy.cuda.Device(own):
            try:
                self.cupy.cuda.runtime.deviceEnablePeerAccess(peer)
            except RuntimeError as error:
                if getattr(error, "status", None) != ENABLED:
                    raise

    def _open(self, location: Location, name: str) -> CudaStream:
        queue = queue_of(location, name)
        return CudaStream(self.cupy, self.gpu(location), queue, self.here, self.copies, blocking=self._blocking)

    def _tape(self) -> CudaTape:
        def opened(pool: Any, location: Location, name: str) -> TapeStream:
            """A stream that is captured."""
            queue = f"{queue_of(location, name)} of a recording"
            return TapeStream(pool, self.cupy, self.gpu(location), queue, self.here, self.copies)

        streams: Any = self.stream
        live: Any = self._live.streams
        return CudaTape(self.cupy, opened, streams, live)


class CudaDevice:
    """One place of a machine: memory and kernels of a GPU, and a set of its streams."""

    name = "cuda"
    asynchronous = True

    def __init__(self, machine: CudaMachine, location: Location) -> None:
        self.machine = machine
        self.index = machine.gpu(location)
        self._location = location
        self._cupy = machine.cupy

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed array for `tensor` in the GPU's memory, in the order of `arrange`."""
        with self.machine.bridge(self.index).current() as stream:
            flat = self._cupy.zeros(tensor.size, tensor.dtype)
            stream.cupy.synchronize()
        return self.arrange(flat, tensor, row_major=row_major)

    def arrange(self, flat: Array, tensor: Tensor, *, row_major: bool = False) -> Array:
        """The flat array in the shape of `tensor`: in this device's memory order, or in C order where `row_major`."""
        if row_major or not self.reorders(tensor):
            return flat.reshape(tensor.shape)
        return channels_last(flat, tensor.shape)

    def reorders(self, tensor: Tensor) -> bool:
        """Whether this device's memory order for `tensor` is another than C order: images lie channels-last."""
        shape = tensor.shape
        return len(shape) == 4 and shape[1] != 1 and shape[2] * shape[3] != 1

    def write(self, array: Array, values: Array) -> None:
        """Fill an array of this GPU's memory from one of numpy's, by page-locked memory; it is there on return."""
        with self.machine.bridge(self.index).current() as stream:
            stage = laid_as(array, pinned_array(self._cupy, (array.size,), array.dtype))
            stage[...] = values
            stream.copy(stage, array)
            stream.cupy.synchronize()

    def read(self, array: Array) -> Array:
        """A copy of an array of this GPU's memory, as numpy's, once all that was launched before on its bridge is done.
        """
        with self.machine.bridge(self.index).current() as stream:
            stage = laid_as(array, pinned_array(self._cupy, (array.size,), array.dtype))
            stream.copy(array, stage)
            stream.cupy.synchronize()
        return stage.copy()

    def initialise(self, array: Array, operation: Operation, seed: int) -> None:
        """Fill an array with what an operation without inputs gives in iteration 0, computed on the CPU."""
        values = np.zeros(array.shape, array.dtype)
        operation.compute(self.machine.cpu.kernels(RunKey(seed)), (), (values,))
        self.write(array, values)

    def kernels(self, key: RunKey) -> Kernels:
        """The vocabulary for one run. It works where the machine's current stream is."""
        kernels: Any = CudaKernels(key, self._cupy, self.machine.launches[self.index], self.machine.here)
        return kernels  # type: ignore[no-any-return]

    @staticmethod
    def missing(loops: frozenset[str]) -> tuple[str, ...]:
        """Those of `loops` that there is no kernel for, sorted (rule R13)."""
        return tuple(sorted(name for name in loops if not hasattr(CudaKernels, name)))

    def submit(self, work: Work) -> Event | None:
        """Launch the work and return."""
        return self.machine.submit(work)

    def synchronise(self) -> Sequence[BaseException]:
        """Wait for all work of the place; returns what failed."""
        return self.machine.synchronise(self._location)


def cuda_machine(
    cupy: Any = None, *, tf32: bool = False, blocking: bool = False, kernels: str = "numpy", threads: int = 1
) -> CudaMachine:
    """The machine of this computer's GPUs, by `cupy`, which is the module of that name unless another is given.

    Products of float32 have all their bits unless `tf32` is set; that is CuPy's setting, and so the process's. With
    `blocking` the host waits behind every launch, so that an error of the GPU names its operator. `kernels` and
    `threads` are those of the CPU. Raises GraphError that says what is missing, and what to do, where there is no GPU.
    """
    module = require_gpu(cupy)
    os.environ.setdefault(*WORKSPACE)
    linalg = module._core._routines_linalg
    module._core.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32 if tf32 else linalg.COMPUTE_TYPE_DEFAULT)
    return CudaMachine(module, kernels=kernels, threads=threads, blocking=blocking)
