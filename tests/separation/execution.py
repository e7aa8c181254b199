"""A fault plan, carried out and judged.

A run is judged from outside alone: by what its ranks print, the code with which they exit, the files that they leave,
and when. Each must end in the result of a run that nothing disturbed, to the bit, or in an error that names the
culprit, on every rank.
"""

from __future__ import annotations

import itertools
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from separation.arena import GRACE, HARD_LIMIT, OUTSIDER, PATIENCE, TIMEOUT, Arena, Run, Undisturbed
from separation.plans import NAMED, RIGHT, Plan
from separation.ranks import Rank

HANDSHAKE = 700
"""Bytes of a way that surely belong to its handshake."""

LATENCY = 0.02
"""Seconds that bytes take while ranks leave, so that they are still leaving when the fault falls."""


@dataclass(slots=True)
class Outcome:
    """How a plan ended: in `RIGHT` or `NAMED`. `faults` says what may not be; when it is empty the plan has passed.

    `seconds` are from the fault to the end of the last rank; `resumed` when the run was taken up from its snapshot.
    """

    plan: Plan
    ending: str = ""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    resumed: bool = False
    complaints: dict[str, str] = field(default_factory=dict)


def execute(arena: Arena, plan: Plan) -> Outcome:
    """Run the plan, and resume what it broke."""
    calm = arena.undisturbed(plan.command, plan.ranks, plan.secure)
    outcome = Outcome(plan)
    with arena.run(plan.command, plan.ranks, plan.secure, seed=plan.number) as run:
        strike = _Strike(arena, run, plan)
        try:
            _start(run, plan, calm, strike)
            _wait(run, plan, strike)
        finally:
            arena.network.plug(plan.target)
        if strike.at is None:
            outcome.faults.append("what was to go wrong never did")
        else:
            outcome.seconds = time.monotonic() - strike.at
        judge(run, calm, outcome)
        if outcome.ending == NAMED and plan.command == "train" and run.saved.exists():
            _resume(arena, run, plan, calm, outcome)
    return outcome


class _Strike:
    """The fault, as something to be done at its time; `at` is when it was, or None."""

    def __init__(self, arena: Arena, run: Run, plan: Plan) -> None:
        self.at: float | None = None
        self.done = threading.Event()
        self._network = arena.network
        self._run = run
        self._plan = plan
        self._random = random.Random(plan.number)

    def __call__(self) -> None:
        """Do it."""
        self.at = time.monotonic()
        self._do()
        self.done.set()

    def _do(self) -> None:
        kind, plan, proxy = self._plan.kind, self._plan, self._run.proxy
        if kind == "delay":
            for way in plan.ways:
                proxy.delay(way, 0.02 * plan.place, 0.01 * plan.place)
        elif kind == "stall":
            proxy.stall(*plan.ways)
            self._over(lambda: proxy.resume(*plan.ways))
        elif kind == "cut and heal":
            times = self._random.randint(1, 4)
            self._flap(times, times)
        elif kind == "cut for good":
            proxy.cut(*plan.ways)
        elif kind == "pulled cable":
            self._network.pull(plan.target)
            self._over(lambda: self._network.plug(plan.target))
        else:
            self._person(kind)

    def _flap(self, times: int, left: int) -> None:
        """Cut and heal so often, with pauses between them: the next cut may fall on a handshake."""
        proxy, ways = self._run.proxy, self._plan.ways
        proxy.cut(*ways)

        def heal() -> None:
            proxy.heal(*ways)
            if left > 1:
                proxy.after(0.3 * self._random.random() / times, lambda: self._flap(times, left - 1))

        self._over(heal, times)

    def _over(self, action: Callable[[], None], times: int = 1) -> None:
        """Have it over in time, or never."""
        if self._plan.within:
            self._run.proxy.after(TIMEOUT * (0.05 + 0.25 * self._random.random()) / times, action)

    def _person(self, kind: str) -> None:
        """The kinds that come over a process, or are one."""
        run, plan = self._run, self._plan
        if kind in ("kill -9", "SIGSTOP"):
            run.ranks[f"rank{plan.target}"].send(signal.SIGKILL if kind == "kill -9" else signal.SIGSTOP)
        elif kind == "second rank 1":
            run.start(1, host=OUTSIDER)
        elif kind == "late join":
            run.start(plan.target)
        elif plan.stranger == "a rank of another run":
            run.start(1, host=OUTSIDER, run_id="another")
        else:
            run.visit(plan.target, speech(plan.stranger, plan.number))


def _start(run: Run, plan: Plan, calm: Undisturbed, strike: _Strike) -> None:
    """Start the ranks, and arrange for the fault to fall in its phase."""
    way = plan.watched
    if plan.kind == "disk full":
        run.start(0, disk=round(1.7 * len(calm.result)))  # one snapshot, and not a second one beside it
        strike.at = time.monotonic()
    elif plan.phase == "handshake":
        run.proxy.at(way, 1 + round(plan.place * HANDSHAKE), strike)
    elif plan.phase == "iteration":
        run.proxy.at(way, HANDSHAKE + round((0.1 + 0.8 * plan.place) * (calm.passed[way] - HANDSHAKE)), strike)
    for rank in range(plan.ranks):
        if f"rank{rank}" not in run.ranks and not (plan.kind == "late join" and rank == plan.target):
            run.start(rank)
    if plan.kind == "late join":
        run.proxy.after(2.0 * plan.place if plan.within else PATIENCE + 1 + plan.place, strike)
    elif plan.phase == "connect":
        run.proxy.after(0.5 * plan.place, strike)
    elif plan.phase == "closing":
        first = run.ranks["rank0"]
        run.proxy.at(way, round(0.97 * calm.passed[way]), lambda: _slow(run, plan))
        run.proxy.when(lambda: "verdict:" in first.said(), lambda: run.proxy.after(LATENCY * plan.place, strike))


def _slow(run: Run, plan: Plan) -> None:
    """Make a goodbye take long enough to be disturbed."""
    for way in itertools.permutations(range(plan.ranks), 2):
        run.proxy.delay(way, LATENCY)


def _wait(run: Run, plan: Plan, strike: _Strike) -> None:
    """Wait for all ranks. One that was stopped goes on when the others have ended, and must end too."""
    if plan.kind == "late join":
        strike.done.wait(HARD_LIMIT)
    if plan.kind == "SIGSTOP":
        stopped = f"rank{plan.target}"
        run.wait(HARD_LIMIT, but=frozenset({stopped}))
        strike.done.wait(HARD_LIMIT)  # while ranks leave, the others may be faster
        run.ranks[stopped].send(signal.SIGCONT)
    run.wait(HARD_LIMIT)


def judge(run: Run, calm: Undisturbed, outcome: Outcome) -> None:
    """Fill in how the run ended, and what may not be."""
    plan, faults = outcome.plan, outcome.faults
    outcome.complaints = run.complaints()
    faults += [f"{name} still runs" for name, rank in run.ranks.items() if rank.code is None]
    faults += [f"{name} shows a traceback" for name, said in outcome.complaints.items() if "Traceback" in said]
    judged = _members(run, plan, faults)
    failed = [number for number, rank in judged.items() if rank.code != 0]
    outcome.ending = NAMED if failed else RIGHT
    if outcome.ending not in plan.endings:
        faults.append(f"expected: {' or '.join(sorted(plan.endings))}")
    if failed and len(failed) < len(judged) and RIGHT not in plan.endings:
        faults.append(f"only the ranks {failed} say that it failed")
    own = {plan.target} if plan.kind == "disk full" else set()  # who says itself what went wrong
    for number in set(failed) - own:
        blamed = named(judged[number].complained())
        if not blamed & plan.culprits(number):
            faults.append(f"rank {number} names {sorted(blamed)}, not {sorted(plan.culprits(number))}")
    if 0 in judged and 0 not in failed and run.result() != calm.result:
        faults.append("the result differs from that of a run without a fault")
    if plan.kind == "disk full":
        _judge_disk(run, faults)
    limit = (TIMEOUT if plan.phase in ("iteration", "closing") else PATIENCE + TIMEOUT) + GRACE
    if outcome.ending == NAMED and outcome.seconds > limit:
        faults.append(f"took {outcome.seconds:.1f} s, over {limit:.1f}")


def _members(run: Run, plan: Plan, faults: list[str]) -> dict[int, Rank]:
    """The processes that are the run's ranks and have to answer for it; who does not belong must have been refused."""
    ranks = {rank: run.ranks[f"rank{rank}"] for rank in range(plan.ranks)}
    if plan.kind == "kill -9":
        del ranks[plan.target]
    outsider = run.ranks.get(f"rank1-on-host{OUTSIDER}")
    if outsider is not None:
        if plan.kind == "second rank 1" and plan.phase == "connect" and outsider.code == 0:
            outsider, ranks[1] = ranks[1], outsider  # it was there first
        if outsider.code == 0:
            faults.append(f"{outsider.name} was let in")
        elif plan.kind == "second rank 1" and not _told(plan, outsider.complained()):
            faults.append(f"{outsider.name} was not told why: {outsider.complained()!r}")
    return ranks


def _told(plan: Plan, complaint: str) -> bool:
    """Whether who came second knows it. When all have left, it finds nobody."""
    return "another process" in complaint or (plan.phase == "closing" and bool(named(complaint)))


def _judge_disk(run: Run, faults: list[str]) -> None:
    left = sorted(path.name for path in run.saved.parent.iterdir())
    if left != [run.saved.name]:
        faults.append(f"on the full disk there is {left}, not the earlier snapshot alone")
    if "No space left" not in run.ranks["rank0"].complained():
        faults.append("rank 0 does not say that there is no space left")


def _resume(arena: Arena, run: Run, plan: Plan, calm: Undisturbed, outcome: Outcome) -> None:
    """Take the run up again from its snapshot: what comes must be equal, to the bit, to never having stopped."""
    if run.saved.read_bytes() == calm.result:
        return  # it broke after its last snapshot
    outcome.resumed = True
    with arena.run(plan.command, plan.ranks, plan.secure) as again:
        for rank in range(plan.ranks):
            again.start(rank, resume=run.saved)
        again.wait(HARD_LIMIT)
        codes = [rank.code for rank in again.ranks.values()]
        if codes != [0] * plan.ranks:
            outcome.faults.append(f"the resumed run ended with {codes}")
            outcome.complaints |= {f"resumed {name}": said for name, said in again.complaints().items()}
        elif again.result() != calm.result:
            outcome.faults.append("the resumed run differs from one that never stopped")


def named(complaint: str) -> set[int]:
    """The ranks that an error says are lost; where it says so of none, those that it names."""
    lost = re.findall(r"\brank,? (\d+),? is lost", complaint)
    return {int(number) for number in lost or re.findall(r"\brank (\d+)", complaint)}


def speech(stranger: str, seed: int) -> bytes:
    """What a stranger says: noise, a request of a web browser, or a greeting of ZeroMQ's and a message of nonsense."""
    noise = random.Random(seed).randbytes(300)
    if stranger == "a web browser":
        return b"GET / HTTP/1.1\r\nHost: purine\r\n\r\n"
    if stranger == "ZeroMQ":
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
        ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER" + b"\x08Identity" + bytes(4)
        return greeting + b"\x04" + bytes([len(ready)]) + ready + b"\x00" + bytes([200]) + noise[:200]
    return noise
