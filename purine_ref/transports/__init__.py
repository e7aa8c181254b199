"""Transports: one array from one rank to another, by (peer, tag, iteration).

Every rank has a `Transport` of its own. It is made knowing which messages may come in: a *route* is a pair (peer, tag),
and each has one shape and one dtype, which the rank knows from its graph. Along a route one message may go for each
iteration, and iterations rise. Messages on different routes overtake each other freely, and one of a later iteration
may arrive before it is expected: it waits in a buffer with room for a bounded number from each peer.

A rank says at the start of a run which messages it expects, and is called back when each is there; nothing here
blocks a receiver. `suites/transports.py` among the tests is this contract as a suite, for every implementation.
"""

from __future__ import annotations

from purine_ref.transports.inbox import EARLY, Inbox, Route
from purine_ref.transports.inproc import Hub, InProcess
from purine_ref.transports.local import LocalWorld, local_worlds
from purine_ref.transports.transport import Transport
from purine_ref.transports.world import Opening, Words, World, current, difference, joined

__all__ = [
    "EARLY",
    "Hub",
    "InProcess",
    "Inbox",
    "LocalWorld",
    "Opening",
    "Route",
    "Transport",
    "Words",
    "World",
    "current",
    "difference",
    "joined",
    "local_worlds",
]
