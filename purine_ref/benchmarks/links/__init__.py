"""Ways to bring arrays from one process to another, all behind one face, so that `bench transport` can compare them.

A link joins two ends. `sockets`, `shared`, `message` and `mpi` are the ways that others have; `own` is ours.
"""

from purine_ref.benchmarks.links.link import CONTROL, Ends, Link

__all__ = ["CONTROL", "Ends", "Link"]
