"""A planted fault: a few words of the port in plain Python, replaced by wrong ones.

The port is the one in `examples/ports/python`. An installed package has its files below `share/purine_ref/ports`.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from purine_ref.errors import Refused

PORT = "ports/python/port.py"
"""How the path of the port's program ends, wherever it lies."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`edits` are pairs of texts, the right one and the wrong one, in one file of the port.

    `operations` are those that the fault can be seen in; empty for a fault of the dispatcher, which may show anywhere.
    """

    name: str
    about: str
    file: str
    edits: tuple[tuple[str, str], ...]
    operations: frozenset[str] = frozenset()

    def plant(self, source: Path, target: Path) -> Path:
        """Copy the port from `source` into `target`, a folder to be made, with the fault; returns its program.

        Raises Refused when a right text is not in the file just once.
        """
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        path = target / self.file
        text = path.read_text("utf-8")
        for right, wrong in self.edits:
            count = text.count(right)
            if count != 1:
                where = source / self.file
                raise Refused(f"fault {self.name!r}: expected {right!r} once in {where}, found it {count} times")
            text = text.replace(right, wrong)
        path.write_text(text, "utf-8")
        return target / "port.py"


def operator(name: str, about: str, file: str, right: str, wrong: str, operations: Collection[str] | str) -> Fault:
    """A fault of one operation, or of a few that share a function."""
    named = {operations} if isinstance(operations, str) else operations
    return Fault(name, about, file, ((right, wrong),), frozenset(named))


def dispatcher(name: str, about: str, *edits: tuple[str, str], file: str = "dispatcher.py") -> Fault:
    """A fault of the dispatcher, or of the memory that it works on."""
    return Fault(name, about, file, edits)


def port_folder() -> Path:
    """The folder of the port in plain Python: in the source tree, or where the installed package has it.

    Raises Refused when it is in neither.
    """
    source = Path(__file__).parents[3] / "examples" / PORT
    if source.is_file():
        return source.parent
    for installed in importlib.metadata.distributions(name="purine_ref"):
        for file in installed.files or ():
            found = Path(str(file.locate()))
            if found.as_posix().endswith(PORT) and found.is_file():
                return found.parent
    raise Refused(f"the port in plain Python is neither {source} nor among the files of the installed package")
