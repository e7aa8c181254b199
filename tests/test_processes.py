"""Runs and the process around them: interrupts from the keyboard, exits, forks. Each case is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hooks import WATCH, slowness

PRELUDE = """
import os, signal, socket, sys, threading
import numpy as np
sys.path.insert(0, {tests!r})
from hooks import Call, call
from purine_ref.executors import Serial, Threaded
from purine_ref.graph import Graph
from purine_ref.ops import Linear

def say(text):
    print(text, flush=True)
"""


def script(body: str) -> list[str]:
    """The command that runs `body` after the prelude."""
    tests = str(Path(__file__).parent)
    return [sys.executable, "-P", "-c", PRELUDE.format(tests=tests) + textwrap.dedent(body)]


@contextmanager
def process(body: str) -> Iterator[subprocess.Popen[str]]:
    """`body` in a process group of its own; afterwards nothing of the group may be left."""
    started = subprocess.Popen(script(body), stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield started
        started.communicate(timeout=WATCH)
        with pytest.raises(ProcessLookupError):  # no orphan
            os.killpg(started.pid, 0)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()


def line(started: subprocess.Popen[str]) -> str:
    """The next line that the process prints."""
    assert started.stdout is not None
    return started.stdout.readline().strip()


TRIES = 3
"""How often a time limit is tried: a busy machine may hold up any process, and what really waits does so every time."""

LONG = {
    "interruptible": "threading.Event().wait(60)",
    "receiving": "socket.socketpair()[0].recv(1)",
}


@pytest.mark.parametrize("executor", ["Serial(graph)", "Threaded(graph, threads=2)"])
@pytest.mark.parametrize("wait", LONG)
def test_sc_12_an_interrupt_ends_a_run_and_the_process(executor: str, wait: str) -> None:
    """KeyboardInterrupt within 2 s, the queued operator not started, the process gone within 5 s with code 130."""
    body = f"""
    pair = socket.socketpair()
    def long():
        say("long")
        {LONG[wait].replace("socket.socketpair()", "pair")}
    graph = Graph("ctrl-c")
    call(graph, "queued", [call(graph, "long", [], long)], lambda: say("queued"))
    try:
        with {executor} as run:
            try:
                run.run()
            except KeyboardInterrupt:
                say("interrupted")
                raise
    except KeyboardInterrupt:
        sys.exit(130)
    """

    def tried() -> bool:
        with process(body) as started:
            assert line(started) == "long"
            begun = time.perf_counter()
            started.send_signal(signal.SIGINT)
            assert line(started) == "interrupted"
            said = time.perf_counter()
            assert started.wait(WATCH) == 130
            ended = time.perf_counter()
            assert line(started) == ""
        slow = slowness()
        return said - begun < 2 * slow and ended - begun < 5 * slow

    assert any(tried() for _ in range(TRIES))


def test_sc_12_an_interrupt_that_nobody_catches_ends_the_process_by_its_signal() -> None:
    body = """
    graph = Graph("ctrl-c")
    call(graph, "long", [], lambda: (say("long"), threading.Event().wait(60)))
    Threaded(graph, threads=2).run()
    """

    def tried() -> bool:
        with process("sys.stderr = open(os.devnull, 'w')\n" + textwrap.dedent(body)) as started:
            assert line(started) == "long"
            begun = time.perf_counter()
            started.send_signal(signal.SIGINT)
            assert started.wait(WATCH) == -signal.SIGINT
            return time.perf_counter() - begun < 5 * slowness()

    assert any(tried() for _ in range(TRIES))


def test_sc_12_an_exit_while_operators_are_queued() -> None:
    body = """
    graph = Graph("exit")
    entered = threading.Event()
    def long():
        entered.set()
        threading.Event().wait(60)
    call(graph, "queued", [call(graph, "long", [], long)], lambda: say("queued"))
    executor = Threaded(graph, threads=2)
    executor.run_async()
    entered.wait(30)
    say("exit")
    sys.exit(3)
    """

    def tried() -> bool:
        with process(body) as started:
            assert line(started) == "exit"
            begun = time.perf_counter()
            assert started.wait(WATCH) == 3
            ended = time.perf_counter()
            assert line(started) == ""
        return ended - begun < 5 * slowness()

    assert any(tried() for _ in range(TRIES))


@pytest.mark.parametrize("size", [8, 512])
def test_sc_13_a_fork_while_workers_wait(size: int) -> None:
    """In the child the old executor refuses at once, and a new one works, also where it multiplies large matrices."""
    body = f"""
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads: that is the case here
    size = {size}
    graph = Graph("forked")
    x, w = graph.blob("x", (size, size)), graph.blob("w", (size, size))
    graph.apply(Linear(), [x, w], "y")
    values = np.random.default_rng(0).standard_normal((2, size, size)).astype(np.float32)

    def product(executor):
        executor.feed(x=values[0], w=values[1])
        executor.run()
        return executor.fetch("y")

    old = Threaded(graph, threads=4)
    expected = product(old)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        fetch, feed = lambda: old.fetch("y"), lambda: old.feed(x=values[0])
        for what in (old.run, old.run_async, old.sync, old.close, fetch, feed):
            try:
                what()
            except RuntimeError as error:
                known = str(error).replace(str(parent), "PARENT").replace(str(os.getpid()), "CHILD")
                say(known)
        with Threaded(graph, threads=4) as new:
            say(product(new).tobytes() == expected.tobytes())
        os._exit(0)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    say(product(old).tobytes() == expected.tobytes())
    old.close()
    """
    with process(body) as started:
        for what in ("run", "run", "waited for", "closed", "be fetched from", "be fed"):
            assert line(started) == (
                "executor of graph 'forked' was made in process PARENT and used after fork in CHILD "
                f"({what}): make a new executor in the child"
            )
        assert [line(started) for _ in range(3)] == ["True", "0", "True"]
        assert started.wait(30) == 0
