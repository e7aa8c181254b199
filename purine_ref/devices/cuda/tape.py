"""Recording on GPUs: an iteration becomes a CUDA graph, by capturing what goes into streams.

The first stream begins the capture, others take part once they have waited for a mark of one that does, and the first
ends it. Memory that is asked for meanwhile comes from a pool of the recording's own, since the graph keeps using it.
What changes from one replay to the next lies in page-locked memory, which the graph copies to the GPU again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from purine_ref.devices.cuda.streams import CudaStream
from purine_ref.devices.work import Work
from purine_ref.tensor import Location


class TapeStream(CudaStream):
    """A stream that is captured. An error of what is launched is raised at once, and ends the recording."""

    captured = True

    def __init__(self, pool: Any, *given: Any) -> None:
        super().__init__(*given)
        self._pool = pool

    def launch(self, work: Work) -> None:
        """Capture what `compute` puts in. Raises what it raises."""
        self.put(work)

    @contextmanager
    def current(self) -> Iterator[CudaStream]:
        """As of any stream, with memory from the recording's pool."""
        with super().current(), self._module.cuda.using_allocator(self._pool.malloc):
            yield self


class CudaTape:
    """One recording.

    `opened(pool, location, name)` makes a stream that is captured, `real` finds the machine's stream of a place, and
    `live` gives all that are open.
    """

    def __init__(
        self,
        cupy: Any,
        opened: Callable[[Any, Location, str], TapeStream],
        real: Callable[[Location, str], CudaStream],
        live: Callable[[], list[CudaStream]],
    ) -> None:
        self._pool = cupy.cuda.MemoryPool()
        self._opened = opened
        self._real = real
        self._live = live
        self._streams: list[TapeStream] = []
        self._first: CudaStream | None = None
        self._graph: Any = None

    def open(self, location: Location, name: str) -> TapeStream:
        """A stream of the recording. The first begins it; every other must wait for a mark of the first at once."""
        stream = self._opened(self._pool, location, name)
        if self._first is None:
            self._first = self._real(location, name)
            with stream.current():
                stream.cupy.begin_capture()
        self._streams.append(stream)
        return stream

    def end(self) -> None:
        """The recording is complete: the first stream has waited for all others."""
        if self._streams:
            with self._streams[0].current():
                self._graph = self._streams[0].cupy.end_capture()

    def discard(self) -> None:
        """End the capture, whatever became of it, and keep nothing."""
        try:
            if self._graph is None:
                self.end()
        except RuntimeError:
            pass  # it was invalid already, which is why it is discarded
        self.close()

    def replay(self) -> None:
        """Launch the graph behind all that is in the machine's streams, and have these go on behind it."""
        first = self._first
        if first is None:
            return
        others = [stream for stream in self._live() if stream is not first]
        for stream in others:
            first.wait(stream.mark())
        with first.current():
            self._graph.launch(stream=first.cupy)
        first.refusals += [refusal for stream in self._streams for refusal in stream.refusals]
        end = first.mark()
        for stream in others:
            stream.wait(end)

    def close(self) -> None:
        """Let go of the graph, once the last replay has ended, and then of the memory that it used."""
        if self._first is not None and self._graph is not None:
            self._first.settle()
        self._graph = None
        for stream in self._streams:
            stream.close()
        self._streams.clear()
