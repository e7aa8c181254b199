"""The twins of the loops, for every test that is to hold for both: the plain one (`py`) and the compiled one (`cy`).

`cy` is skipped only where PURINE_REF_FAST is 0 or nothing was built; never where it is 1.
"""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest

from purine_ref._fast import select


def compiled() -> ModuleType:
    """The compiled twin, or a skip that says why there is none."""
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    if setting == "0":
        pytest.skip("PURINE_REF_FAST=0 asks for the plain loops alone")
    if setting == "auto" and importlib.util.find_spec("purine_ref._fast._loops") is None:
        pytest.skip("the compiled loops are not built; run python setup.py build_ext --inplace")
    return select("1")


def twin(name: str) -> ModuleType:
    """`py` or `cy`."""
    return select("0") if name == "py" else compiled()
