"""The kernel sets of the CPU, by name: each computes every operation, in a memory order of its own."""

from __future__ import annotations

from purine_ref.devices.kernels.base import LoopKernels
from purine_ref.devices.kernels.channels_last import NumpyKernels
from purine_ref.devices.kernels.onednn import OneDnnKernels
from purine_ref.devices.kernels.plain import PlainKernels
from purine_ref.errors import GraphError

__all__ = ["KERNEL_SETS", "LoopKernels", "NumpyKernels", "OneDnnKernels", "PlainKernels", "unusable"]

KERNEL_SETS: dict[str, type[NumpyKernels] | type[PlainKernels]] = {
    kind.name: kind for kind in (NumpyKernels, PlainKernels, OneDnnKernels)
}
"""The default first; `require` says whether one can be used here."""


def unusable(name: str) -> str:
    """Why the kernel set of that name cannot be used here, and what to do; empty when it can be."""
    try:
        KERNEL_SETS[name].require()
    except GraphError as error:
        return str(error)
    return ""
