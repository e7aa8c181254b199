"""What fixes a training run: its settings, and the stages of each model's training with their graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from purine_ref import models, optim
from purine_ref.conformance import Scheme, parse_scheme
from purine_ref.errors import GraphError
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph


@dataclass(frozen=True, slots=True)
class Settings:
    """What fixes a training run: model, epochs per stage, batch, learning rate, and so on.

    In epoch e of a stage (from 0) the rate is lr / (1 + cooling e): Caffe's policy `inv` with power 1. It does not look
    at how many epochs there will be, so a run can be resumed for more of them. `scheme` divides every graph, as
    `data:3@hosts` does; None leaves it whole. `threads` run it, at each rank, where the scheme does not say how many.
    """

    model: str
    epochs: int
    batch: int
    lr: float
    cooling: float = 0.1
    momentum: float = 0.9
    decay: float = 1e-4
    dtype: str = "float32"
    seed: int = 0
    threads: int = 2
    scheme: str | None = None

    def parsed(self) -> Scheme:
        """The scheme. Raises ValueError for a text that names none."""
        if self.scheme is None:
            return parse_scheme("serial" if self.threads == 1 else f"threads:{self.threads}")
        require_scheme(self.scheme)
        names, at, place = self.scheme.partition("@")
        return parse_scheme(f"{names}/threads:{self.threads}{at}{place}")  # a number in the scheme comes first


def require_scheme(text: str) -> None:
    """Raise ValueError, with what is accepted, for a text that names no scheme, or none to train under."""
    if parse_scheme(text).drive is None:
        raise ValueError(f"scheme {text!r} is one to compare with, and none to train under")


DEFAULTS = {
    "nin-digits": Settings("nin-digits", epochs=40, batch=16, lr=0.03, decay=5e-4),
    "lenet-digits": Settings("lenet-digits", epochs=15, batch=32, lr=0.05),
    "mlp-digits": Settings("mlp-digits", epochs=30, batch=32, lr=0.05),
    "autoencoder-digits": Settings("autoencoder-digits", epochs=20, batch=32, lr=0.05),
}
"""The models that can be trained, with their default settings."""

KEPT = tuple(field.name for field in fields(Settings) if field.name not in ("epochs", "threads", "scheme"))
"""The settings that a snapshot fixes. A resumed run may have more epochs; other threads, and the same bits; or another
scheme, and sums in another order."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training: `build(batch, train)` makes its graph, `trained` names the parameters it trains."""

    name: str
    build: Callable[[int, bool], Graph]
    trained: Callable[[Graph], list[Blob]]

    def graph(self, settings: Settings, batch: int, train: bool) -> Graph:
        """The stage's graph for a batch, in the training form with gradients and updates."""
        graph = self.build(batch, train)
        if train:
            gradients = backward(graph["loss"], self.trained(graph))
            optim.sgd(gradients, momentum=settings.momentum, decay=settings.decay)
        return graph


def stages(settings: Settings) -> list[Stage]:
    """The stages of a model's training. Raises GraphError for a model that cannot be trained."""
    if settings.model not in DEFAULTS:
        raise GraphError(f"model {settings.model!r} cannot be trained; there are {', '.join(DEFAULTS)}")
    build = models.MODELS[settings.model]

    def whole(batch: int, train: bool) -> Graph:
        """The network itself."""
        return build(batch, dtype=settings.dtype, train=train)

    if settings.model != "autoencoder-digits":
        return [Stage("all layers", whole, lambda graph: graph.parameters)]
    depth = sum(name.startswith("encode") for name in whole(1, False).multipliers) // 2
    layered = [
        Stage(f"layer {number}", partial(_one_layer, settings.dtype, number), partial(_of_layer, number))
        for number in range(1, depth + 1)
    ]
    return [*layered, Stage("all layers", whole, lambda graph: graph.parameters)]


def _one_layer(dtype: str, number: int, batch: int, train: bool) -> Graph:
    return models.autoencoder(batch, stage=number, dtype=dtype, train=train)


def _of_layer(number: int, graph: Graph) -> list[Blob]:
    own = (f"encode{number}/", f"decode{number}/")
    return [blob for blob in graph.parameters if blob.name.startswith(own)]
