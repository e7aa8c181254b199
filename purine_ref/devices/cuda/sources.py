"""The sources of the kernels: one `.cu` file a family, and what they share.

A family is compiled once for each element type, by whoever launches it: CuPy's NVRTC on a GPU, nvcc or a C++ compiler
in tests. `OPTIONS` keep the bits: without them a compiler may fuse a product and a sum into one rounding.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
"""Where the `.cu` files lie."""

SHARED = "common.cuh"
"""The file that all families include."""

FAMILIES = ("channels", "draws", "elements", "layout", "normalization", "patches", "pools")
"""The names of the `.cu` files."""

OPTIONS = ("-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
"""What NVRTC and nvcc must be told: every operation is rounded once, as IEEE 754 says, subnormal numbers too."""


def element_option(dtype: np.dtype) -> str:
    """The option that chooses the element type, float32 or float64. Raises KeyError for another."""
    return "-DREAL=" + {"float32": "float", "float64": "double"}[dtype.name]


@cache
def source(family: str) -> str:
    """The whole source of a family, with what it shares in its place, so that a cache by source sees every change."""
    shared = (FOLDER / SHARED).read_text("utf-8").replace("#pragma once\n", "")
    return (FOLDER / f"{family}.cu").read_text("utf-8").replace(f'#include "{SHARED}"\n', shared)


@cache
def kernels(family: str) -> tuple[str, ...]:
    """The names of a family's kernels, in the order of its file."""
    return tuple(re.findall(r'^extern "C" __global__ void (\w+)\(', source(family), re.MULTILINE))
