"""Devices: where arrays live and which kernels run on them. `device_for` finds the one of a location.

A device allocates arrays, and hands out `Kernels` bound to the key of a run. Every suite of the operators runs
against the contract `Device`; a new device adds the loops of `Kernels`, never an operator or a gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from purine_ref.devices.cpu import CpuDevice, cpu_devices
from purine_ref.devices.streams import Machine
from purine_ref.devices.work import Event, UpstreamFailed, Work
from purine_ref.errors import GraphError
from purine_ref.operation import Array, Kernels, Operation, RunKey
from purine_ref.tensor import Location, Tensor

__all__ = [
    "CpuDevice",
    "Device",
    "Event",
    "UpstreamFailed",
    "Work",
    "cpu_devices",
    "default_kernels",
    "device_for",
    "kernel_set",
]


class Device(Protocol):
    """What an executor needs of a place: memory and kernels."""

    name: str
    asynchronous: bool

    @property
    def machine(self) -> Machine | None:
        """What has the streams of an asynchronous device."""

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed array for `tensor` in this device's memory, in the order of `arrange`, for the blob of that name."""

    def arrange(self, flat: Array, tensor: Tensor, *, row_major: bool = False) -> Array:
        """The flat array in the shape of `tensor`: in this device's memory order, or in C order where `row_major`."""

    def reorders(self, tensor: Tensor) -> bool:
        """Whether this device's memory order for `tensor` is another than C order, so that no reshape is a view."""

    def write(self, array: Array, values: Array) -> None:
        """Fill an array of this device's memory from one of numpy's."""

    def read(self, array: Array) -> Array:
        """A copy of an array of this device's memory, as one of numpy's."""

    def initialise(self, array: Array, operation: Operation, seed: int) -> None:
        """Fill an array with what an operation without inputs gives: the same bits on every device."""

    def kernels(self, key: RunKey) -> Kernels:
        """The vocabulary for one run, whose random operations are keyed by `key`."""

    def missing(self, loops: frozenset[str]) -> tuple[str, ...]:
        """Those of `loops` that this device has no kernel for, sorted (rule R13)."""

    def submit(self, work: Work) -> Event | None:
        """Do the work, or enqueue it if the device is `asynchronous` and return the event of its end."""

    def synchronise(self) -> Sequence[BaseException]:
        """Wait for all that was submitted; returns what failed."""


_cpu = CpuDevice()


def device_for(location: Location) -> Device:
    """The device at `location`: a CPU, or a GPU of the machine that this process has. Raises GraphError that says what
    is missing where there is none.
    """
    if location.is_cpu:
        return _cpu
    cuda = importlib.import_module("purine_ref.devices.cuda")  # only when it is asked for
    try:
        device: Device = cuda.shared_machine().device(location)
    except GraphError as error:
        raise GraphError(f"no device at {location}: {error}") from error
    return device


def kernel_set() -> str:
    """The name of the kernel set that `device_for` gives."""
    return _cpu.kernel_set


@contextmanager
def default_kernels(name: str | None, threads: int = 1) -> Iterator[None]:
    """Within this context `device_for` finds a CPU with that kernel set and so many threads; None changes nothing.

    It is for commands, which run one thing in a process: libraries give executors the `cpu_devices` that they want.
    Raises GraphError for a set that is not there.
    """
    global _cpu
    before = _cpu
    if name is not None:
        _cpu = CpuDevice(name, threads)
    try:
        yield
    finally:
        _cpu = before
