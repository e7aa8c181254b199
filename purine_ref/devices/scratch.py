"""Scratch memory: buffers that a thread uses again and again, so that a step allocates nothing large."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

_LINE = 64
"""Bytes of a cache line, where buffers begin."""


class Scratch(threading.local):
    """One thread's buffers, by slot. A buffer is good until the same thread asks for the same slot again."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._arrays: dict[tuple[str, tuple[int, ...], Any], Any] = {}  # views of the buffers, made before

    def __call__(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """A C-contiguous array of any content, in the buffer of that slot, which grows to the largest asked for."""
        key = (slot, shape, dtype)
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = self._cut(slot, shape, np.dtype(dtype))
        return found

    def _cut(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Any:
        size = math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(slot)
        if buffer is None or buffer.size < size:
            whole = np.empty(size + _LINE, np.uint8)
            start = -whole.ctypes.data % _LINE
            buffer = self._buffers[slot] = whole[start : start + size]
            self._arrays = {key: array for key, array in self._arrays.items() if key[0] != slot}
        return buffer[:size].view(dtype).reshape(shape)
