"""From the lines of a trace file to rows of integers, a bounded part at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from purine_ref._fast import lines as line_reader
from purine_ref._fast.events import MOST_IN_LINE, Names
from purine_ref.errors import Refused

FORMAT = "purine-trace/1"
"""The format that is read and written."""

PART = 1 << 20
"""Bytes that are read at once."""

HEADER = json.dumps({"format": FORMAT})


@dataclass(frozen=True, slots=True)
class Part:
    """Events in order: their rows, their lines, and the number of the first line in the file, counted from 1."""

    rows: Any
    lines: list[bytes]
    first: int


class TraceReader:
    """Reads one trace. `cut` is set when the file ended within a line, which is left out; `empty`, when it had no byte.

    Raises Refused, with the line's number, for what is no trace; what came before it was given out.
    """

    def __init__(self, file: IO[bytes], names: Names) -> None:
        self._file = file
        self._names = names
        self._rest = b""
        self.cut = False
        self.empty = True

    def parts(self) -> Iterator[Part]:
        """The events, as long as there are any."""
        number = 1
        while lines := self._lines(number):
            if number == 1:
                _check_header(lines.pop(0))
                number = 2
            rows = np.empty((len(lines), 6), np.int64)
            try:
                line_reader.encode_lines(lines, self._names, rows)
            except ValueError as error:
                words, bad = error.args
                if bad:
                    yield Part(rows[:bad], lines[:bad], number)
                raise Refused(f"line {number + bad}: {words}") from None
            yield Part(rows, lines, number)
            number += len(lines)

    def _lines(self, number: int) -> list[bytes]:
        """The next whole lines, without their ends; none at the end of the file."""
        lines: list[bytes] = []
        while not lines and (data := self._file.read(PART)):
            self.empty = False
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not lines:
                self._require_short(number)
        if not lines:
            self._require_short(number)
            self.cut = bool(self._rest)
        return lines

    def _require_short(self, number: int) -> None:
        if len(self._rest) >= MOST_IN_LINE:
            raise Refused(f"line {number}: longer than {MOST_IN_LINE} bytes")


def _check_header(line: bytes) -> None:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"line 1: not JSON: {error}") from None
    if header != json.loads(HEADER):
        raise Refused(f"line 1: expected {HEADER}, got {line[:200]!r}")
