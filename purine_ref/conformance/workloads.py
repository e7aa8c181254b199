"""What `verify` runs: training steps of a model by name, on the embedded digits or on drawn images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from purine_ref.conformance.exact_feeds import ExactFeeds
from purine_ref.conformance.stand_ins import exact_form
from purine_ref.conformance.verify import Workload
from purine_ref.data import BatchOrder, load_digits
from purine_ref.graph import Graph
from purine_ref.models import MODELS, training_graph
from purine_ref.operation import Array
from purine_ref.optim import RATE

LEARNING_RATE = 0.05

DIGITS = (1, 8, 8)
"""The shape of an embedded image."""


def training_workload(model: str, dtype: str, batch: int, steps: int, seed: int) -> Workload:
    """Training steps of `model`. Raises ValueError for a batch larger than the images there are."""
    graph = training_graph(model, batch, dtype)
    images = _images(graph, dtype, batch, seed)
    rate = np.array(LEARNING_RATE, dtype)

    def feeds(step: int) -> dict[str, Array]:
        """Images and labels, if the graph has them, and the learning rate."""
        x, label = images(step)
        fed = {"x": x, "label": label, RATE: rate}
        return {name: array for name, array in fed.items() if name in graph}

    return Workload(model, dtype, graph, feeds, steps)


def exact_workload(model: str, dtype: str, batch: int, steps: int, seed: int) -> Workload:
    """Training steps of the exact form of `model` (rule R10). Raises ValueError as `training_workload`."""
    graph = exact_form(MODELS[model](batch, dtype=dtype))
    images = _images(graph, dtype, batch, seed)
    feeds = ExactFeeds(graph, lambda step: images(step)[0], seed=seed)
    return Workload(model, dtype, graph, lambda step: {}, steps, feeds)


def _images(graph: Graph, dtype: str, batch: int, seed: int) -> Callable[[int], tuple[Array, Array]]:
    """From a step to images and labels: of the digits where the graph takes images of their size, else drawn."""
    x = graph["x"]
    if x.shape[1:] != DIGITS:
        return lambda step: _drawn(x.shape, dtype, seed, step)
    data = load_digits(dtype)
    if batch > len(data.train_images):
        raise ValueError(f"there are {len(data.train_images)} training images, got {batch}")
    order = BatchOrder(len(data.train_images), batch, seed, drop_last=True)

    def chosen(step: int) -> tuple[Array, Array]:
        """The batch of a step, in the order of `BatchOrder`."""
        indices = order.batch_indices(*order.place(step))
        return data.train_images[indices], data.train_labels[indices]

    return chosen


def _drawn(shape: tuple[int, ...], dtype: str, seed: int, step: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([seed, step])
    return rng.standard_normal(shape).astype(dtype), rng.integers(0, 10, shape[0])
