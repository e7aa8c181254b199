"""Before a step is timed: do all contenders compute the same? Judged by the bounds that the oracle derives.

Each side runs three steps on a few images in float64. The first loss is of the forward pass alone; the second comes
from parameters that the first step's gradients have updated, and the third from an update with momentum, so whatever is
wrong in a gradient or an update shows: float64 leaves no room for it to hide, and rounding hardly ever turns a decision
(a kink). In float32, in which steps are timed, the first
loss is compared too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from purine_ref import models
from purine_ref.benchmarks.contenders import Contender
from purine_ref.benchmarks.side import Array, data, initial_values, network
from purine_ref.conformance.bounds import Estimate, spread
from purine_ref.devices import cpu_devices
from purine_ref.errors import ResultDiffers
from purine_ref.operation import RunKey
from purine_ref.rounding import KAPPA
from purine_ref.tensor import Location

IMAGES = 2
"""Images of the compared steps, at most."""

STEPS = {"float64": 3, "float32": 1}
"""How many steps are compared in each dtype."""


def require_agreement(children: Sequence[Contender], model: str, batch: int, seed: int) -> None:
    """Have every child compute the losses. Raises ResultDiffers for the first that is out of the bounds."""
    images = min(batch, IMAGES)
    for dtype, steps in STEPS.items():
        expected = losses(model, images, dtype, steps, seed)
        for child in children:
            for number, (got, (want, bound)) in enumerate(
                zip(child.ask("losses", batch=images, dtype=dtype, count=steps), expected, strict=True), 1
            ):
                if not abs(got - want) <= bound:
                    who = f"{child.spec.side} {child.spec.how} ({child.spec.kernels} kernels)"
                    raise ResultDiffers(
                        f"{model}, {dtype}, {images} images: the loss of step {number} by {who} is {got!r}, expected "
                        f"{want!r} within {bound:.3g}: what computes something else is not timed", "loss"
                    )  # fmt: skip


def losses(model: str, images: int, dtype: str, steps: int, seed: int) -> list[tuple[float, float]]:
    """The loss of each of the first steps, in float64 arithmetic, and by how much one computed in `dtype` may differ.

    Only what a further step starts from needs gradients, so the last one is of the forward pass alone.
    """
    training = network(model, images, dtype)
    forward = models.MODELS[model](images, dtype=dtype)
    fed: dict[str, Array | Estimate] = {**data(training, seed)}
    fed |= initial_values(training, cpu_devices()(Location()).kernels(RunKey(seed)))
    fed |= {current.name: np.zeros(current.shape, dtype) for current, _ in training.pairs if current.name not in fed}
    found = []
    for number in range(steps):
        graph = forward if number == steps - 1 else training
        known = {name: value for name, value in fed.items() if name in graph}
        result = spread(graph, known, key=RunKey(seed, number))
        loss = result.estimates["loss"]
        variance = 0.0 if loss.variance is None else float(loss.variance)
        known_to_all = loss.unknown is None or not loss.unknown.any()
        # Where a decision lies within the spread, nothing can be said.
        found.append((float(loss.value), KAPPA * math.sqrt(variance) if known_to_all else math.inf))
        fed |= result.carried(graph)
    return found
