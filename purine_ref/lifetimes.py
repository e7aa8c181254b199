"""Blobs that share memory one after the other: planned once, and right for every order in which a run may go.

Without reuse every blob has memory of its own. `share_memory` gives the same bytes to blobs that live at different
times. A run has no clock, so that is said in paths: every access to the old value must come before every write of the
new one by a path of the graph, whoever runs it, on however many threads, on whatever stream.

A unit of memory is a *tenant*: a root blob with all views into it, or the buffer of a later contribution (rule R4).
Persistent blobs, and all in one memory with a blob that no operator writes, keep memory of their own, since the next
run reads them. Kept blobs may take what others have left, but nobody takes theirs. An operation that may work
`in_place` writes over its first input where that dies. What a sink reads, such as a `Send`, is never shared
afterwards: no path leads on from there.

`sharing.check_sharing` checks the result without any of this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np

from purine_ref.graph import Blob, Op
from purine_ref.packing import aligned, pack
from purine_ref.plan import Place, Plan, Sharing
from purine_ref.tensor import Location

LIMIT = 5_000
"""Operators beyond which nothing is shared: blocks of memory are compared in pairs, with a byte for each."""

Array = Any
"""A numpy array."""

_log = logging.getLogger("purine_ref")


def share_memory(plan: Plan, keep: Iterable[str] = ()) -> Plan:
    """The plan with `sharing`: offsets for all that can share memory. `lost` gains the blobs that are overwritten.

    `keep` names the blobs that can be fetched after a run, beside persistent ones and those that no operator writes.
    A graph of more than `LIMIT` operators keeps its plan as it is, with a warning in the log. Raises GraphError for a
    blob in `keep` that is not there.
    """
    kept = {plan.graph[name] for name in keep}
    if len(plan.graph.ops) > LIMIT:
        count = len(plan.graph.ops)
        _log.warning("graph %r: no memory is shared: it has %d operators, over %d", plan.graph.name, count, LIMIT)
        return plan
    root = _roots(plan)
    blocks = _blocks(plan, root, _tenants(plan, root, kept))
    offsets: dict[Place, int] = {}
    total: dict[Location, int] = {}
    over: set[Blob] = set()
    for location in dict.fromkeys(block.location for block in blocks):
        here = [block for block in blocks if block.location == location]
        follows = _follows(here)
        starts, total[location] = pack([block.bytes for block in here], ~(follows | follows.T))
        for block, start in zip(here, starts, strict=True):
            offsets.update({tenant.place: start for tenant in block.tenants})
        over |= _overwritten(here, starts, follows)
    lost = plan.lost.union(blob for blob in plan.graph.blobs if root[blob] in over)
    return replace(plan, sharing=Sharing(offsets, total), lost=lost)


def planned_bytes(plan: Plan) -> dict[Location, int]:
    """The bytes of all arrays that a run of the plan needs, shared or not, at each location."""
    total = dict(plan.sharing.bytes) if plan.sharing is not None else {}
    shared = plan.sharing.offsets if plan.sharing is not None else {}
    for blob in plan.graph.blobs:
        places = [Place(blob.index, (op.index, slot)) for op, slot in blob.producers[1:]]
        places += [] if blob in plan.views else [Place(blob.index)]
        own = blob.tensor.nbytes * sum(place not in shared for place in places)
        total[blob.location] = total.get(blob.location, 0) + own
    return total


# What comes before what ------------------------------------------------------------------------------------------


class Past:
    """What comes before what by a path, as bits of Python integers.

    An event is an operator, or the additions to a blob of several producers; its number is its place in a topological
    order. `before[event]` has a bit for each event that every run does earlier.
    """

    def __init__(self, plan: Plan) -> None:
        self.of_op = [0] * len(plan.order)
        self.of_sum: dict[Blob, int] = {}
        self.before: list[int] = []
        self._complete: dict[Blob, int] = {}  # what has happened when a blob is complete
        missing = list(plan.producers)
        for index in plan.order:
            op = plan.graph.ops[index]
            self.of_op[index] = event = self._add(op.inputs)
            for blob in op.outputs:
                self._complete[blob] = self._complete.get(blob, 0) | self.before[event] | 1 << event
                missing[blob.index] -= 1
                if missing[blob.index] == 0 and len(blob.producers) > 1:
                    self.of_sum[blob] = event = self._add([blob])
                    self._complete[blob] |= 1 << event

    def _add(self, needs: Sequence[Blob]) -> int:
        self.before.append(reduce(or_, (self._complete.get(blob, 0) for blob in needs), 0))
        return len(self.before) - 1


# Tenants ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tenant:
    """One unit of memory, of the size of `blob`. `accesses` has a bit for each event that touches it."""

    place: Place
    blob: Blob
    kept: bool = False
    accesses: int = 0
    writers: set[Op] = field(default_factory=set)
    before: int = -1
    """What comes before all of the writers; at first, without any, everything."""

    def write(self, op: Op, past: Past) -> None:
        """Count a producer."""
        event = past.of_op[op.index]
        self.writers.add(op)
        self.accesses |= 1 << event
        self.before &= past.before[event]


def _tenants(plan: Plan, root: dict[Blob, Blob], kept: set[Blob]) -> list[Tenant]:
    """All that may share memory."""
    past = Past(plan)
    alone = {root[blob] for blob in plan.graph.blobs if blob.persistent or not blob.producers}
    own = {blob: Tenant(Place(blob.index), blob) for blob in plan.graph.blobs if root[blob] is blob}
    later: list[Tenant] = []
    for blob in plan.graph.blobs:
        tenant = own[root[blob]]
        tenant.kept |= blob in kept
        for op, slot in blob.producers:
            if (op, slot) == blob.producers[0] and op not in plan.idle:
                tenant.write(op, past)
            elif op not in plan.idle:
                later.append(Tenant(Place(blob.index, (op.index, slot)), blob, accesses=1 << past.of_sum[blob]))
                later[-1].write(op, past)
        events = [past.of_op[op.index] for op, _ in blob.consumers if op not in plan.idle]
        events += [past.of_sum[blob]] if blob in past.of_sum else []
        tenant.accesses |= reduce(or_, (1 << event for event in events), 0)
    shared = [tenant for blob, tenant in own.items() if blob not in alone]
    return [tenant for tenant in [*shared, *later] if tenant.writers and tenant.blob.tensor.nbytes]


def _roots(plan: Plan) -> dict[Blob, Blob]:
    """The blob in whose memory each lies: itself, or the one that its views lead to."""
    found: dict[Blob, Blob] = {}
    for blob in plan.graph.blobs:
        chain = [blob]
        while chain[-1] in plan.views and chain[-1] not in found:
            chain.append(plan.views[chain[-1]].parent)
        found.update(dict.fromkeys(chain, found.get(chain[-1], chain[-1])))
    return found


# Blocks ----------------------------------------------------------------------------------------------------------


class _Block:
    """Tenants that take over one memory from each other in place, from the first to the last, as if they were one."""

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self.tenants = tenants
        self.location: Location = tenants[0].blob.location
        self.bytes = aligned(tenants[0].blob.tensor.nbytes)
        self.kept = tenants[-1].kept  # a kept one has no heir
        self.accesses = reduce(or_, (tenant.accesses for tenant in tenants))
        self.before = reduce(and_, (tenant.before for tenant in tenants))


def _blocks(plan: Plan, root: dict[Blob, Blob], tenants: Sequence[Tenant]) -> list[_Block]:
    heir = _heirs(plan, root, {tenant.place: tenant for tenant in tenants})
    heads = {tenant.place for tenant in tenants} - {new.place for new in heir.values()}
    chains = [[tenant] for tenant in tenants if tenant.place in heads]
    for chain in chains:
        while (new := heir.get(chain[-1].place)) is not None:
            chain.append(new)
    return [_Block(chain) for chain in chains]


def _heirs(plan: Plan, root: dict[Blob, Blob], at: dict[Place, Tenant]) -> dict[Place, Tenant]:
    """For each tenant that an operator can write over in place: what it writes.

    The operator comes after all others that touch the tenant, so there is one at most.
    """
    found: dict[Place, Tenant] = {}
    for op in plan.graph.ops:
        if not op.operation.in_place or op in plan.idle:
            continue
        x, y = op.inputs[0], op.outputs[0]
        old = at.get(Place(x.index))
        staged = y.producers[0] != (op, 0)  # then in the device's own order, even if the blob is not
        new = at.get(Place(y.index, (op.index, 0) if staged else None))
        if old is None or new is None or old.kept or new.writers != {op} or x.tensor != y.tensor:
            continue
        if (x in plan.row_major) != (y in plan.row_major and not staged):
            continue
        once = [root[blob] for blob in (*op.inputs, *op.outputs)].count(x) == 1
        if once and (old.accesses & ~new.before).bit_count() == 1:  # which is the operator's own
            found[old.place] = new
    return found


def _follows(blocks: Sequence[_Block]) -> Array:
    """Whether all that touches block j comes before all that writes block i: a matrix of booleans, at [i, j].

    A block that is kept is followed by none. Bits become arrays here, since there are as many pairs as there are.
    """
    width = max(max(block.accesses, block.before).bit_length() for block in blocks)
    events = [np.flatnonzero(_bits(block.accesses, width)) for block in blocks]
    starts = np.cumsum([0, *map(len, events[:-1])])
    flat, free = np.concatenate(events), np.array([not block.kept for block in blocks])
    follows = np.empty((len(blocks), len(blocks)), bool)
    for number, block in enumerate(blocks):
        follows[number] = np.logical_and.reduceat(_bits(block.before, width)[flat], starts) & free
    return follows


def _bits(number: int, width: int) -> Array:
    """The bits of a number as booleans, the lowest first."""
    size = -(-width // 8)
    packed = np.frombuffer(number.to_bytes(size, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little").view(bool)


def _overwritten(blocks: Sequence[_Block], starts: Sequence[int], follows: Array) -> set[Blob]:
    """The root blobs whose values are gone when a run ends: an heir has their memory, or a later block a part of it."""
    over = [tenant for block in blocks for tenant in block.tenants[:-1]]
    start = np.array(starts)
    stop = start + np.array([block.bytes for block in blocks])
    for number, block in enumerate(blocks):
        if (follows[:, number] & (start < stop[number]) & (stop > start[number])).any():
            over.append(block.tenants[-1])
    return {tenant.blob for tenant in over if tenant.place.edge is None}
