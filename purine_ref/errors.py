"""The error tree, by whose fault it is.

Every class carries its facts as attributes, so that a caller can act on them without reading the message.
Messages name the object, what was expected, what came, and what to do. Misuse of an executor (running it twice at
once, after `close`, or in a forked child) raises `RuntimeError`, as `threading` does.
"""

from __future__ import annotations

from collections.abc import Sequence


class PurineError(Exception):
    """The root of every error that this package raises on purpose."""


class GraphError(PurineError):
    """A graph was built wrongly. `problems` holds every fault found, one sentence each."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class CycleError(GraphError):
    """A graph has a cycle (rule R1). `cycle` holds the names along it; the first is also the last."""

    def __init__(self, graph: str, cycle: Sequence[str]) -> None:
        self.cycle: tuple[str, ...] = tuple(cycle)
        super().__init__(f"graph {graph!r} has a cycle: {' -> '.join(self.cycle)}; a bi-graph must be acyclic")


class ShapeError(GraphError):
    """Shapes, dtypes or attributes disagree with what an operation can take."""


class OperatorError(PurineError):
    """An operator met values that it cannot compute on, such as a label outside its classes."""


class PeerLost(PurineError):
    """A rank that others need is gone: it failed, was interrupted, fell silent, or closed.

    `rank` says which, `reason` why. `waits` has a line for each wait, on any rank, that was known when it fell silent:
    who waits for what, from whom.
    """

    def __init__(self, rank: int, reason: str, waits: Sequence[str] = ()) -> None:
        self.rank = rank
        self.reason = reason
        self.waits: tuple[str, ...] = tuple(waits)
        super().__init__("\n  ".join((f"rank {rank} is lost: {reason}", *waits)))


class Refused(PurineError):
    """Something from outside (a file, a message) is not what it claims to be, and was not believed."""


class ResultDiffers(PurineError):
    """Two results that must agree do not. `tensor` is the first name, in topological order, that differs."""

    def __init__(self, message: str, tensor: str) -> None:
        self.tensor = tensor
        super().__init__(message)
