"""What glibc keeps of freed chunks, so that the system need not clear the pages of the next ones."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from purine_ref.transports.zeromq import allocation

PROGRAM = """
import ctypes, resource, sys
from purine_ref.transports.zeromq.allocation import keep_freed_chunks
from purine_ref.transports.zeromq.wire import CHUNK

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if sys.argv[1] == "keep":
    keep_freed_chunks()
for number in range(21):
    if number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    chunks = [libc.malloc(CHUNK) for _ in range(32)]
    for chunk in chunks:
        ctypes.memset(chunk, 1, CHUNK)
    for chunk in chunks:
        libc.free(chunk)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Page faults of 20 times 32 chunks that come and go, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_chunks_are_used_again() -> None:
    pages = 20 * 32 * 128
    assert faults("keep") < pages / 20
    assert faults("leave") > pages / 2


def test_other_c_libraries_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda name: object())
    allocation.keep_freed_chunks.__wrapped__()
