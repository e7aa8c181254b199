"""What an example's graph is fed, step by step: a function of the example and of what the serial executor holds.

In exact mode (rule R10) every float is a small integer, parameters are a few -1 and 1 in each row, histories a few
even numbers, and the learning rate is 1. Every step has its certificate. Where exactness runs out after an update,
since each layer multiplies, the step starts from fresh parameters. Otherwise inputs are Gaussian, labels are drawn, and
parameters keep their initial values.
"""

from __future__ import annotations

import numpy as np

from purine_ref.conformance.exact import certify
from purine_ref.conformance.examples import Feeding
from purine_ref.errors import OperatorError
from purine_ref.executors import Executor
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.optim import RATE

LINKS = (3, 2, 1)
"""How many weights of a row are not 0, on average: fewer where that is not exact."""

LARGEST = 2
"""Inputs and targets are integers up to this in exact mode."""

LEARNING_RATE = 0.001
"""The rate where sums are not exact."""


class Feeds:
    """The feeds of `graph` by `feeding`. Changing state: none; each step is drawn anew."""

    def __init__(self, graph: Graph, feeding: Feeding) -> None:
        self._graph = graph
        self._feeding = feeding
        self._sources = [blob for blob in graph.blobs if not blob.producers and blob.view is None]

    def __call__(self, step: int, serial: Executor) -> dict[str, Array]:
        """What to feed at `step`, by name; `serial` holds what the step before has left.

        Raises OperatorError when no feed of an exact example is exact, saying what is not.
        """
        if not self._feeding.exact:
            return self._rounding(step)
        fed = {blob.name: self._integers(blob, step) for blob in self._sources if not blob.persistent}
        if step > 0:
            held = {blob.name: serial.fetch(blob.name) for blob in self._sources if blob.persistent}
            if certify(self._graph, {**held, **fed}, seed=self._feeding.seed).exact:
                return fed
        problem = ""
        for links in LINKS:
            start = {blob.name: self._start(blob, step, links) for blob in self._sources if blob.persistent}
            certificate = certify(self._graph, {**start, **fed}, seed=self._feeding.seed)
            if certificate.exact:
                return {**start, **fed}
            problem = certificate.problems[0]
        raise OperatorError(f"graph {self._graph.name!r} cannot be run exactly: {problem}")

    def _integers(self, blob: Blob, step: int) -> Array:
        """Small integers for a blob that is fed at every step; the rate is 1."""
        if blob.name == RATE:
            return np.ones((), blob.dtype)
        drawn = self._rng(blob, step).integers(-LARGEST, LARGEST + 1, blob.shape)
        return self._thinned(blob, drawn.astype(blob.dtype))

    def _start(self, blob: Blob, step: int, links: int) -> Array:
        """A parameter's or a history's fresh values."""
        rng = self._rng(blob, step)
        signs = rng.integers(0, 2, blob.shape) * 2 - 1
        row = blob.tensor.size / max(1, blob.shape[0]) if blob.shape else 1
        scale, share = (1, links / row) if blob in self._graph.parameters else (2, 0.2)
        return self._thinned(blob, (scale * signs * (rng.random(blob.shape) < share)).astype(blob.dtype))

    def _rounding(self, step: int) -> dict[str, Array]:
        """Inputs and labels of a step; parameters only where they are to be zeros."""
        fed = {}
        for blob in self._sources:
            if blob.persistent:
                if step == 0 and blob.name in self._feeding.zeros:
                    fed[blob.name] = np.zeros(blob.shape, blob.dtype)
            elif blob.name == RATE:
                fed[blob.name] = np.array(LEARNING_RATE, blob.dtype)
            elif blob.tensor.is_float:
                drawn = self._rng(blob, step).standard_normal(blob.shape)
                fed[blob.name] = self._thinned(blob, drawn.astype(blob.dtype))
            else:
                fed[blob.name] = self._rng(blob, step).integers(0, _classes(blob), blob.shape)
        return fed

    def _thinned(self, blob: Blob, values: Array) -> Array:
        """Zeros but for as many elements as the feeding leaves."""
        if blob.name in self._feeding.zeros:
            return np.zeros_like(values)
        if 0 <= self._feeding.most < values.size:
            order = np.random.default_rng([self._feeding.seed, blob.tensor.size]).permutation(values.size)
            values.reshape(-1)[order[self._feeding.most :]] = 0
        return values

    def _rng(self, blob: Blob, step: int) -> np.random.Generator:
        """By the blob's name, so that what is drawn for it does not depend on what else the graph has."""
        return np.random.default_rng([self._feeding.seed, step, *blob.name.encode()])


def _classes(label: Blob) -> int:
    """The number of classes among which a label chooses: axis 1 of the logits that a loss reads with it."""
    return label.consumers[0][0].inputs[-2].shape[1]
