"""The hot loops in two spellings, and which of them this process uses.

There are four pairs: `loops.py` and `_loops.pyx`, over the elements of arrays, each with the files that it names,
`tracker.py` and `_tracker.pyx`, over the edges of graphs, `judge.py` and `_judge.pyx`, over the events of traces, and
`lines.py` and `_lines.pyx`, over the lines that hold them. The first of a pair is the plain twin, the second the
compiled one; names, signatures, errors and bits are the same. The environment variable PURINE_REF_FAST decides once, at
import, for all of them together:

- `auto` (or not set): the compiled twins if they were built, else the plain ones;
- `1`: the compiled twins, or ImportError;
- `0`: the plain twins.

A compiled twin that is there but cannot be loaded, or was built from other source, or without its fellow, raises
ImportError: it is never replaced in silence. `loops` is the chosen module, `Edges`, `Tracker`, `Calls`, `Team`,
`Walkers` and `Judge` are the chosen classes, and `FAST` says whether they are the compiled ones. Since `loops` is also
the plain twin's file, take its functions with `from purine_ref._fast import loops`, which is always the choice; and so
with the others. The plain twins of calls, teams and walkers have files of their own; `tracker.py` has their names too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType
from typing import TYPE_CHECKING

# Imported even when they are not chosen: a first import of a submodule later on would rebind its name.
from purine_ref._fast import judge as _plain_judge
from purine_ref._fast import lines as _plain_lines
from purine_ref._fast import loops as _plain_loops
from purine_ref._fast import tracker as _plain_tracker

ABI = 6
"""The version of all signatures and their meaning. A compiled twin carries the number that it was built for."""

_REMEDY = (
    "build it with `python setup.py build_ext --inplace` or by installing the package again, "
    "or set PURINE_REF_FAST=0 to use the plain loops"
)


def select(
    setting: str, compiled_name: str = "purine_ref._fast._loops", plain: ModuleType = _plain_loops
) -> ModuleType:
    """The module of loops, or another of which `plain` is the plain twin, for a `setting` of PURINE_REF_FAST.

    Raises ValueError for a setting other than auto, 1 or 0, and ImportError when the compiled twin is asked for and
    absent, or present and unusable.
    """
    if setting not in ("auto", "1", "0"):
        raise ValueError(f"PURINE_REF_FAST: expected auto, 1 or 0, got {setting!r}; unset it for auto")
    if setting == "0":
        return plain
    if importlib.util.find_spec(compiled_name) is not None:
        return _load(compiled_name)
    if setting == "1":
        raise ImportError(f"PURINE_REF_FAST=1 asks for the compiled loops, but {compiled_name} is not built; {_REMEDY}")
    return plain


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


_SETTING = os.environ.get("PURINE_REF_FAST", "auto")

loops = select(_SETTING)
"""The chosen module of loops."""

tracker = select(_SETTING, "purine_ref._fast._tracker", _plain_tracker)
"""The chosen module with the readiness tracker."""

judge = select(_SETTING, "purine_ref._fast._judge", _plain_judge)
"""The chosen module that judges traces."""

lines = select(_SETTING, "purine_ref._fast._lines", _plain_lines)
"""The chosen module that reads the lines of traces."""

FAST: bool = loops is not _plain_loops
"""Whether the compiled twins are in use."""

if {tracker is _plain_tracker, judge is _plain_judge, lines is _plain_lines} != {not FAST}:
    raise ImportError(f"of purine_ref._fast._loops, _tracker, _judge and _lines only some are built; {_REMEDY}")

if TYPE_CHECKING:
    from purine_ref._fast.judge import Judge as Judge
    from purine_ref._fast.tracker import Calls as Calls
    from purine_ref._fast.tracker import Edges as Edges
    from purine_ref._fast.tracker import Team as Team
    from purine_ref._fast.tracker import Tracker as Tracker
    from purine_ref._fast.tracker import Walkers as Walkers
else:
    Calls, Edges, Team, Tracker, Walkers = tracker.Calls, tracker.Edges, tracker.Team, tracker.Tracker, tracker.Walkers
    Judge = judge.Judge
