"""Devices: where arrays live and which kernels run on them. `device_for` finds the one of a location.

A device allocates arrays, and hands out `Kernels` bound to the key of a run. Every suite of the operators runs
against the contract `Device`; a new device adds the loops of `Kernels`, never an operator or a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from purine_ref.devices.cpu import CpuDevice
from purine_ref.devices.work import Event, UpstreamFailed, Work
from purine_ref.errors import GraphError
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.tensor import Location, Tensor

__all__ = ["CpuDevice", "Device", "Event", "UpstreamFailed", "Work", "device_for"]


class Device(Protocol):
    """What an executor needs of a place: memory and kernels."""

    name: str
    asynchronous: bool

    def allocate(self, tensor: Tensor, name: str = "") -> Array:
        """A zeroed array for `tensor` in this device's memory, C-contiguous, for the blob of that name."""

    def kernels(self, key: RunKey) -> Kernels:
        """The vocabulary for one run, whose random operations are keyed by `key`."""

    def missing(self, loops: frozenset[str]) -> tuple[str, ...]:
        """Those of `loops` that this device has no kernel for, sorted (rule R13)."""

    def submit(self, work: Work) -> Event | None:
        """Do the work, or enqueue it if the device is `asynchronous` and return the event of its end."""

    def synchronise(self) -> Sequence[BaseException]:
        """Wait for all that was submitted; returns what failed."""


_CPU = CpuDevice()


def device_for(location: Location) -> Device:
    """The device at `location`. Raises GraphError where this build has none."""
    if location.is_cpu:
        return _CPU
    raise GraphError(f"no device at {location}: only CPUs (device below 0) are available here; place it on a CPU")
