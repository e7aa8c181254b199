"""Devices: where arrays live and which kernels run on them. `device_for` finds the one of a location.

A device allocates arrays, and hands out `Kernels` bound to the key of a run. Every suite of the operators runs
against the contract `Device`; a new device adds the loops of `Kernels`, never an operator or a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from purine_ref.devices.cpu import CpuDevice, cpu_devices, require_cpu
from purine_ref.devices.work import Event, UpstreamFailed, Work
from purine_ref.operation import Array, Kernels, RunKey
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

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed array for `tensor` in this device's memory, in the order of `arrange`, for the blob of that name."""

    def arrange(self, flat: Array, tensor: Tensor, *, row_major: bool = False) -> Array:
        """The flat array in the shape of `tensor`: in this device's memory order, or in C order where `row_major`."""

    def reorders(self, tensor: Tensor) -> bool:
        """Whether this device's memory order for `tensor` is another than C order, so that no reshape is a view."""

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
    """The device at `location`. Raises GraphError where this build has none."""
    return require_cpu(_cpu, location)


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
