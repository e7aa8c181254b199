"""How the C library deals with memory that was freed, for the chunks of arrays, which come and go.

ZeroMQ allocates each chunk when it comes, and frees it when it was taken; a sender allocates one for each that it
copies. glibc gives pieces of that size back to the system at once and asks for them again, and the system clears every
page of them again, which takes as long as all the rest. So a process that joins has glibc keep some.
"""

from __future__ import annotations

import ctypes
import functools

from purine_ref.transports.zeromq.wire import CHUNK

KEPT = 2**26
"""Bytes that may lie free at the end of a heap before they are given back; glibc's own limit is 128 KiB."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of `mallopt`."""


@functools.cache
def keep_freed_chunks() -> None:
    """Have the C library keep what is freed of chunks, for the whole process, once; larger pieces go back as before.

    Does nothing where it is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, 2 * CHUNK)
