"""What a case must give, and what every blob holds on the way.

The expected entries with their bounds are `make_case`'s. Beside them goes what the serial executor finds and leaves in
every blob, from which a part of the graph can be fed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from purine_ref.conformance.cases.building import everywhere
from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.making import make_case
from purine_ref.errors import GraphError, PurineError
from purine_ref.executors import Serial
from purine_ref.operation import Array

Values = dict[str, Array]
"""Arrays by blob name."""


class Unjudged(PurineError):
    """A case has no expected values that a port could be held to."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A case with its expected entries, and for each iteration what blobs held: sources `before` the run, all `after`.

    Blobs that were overwritten in the run are not among the latter.
    """

    case: Case
    before: tuple[Values, ...]
    after: tuple[Values, ...]


def solve(case: Case) -> Solved:
    """Give a case the entries that it should have, whatever it had.

    Raises Unjudged, NotImplementedError for an operation without bounds, what executors raise.
    """
    before, after = _run(case)
    facts = {"name": case.name, "about": case.about, "seed": case.seed, "schedule": case.schedule}
    try:
        made = make_case(case.graph, feeds=case.feeds, initial=case.initial, **facts)  # type: ignore[arg-type]
    except GraphError as error:
        raise Unjudged(str(error)) from None
    return Solved(made, tuple(before), tuple(after))


def _run(case: Case) -> tuple[list[Values], list[Values]]:
    """What sources hold before each iteration, and all blobs after it, before pairs are exchanged."""
    before: list[Values] = []
    after: list[Values] = []
    with Serial(case.graph, seed=case.seed, devices=everywhere) as serial:
        serial.feed(dict(case.initial))
        for feeds in case.feeds:
            serial.feed(dict(feeds))
            before.append({b.name: serial.fetch(b.name) for b in case.graph.blobs if not b.producers})
            serial.run_async()
            serial.sync(commit=False)  # until then new values have names of their own
            kept = [blob.name for blob in case.graph.blobs if blob not in serial.plan.lost]
            after.append({name: serial.fetch(name) for name in kept})
            serial.commit()
    return before, after


def only(case: Case, names: Collection[str]) -> Case:
    """The case with only these blobs' entries; whole where none of them has one."""
    kept = tuple(entry for entry in case.expected if entry.blob in names)
    return replace(case, expected=kept or case.expected)
