"""One rank of a scheme's run, as a process of its own: prints a digest of every piece after every step.

`hosts_program.py zeromq RANK SIZE ADDRESS KEYS SCHEME...`, where KEYS is a folder or -; rank 0 first prints the address
that it has bound. Or under mpiexec `hosts_program.py mpi SCHEME...`. A scheme may have `exact ` before it. The tests
import `digests` for the same in one process. It needs nothing but the package.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from purine_ref.conformance import Session, exact_workload, parse_scheme, training_workload
from purine_ref.conformance.verify import comparable
from purine_ref.executors import Serial
from purine_ref.transports import World, joined

MODEL = "lenet-digits"

BATCH = 7
"""A batch that nothing divides."""

STEPS = 3


def digests(text: str) -> list[list[str]]:
    """[step, serial blob, part of it, digest of the bits] of all pieces of all blobs, sorted; equal ones once.

    Where replicas are at one place they are one piece: how many there are is no part of it.
    """
    exact = text.startswith("exact ")
    scheme = parse_scheme(text.removeprefix("exact "))
    workload = (exact_workload if exact else training_workload)(MODEL, "float64", BATCH, STEPS, 1)
    found = set()
    with Serial(workload.graph, seed=1) as serial:
        opened = scheme.open(workload.graph, 1)
        with opened if isinstance(opened, Session) else Session(opened, workload.graph) as session:
            for step in range(STEPS):
                arrays = workload.exact_feeds(step, serial) if workload.exact_feeds else workload.feeds(step)
                for side in (serial, session):
                    side.feed(arrays)
                    side.run()
                for name in comparable(serial):
                    for piece, array in session.pieces(name):
                        bits = np.ascontiguousarray(array).tobytes()
                        found.add((str(step), name, str(piece.box), hashlib.sha256(bits).hexdigest()[:16]))
    return [list(row) for row in sorted(found)]


def main(arguments: Sequence[str]) -> None:
    """Join, run every scheme, and leave."""
    world, schemes = _join(arguments)
    with joined(world):
        for text in schemes:
            _say({"scheme": text, "rank": world.rank, "digests": digests(text)})
    world.close()


def _join(arguments: Sequence[str]) -> tuple[World, Sequence[str]]:
    if arguments[0] == "mpi":
        from purine_ref.transports.mpi import join_mpi  # only there is MPI needed

        return join_mpi(), arguments[1:]
    from purine_ref.transports.keys import load_keys
    from purine_ref.transports.zeromq import Joining, join

    rank, size, address, keys = arguments[1:5]
    held = None if keys == "-" else load_keys(keys)
    bound = None if int(rank) else lambda where: _say({"address": where})
    return join(Joining(int(rank), int(size), address, keys=held, bound=bound)), arguments[5:]


def _say(facts: dict[str, Any]) -> None:
    """Print one line, in one piece: under mpiexec all ranks print to one stream."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
