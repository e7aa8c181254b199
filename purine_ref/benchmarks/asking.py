"""Questions to a process, a line of JSON each, and its answers: the side that asks, and the side that is asked.

A question is `{"ask": NAME, ...}`, an answer `{"answer": ...}` or `{"error": TEXT}`. Nothing is unpickled. What
libraries print goes to the standard error. A process that is asked ends with its input, and is a session of its own:
Ctrl-C reaches the parent alone, which ends its children.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PATIENCE = 900
"""Seconds that a process may take for one answer."""

_ROOT = Path(__file__).parents[2]
"""The folder that the package lies in: a child must measure the same code, wherever that was imported from."""


class Asked:
    """A process that answers. `name` is for messages, such as `the process of torch`. Raises RuntimeError, with the
    process's own words, for what fails in it."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process

    def ask(self, what: str, **facts: object) -> Any:
        """The answer to one question."""
        self.tell(what, **facts)
        return self.answer(what)

    def tell(self, what: str, **facts: object) -> None:
        """Ask, and leave the answer for `answer`: so that several processes do what they must do together."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"ask": what, **facts}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._name} ended before it was asked for {what}") from None

    def answer(self, what: str) -> Any:
        """The answer to what was told."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise RuntimeError(f"{self._name} did not answer within {PATIENCE} s when asked for {what}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended without an answer when asked for {what}: too little memory?")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name}, asked for {what}: {answer['error']}")
        return answer["answer"]

    def end(self) -> None:
        """End the process, and what it has started, at once: it holds nothing that would have to be saved."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def start(module: str, argument: object, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A process that runs a module of this package, with an argument as JSON, by a command that may stand before it."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [*before, sys.executable, "-P", "-m", f"purine_ref.{module}", json.dumps(argument)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def serve(make: Callable[[Any], Mapping[str, Callable[..., object]]], argument: object) -> None:
    """Answer questions until the input ends. `make` has, for the argument, the answers by their names; where it fails,
    that is the answer to the first question, and the last."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the way of the answers is theirs alone
    try:
        answers: Mapping[str, Callable[..., object]] = make(argument)
    except Exception as error:
        sys.stdin.readline()
        _say(lines, {"error": _words(error)})
        return
    for line in sys.stdin:
        question = json.loads(line)
        name = question.pop("ask")
        try:
            assert name in answers
            answer = {"answer": answers[name](**question)}
        except Exception as error:
            answer = {"error": _words(error)}
        _say(lines, answer)


def _words(error: Exception) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def _say(lines: IO[str], answer: object) -> None:
    try:
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
    except BrokenPipeError:
        os._exit(1)  # the parent is gone, and nobody is left to be told
