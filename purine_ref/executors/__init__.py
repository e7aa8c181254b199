"""Executors: who calls `schedule`, and nothing more. All give the same bits (rule R8).

`Serial` is the reference, `Threaded` the event-driven dispatcher, `Simulated` has virtual time, `Captured` replays what
accelerators did once, `Ranks` runs all ranks of a graph in one process, and `Hosts` one of them, beside the others.
They share binding, states and failures through `base.Executor`.
"""

from purine_ref.executors.base import Executor
from purine_ref.executors.captured import Captured
from purine_ref.executors.hosts import Hosts
from purine_ref.executors.memory import Memory
from purine_ref.executors.observer import Observer
from purine_ref.executors.ranks import Ranks
from purine_ref.executors.serial import Serial
from purine_ref.executors.simulated import Rates, Simulated, Span, Timeline, simulate
from purine_ref.executors.threaded import Threaded

__all__ = [
    "Captured",
    "Executor",
    "Hosts",
    "Memory",
    "Observer",
    "Ranks",
    "Rates",
    "Serial",
    "Simulated",
    "Span",
    "Threaded",
    "Timeline",
    "simulate",
]
