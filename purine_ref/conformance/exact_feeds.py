"""What to feed the exact form of a network, step by step, so that every partial sum is exact (rule R10).

Parameters start as a few -1, 0, 1 in each row, histories as a few even numbers, images as 0 and 1. The target is what
the network gives, but for a few elements that are off by one, so that gradients, and with them the updates, stay small.
Exactness still runs out after some updates, as each layer multiplies; then the step starts from fresh parameters. No
step is given out without its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from purine_ref.conformance.exact import certify, exact_feeds
from purine_ref.conformance.stand_ins import TARGET
from purine_ref.errors import OperatorError
from purine_ref.executors import Executor, Memory, Serial
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.optim import RATE
from purine_ref.traversal import prune

LINKS = (1, 2, 3)
"""How many weights of a row are not 0, on average: fresh starts take turns, and take fewer where that is not exact."""

CHANGES = 4
"""How many elements of the target differ from what the network gives."""


class ExactFeeds:
    """Feeds for the exact form `graph`; `images(step)` gives the batch of each step."""

    def __init__(self, graph: Graph, images: Callable[[int], Array], *, seed: int = 0) -> None:
        self._graph = graph
        self._images = images
        self._seed = seed
        self._scores = graph.op("loss").inputs[0]
        self._forward = prune(graph, [self._scores])
        self._persistent = [blob.name for blob in graph.blobs if blob.persistent and not blob.producers]

    def __call__(self, step: int, serial: Executor) -> dict[str, Array]:
        """What to feed all executors at `step`: source blobs, with fresh parameters where it must start anew.

        Raises OperatorError when no start is exact, saying what is not.
        """
        if step > 0:
            held = {name: serial.fetch(name) for name in self._persistent}
            fed = self._fed(step, held)
            if certify(self._graph, {**held, **fed}, seed=self._seed).exact:
                return fed
        problem = ""
        most = LINKS[step % len(LINKS)]
        for links in range(most, 0, -1):
            start = self._start(step, links)
            fed = {**start, **self._fed(step, start)}
            certificate = certify(self._graph, fed, seed=self._seed)
            if certificate.exact:
                return fed
            problem = certificate.problems[0]
        raise OperatorError(f"graph {self._graph.name!r} cannot be run exactly: {problem}")

    def _start(self, step: int, links: int) -> dict[str, Array]:
        """Fresh parameters and histories."""
        values = exact_feeds(self._graph, seed=self._seed + step, links=links)
        rng = np.random.default_rng([self._seed, step, links])
        histories = [current.name for current, _ in self._graph.pairs if current.name not in self._graph.multipliers]
        for name in histories:  # in the order of the graph, so that every process draws the same
            shape, dtype = values[name].shape, values[name].dtype
            values[name] = (2 * rng.integers(-1, 2, shape) * (rng.random(shape) < 0.05)).astype(dtype)
        return {name: values[name] for name in self._persistent}

    def _fed(self, step: int, held: Mapping[str, Array]) -> dict[str, Array]:
        """Images of 0 and 1, the target for the parameters in `held`, and rate 1."""
        images = self._images(step)
        x = (images > np.median(images)).astype(images.dtype)
        memory = Memory()
        for blob in self._forward.blobs:
            if blob.persistent:
                memory.put(blob.name, blob.tensor, held[blob.name])
        with Serial(self._forward, seed=self._seed, memory=memory) as forward:
            forward.iteration = step
            forward.feed(x=x)
            forward.run()
            target = forward.fetch(self._scores.name)
        rng = np.random.default_rng([self._seed, step])
        chosen = rng.choice(target.size, size=min(CHANGES, target.size), replace=False)
        target.reshape(-1)[chosen] += rng.integers(0, 2, chosen.size) * 2 - 1
        return {"x": x, TARGET: target, RATE: np.ones((), target.dtype)}
