"""Ports that misbehave: `python bad_port.py HOW [FILE]` speaks purine-drive/1 but for what HOW says.

It knows no graph: it answers every request, and `fetch` writes a float64 array of one zero.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

HELLO = {"protocol": "purine-drive/1", "name": "bad", "version": "0", "operations": ["Identity"], "dtypes": ["float64"]}
ONE_ZERO = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n"


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def reply(seq: int, **more: object) -> None:
    write(json.dumps({"seq": seq, "ok": True, **more}).encode() + b"\n")


def error(seq: int, kind: object, message: object = "no") -> None:
    write(json.dumps({"seq": seq, "ok": False, "error": {"kind": kind, "message": message}}).encode() + b"\n")


def child(file: str) -> None:
    """Start a process that outlives this one unless somebody kills it; its number goes to a file."""
    started = subprocess.Popen([sys.executable, "-P", "-c", "import signal; signal.pause()"])
    with open(file, "w") as out:
        out.write(str(started.pid))


def at_run(how: str, seq: int) -> None:
    """What goes wrong at the request `run`."""
    if how == "hang":
        signal.pause()
    elif how == "garbage":
        write(b"hello, world\n")
    elif how == "bytes":
        write(b"\xff\xfe\n")
    elif how == "deep":
        write(b"[" * 100_000 + b"\n")
    elif how == "list":
        write(b"[1]\n")
    elif how == "nan":
        write(b'{"seq": 4, "ok": true, "x": NaN}\n')
    elif how == "no-ok":
        write(b'{"seq": 4}\n')
    elif how == "long":
        write(b'"' + b"x" * (1 << 21) + b'"\n')
    elif how == "endless":
        while True:
            write(b"x" * 65536)
    elif how == "seq":
        reply(seq - 1)
    elif how == "twice":
        reply(seq)
        reply(seq)
    elif how == "half":
        write(b'{"seq": 4, "o')
        signal.pause()
    elif how == "exit":
        sys.stderr.write("first\nout of \x1b[31mideas\n")
        sys.exit(7)
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "closed":
        os.close(1)
        signal.pause()
    elif how in ("definite", "indefinite", "unsupported"):
        error(seq, how, "no \x1b[31m luck\n")
    elif how == "error-kind":
        error(seq, "maybe")
    elif how == "error-text":
        error(seq, "definite", None)
    elif how == "flood":
        for _ in range(100):
            sys.stderr.write("x" * 10_000 + "\n")
        reply(seq)
    else:
        reply(seq)


def at_fetch(how: str, seq: int, file: str) -> None:
    """What goes wrong at the request `fetch`."""
    if how == "no-file":
        pass
    elif how == "short":
        with open(file, "wb") as out:
            out.write(ONE_ZERO)
    elif how == "pickle":
        with open(file, "wb") as out:
            out.write(ONE_ZERO.replace(b"<f8", b"|O ") + b"cos\nsystem\n.")
    else:
        with open(file, "wb") as out:
            out.write(ONE_ZERO + bytes(8))
    reply(seq)


def answer(how: str, request: dict[str, Any]) -> None:
    do, seq = request["do"], request["seq"]
    if do == "hello":
        changed = {"protocol": "purine-drive/9"} if how == "protocol" else {}
        changed |= {"operations": "all"} if how == "operations" else {}
        changed |= {"dtypes": ["float16"]} if how == "dtypes" else {}
        reply(seq, **{**HELLO, **changed, "workers": 0 if how == "workers" else 1})
    elif do == "run":
        at_run(how, seq)
    elif do == "fetch":
        at_fetch(how, seq, request["file"])
    elif do == "stop" and how == "stop-hang":
        reply(seq)
        signal.pause()
    elif do == "stop" and how == "stop-code":
        reply(seq)
        sys.exit(1)
    elif do == "stop" and how == "stop-more":
        write(json.dumps({"seq": seq, "ok": True}).encode() + b"\nbye\n")
        sys.exit(0)
    else:
        reply(seq)
        if do == "stop":
            sys.exit(0)


def one_shot(how: str, arguments: list[str]) -> None:
    """The one-shot form: without a result, but with the exit code that HOW is."""
    if arguments == ["--hello"]:
        write(json.dumps(HELLO).encode() + b"\n")
        sys.exit(0)
    if how == "hang":
        signal.pause()
    sys.exit(int(how))


if __name__ == "__main__":
    chosen = sys.argv[1]
    if len(sys.argv) > 2 and chosen != "child":
        one_shot(chosen, sys.argv[2:])
    if chosen == "child":
        child(sys.argv[2])
    if chosen == "mute":
        signal.pause()
    if chosen == "gone":
        sys.exit(3)
    for line in sys.stdin.buffer:
        answer(chosen, json.loads(line))
