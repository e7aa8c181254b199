"""Fault plans: what goes wrong, when, and to whom, all drawn from a seed; and what may come of it.

The place within a phase is a fraction: of a short time after the start for `connect`, of the first bytes on a way for
`handshake`, of all its bytes in an undisturbed run for `iteration`, and of a moment after the result is printed for
`closing`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PHASES = ("connect", "handshake", "iteration", "closing")

KINDS = {
    "late join": ("connect",),
    "delay": PHASES,
    "stall": PHASES,
    "cut and heal": PHASES,
    "pulled cable": PHASES,
    "cut for good": PHASES,
    "kill -9": PHASES,
    "SIGSTOP": PHASES,
    "stranger": PHASES,
    "second rank 1": PHASES,
    "disk full": ("iteration",),
}
"""The kinds of faults, and the phases in which they can happen."""

LASTING = ("late join", "stall", "pulled cable")
"""The kinds that end by themselves, within the limit or beyond it. A cut that heals is always within."""

STRANGERS = ("noise", "a web browser", "ZeroMQ", "a rank of another run")

COMMANDS = {False: ("train", "train", "verify", "large"), True: ("train", "train", "train", "large")}
"""What is run, the same twice if likelier; in an iteration, mostly what can be resumed."""

RIGHT, NAMED = "right result", "named error"


@dataclass(frozen=True, slots=True)
class Plan:
    """One fault in one run of `command` on `ranks` ranks, in which `target` suffers.

    With a `peer` only what flows between the two suffers, else all that the target sends and gets; of `both` ways, or
    only of that away from the target. `within`: whether it is over before a rank counts as lost. `place` is from 0
    to 1.
    """

    number: int
    kind: str
    phase: str
    command: str
    ranks: int
    secure: bool
    target: int
    peer: int | None
    both: bool
    within: bool
    place: float
    stranger: str

    def __str__(self) -> str:
        way = "all others" if self.peer is None else f"rank {self.peer}"
        limit = "within" if self.within else "beyond"
        keys = "with" if self.secure else "without"
        return (
            f"plan {self.number}: {self.kind} ({limit} the limit; {self.stranger}) at {self.phase} + {self.place:.3f}, "
            f"rank {self.target} and {way}, {'both ways' if self.both else 'one way'}; "
            f"{self.command} on {self.ranks} ranks, {keys} keys"
        )

    @property
    def ways(self) -> list[tuple[int, int]]:
        """The ways that suffer, as pairs of ranks."""
        peers = [self.peer] if self.peer is not None else [rank for rank in range(self.ranks) if rank != self.target]
        out = [(self.target, peer) for peer in peers]
        return out + [(peer, target) for target, peer in out] if self.both else out

    @property
    def watched(self) -> tuple[int, int]:
        """The way whose bytes say when it is time: one that every run uses."""
        if self.target == 0:
            return (0, self.peer or 1)
        return (self.target, 0)

    @property
    def endings(self) -> frozenset[str]:
        """How the run may end. While ranks leave, some may have left already when another is lost: both are right."""
        if self.kind in ("delay", "stranger", "second rank 1", "cut and heal"):
            return frozenset({RIGHT})
        if self.kind in LASTING and self.within:
            return frozenset({RIGHT})
        return frozenset({RIGHT, NAMED}) if self.phase == "closing" else frozenset({NAMED})

    def culprits(self, rank: int) -> frozenset[int]:
        """Whom that rank may name. Who is cut off cannot know that the others still hear each other."""
        if rank == self.target:
            return frozenset(range(self.ranks))
        return frozenset({self.target} if self.peer is None else {self.target, self.peer})


def every_kind() -> list[tuple[str, str]]:
    """Each kind at each of its phases."""
    return [(kind, phase) for kind, phases in KINDS.items() for phase in phases]


def draw(number: int, kind: str, phase: str, seed: int = 0) -> Plan:
    """Plan `number` of a list, of that kind at that phase."""
    random_ = random.Random(f"{seed}/{number}/{kind}/{phase}")
    ranks = random_.choice((2, 3, 3))
    full = kind == "disk full"
    target = 0 if full else 1 if kind == "second rank 1" else random_.randrange(ranks)
    if kind == "late join":
        target = random_.randrange(ranks)
    others = [rank for rank in range(ranks) if rank != target]
    paired = kind in ("delay", "stall", "cut and heal", "cut for good") and random_.random() < 0.4
    return Plan(
        number=number,
        kind=kind,
        phase=phase,
        command="train" if full else random_.choice(COMMANDS[phase == "iteration"]),
        ranks=ranks,
        secure=random_.random() < 0.4,
        target=target,
        peer=random_.choice(others) if paired else None,
        both=random_.random() < 0.7,
        within=random_.random() < 0.5 or kind == "cut and heal",
        place=random_.random(),
        stranger=random_.choice(STRANGERS),
    )


def drawn(count: int, seed: int = 0) -> list[Plan]:
    """So many plans: the kinds and phases in turn, in an order of their own for each round."""
    found: list[Plan] = []
    shuffle = random.Random(seed)
    while len(found) < count:
        pairs = every_kind()
        shuffle.shuffle(pairs)
        found += [draw(len(found) + index, *pair, seed=seed) for index, pair in enumerate(pairs)]
    return found[:count]
