"""The hot loops in two spellings, and which of them this process uses.

`loops.py` is the plain twin, `_loops.pyx` the compiled one; names, signatures, errors and bits are the same. The
environment variable PURINE_REF_FAST decides once, at import, for all of them together:

- `auto` (or not set): the compiled twin if it was built, else the plain one;
- `1`: the compiled twin, or ImportError;
- `0`: the plain twin.

A compiled twin that is there but cannot be loaded, or was built from other source, raises ImportError: it is never
replaced in silence. `loops` is the chosen module and `FAST` says whether it is the compiled one. Since `loops` is
also the plain twin's file, take its functions with `from purine_ref._fast import loops`, which is always the choice.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

# Imported even when it is not chosen: a first import of the submodule later on would rebind the name `loops`.
from purine_ref._fast import loops as _plain

ABI = 1
"""The version of the loops' signatures and meaning. A compiled twin carries the number that it was built for."""

_REMEDY = (
    "build it with `python setup.py build_ext --inplace` or by installing the package again, "
    "or set PURINE_REF_FAST=0 to use the plain loops"
)


def select(setting: str, compiled_name: str = "purine_ref._fast._loops") -> ModuleType:
    """The module of loops for a `setting` of PURINE_REF_FAST.

    Raises ValueError for a setting other than auto, 1 or 0, and ImportError when the compiled twin is asked for and
    absent, or present and unusable.
    """
    if setting not in ("auto", "1", "0"):
        raise ValueError(f"PURINE_REF_FAST: expected auto, 1 or 0, got {setting!r}; unset it for auto")
    if setting == "0":
        return _plain
    if importlib.util.find_spec(compiled_name) is not None:
        return _load(compiled_name)
    if setting == "1":
        raise ImportError(f"PURINE_REF_FAST=1 asks for the compiled loops, but {compiled_name} is not built; {_REMEDY}")
    return _plain


def _load(name: str) -> ModuleType:
    """The compiled twin. Raises ImportError when it is broken or stale."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ImportError(f"{name} is present but cannot be loaded ({error}); {_REMEDY}") from error
    built_for = getattr(module, "ABI", None)
    if built_for != ABI:
        raise ImportError(f"{name} is stale: expected ABI {ABI}, it was built for {built_for}; {_REMEDY}")
    return module


loops = select(os.environ.get("PURINE_REF_FAST", "auto"))
"""The chosen module of loops."""

FAST: bool = loops is not _plain
"""Whether the compiled loops are in use."""
