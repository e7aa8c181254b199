"""Training on the embedded digits: stages of epochs of mini-batches, with snapshots that resume to the bit.

State: the `Memory` with parameters and histories, and a `Position` (stage, epoch, batch, iteration). Everything else
follows from the `Settings`: the graphs, the order of the data, every random mask. So a snapshot of memory, position
and settings is all that a resumed run needs. A classifier has one stage; an autoencoder has one for each layer, and
one for the whole (stacked training). A batch size other than the usual one, as the last of an epoch may have, is one
more executor over the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial

import numpy as np

from purine_ref import models, optim
from purine_ref.data import BatchOrder, Dataset, load_digits
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import Executor, Memory, Serial, Threaded
from purine_ref.fusing import fuse
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Settings:
    """What fixes a training run: model, epochs per stage, batch, learning rate, and so on.

    In epoch e of a stage (from 0) the rate is lr / (1 + cooling e): Caffe's policy `inv` with power 1. It does not look
    at how many epochs there will be, so a run can be resumed for more of them.
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


DEFAULTS = {
    "nin-digits": Settings("nin-digits", epochs=40, batch=16, lr=0.03, decay=5e-4),
    "lenet-digits": Settings("lenet-digits", epochs=15, batch=32, lr=0.05),
    "mlp-digits": Settings("mlp-digits", epochs=30, batch=32, lr=0.05),
    "autoencoder-digits": Settings("autoencoder-digits", epochs=20, batch=32, lr=0.05),
}
"""The models that can be trained, with their default settings."""

RESULTS = ("loss", "accuracy")
"""The blobs that are fetched after a run, where the graph has them."""

KEPT = tuple(field.name for field in fields(Settings) if field.name not in ("epochs", "threads"))
"""The settings that a snapshot fixes; a resumed run may have more epochs, or other threads, and the same bits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training: `build(batch, train)` makes its graph, `trained` names the parameters it trains."""

    name: str
    build: Callable[[int, bool], Graph]
    trained: Callable[[Graph], list[Blob]]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run is: the batch that comes next, and how many iterations came before."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What one iteration gave: the stage's name, the position it was at, the batch's loss, and its accuracy if any."""

    stage: str
    position: Position
    loss: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss, and accuracy for classifiers, on the held-out images."""

    loss: float
    accuracy: float | None


def stages(settings: Settings) -> list[Stage]:
    """The stages of a model's training."""
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


class Trainer:
    """Trains from `settings`, or goes on from a snapshot made by a `Trainer` with the same `KEPT` settings.

    Raises GraphError for a model that cannot be trained, Refused for a snapshot of something else. Use it as a context
    manager, or call `close`.
    """

    def __init__(self, settings: Settings, snapshot: Snapshot | None = None, data: Dataset | None = None) -> None:
        if settings.model not in DEFAULTS:
            raise GraphError(f"model {settings.model!r} cannot be trained; there are {', '.join(DEFAULTS)}")
        self.settings = settings
        self.data = data or load_digits(settings.dtype)
        self.order = BatchOrder(len(self.data.train_images), settings.batch, settings.seed)
        self.stages = stages(settings)
        self.position = Position()
        self.memory = Memory()
        self._executors: dict[tuple[int, int, bool], Executor] = {}
        graphs = [self._graph(number, settings.batch, True) for number in range(len(self.stages))]
        self._persistent = {name: blob for graph in graphs for name, blob in _persistent(graph).items()}
        if snapshot is not None:
            self._restore(snapshot)
        for number, graph in enumerate(graphs):
            self._executors[number, settings.batch, True] = self._open(graph)

    @property
    def total(self) -> int:
        """Iterations of the whole training."""
        return len(self.stages) * self.settings.epochs * self.order.batches

    def steps(self) -> Iterator[Step]:
        """Train until all stages have had their epochs; yields after every iteration, between which one may save."""
        while True:
            while self.position.epoch < self.settings.epochs:
                yield self._step()
            if self.position.stage + 1 == len(self.stages):
                return  # the position stays at the end of the last stage, from where a run for more epochs goes on
            self.position = replace(self.position, stage=self.position.stage + 1, epoch=0, batch=0)

    def _step(self) -> Step:
        at = self.position
        indices = self.order.batch_indices(at.epoch, at.batch)
        executor = self._executor(at.stage, len(indices), True)
        executor.iteration = at.iteration
        rate = self.settings.lr / (1 + self.settings.cooling * at.epoch)
        executor.feed(_batch(executor.graph, self.data.train_images[indices], self.data.train_labels[indices]))
        executor.feed({optim.RATE: np.array(rate, self.settings.dtype)})
        executor.run()
        epoch, batch = self.order.after(at.epoch, at.batch)
        self.position = Position(at.stage, epoch, batch, at.iteration + 1)
        return Step(self.stages[at.stage].name, at, *_results(executor))

    def evaluate(self) -> Evaluation:
        """Loss and accuracy of the stage just trained on the held-out images."""
        executor = self._executor(self.position.stage, len(self.data.test_images), False)
        executor.feed(_batch(executor.graph, self.data.test_images, self.data.test_labels))
        executor.run()
        return Evaluation(*_results(executor))

    def snapshot(self) -> Snapshot:
        """Everything that a run needs to go on from here."""
        held = {name: self.memory.get(name) for name in self._persistent}
        kept = {name: value for name, value in asdict(self.settings).items() if name in KEPT and name != "seed"}
        at = self.position
        extra = {**kept, "stage": at.stage, "epochs": self.settings.epochs}
        return Snapshot(held, at.iteration, self.settings.seed, at.epoch, at.batch, extra)

    def close(self) -> None:
        """Let go of threads and arrays."""
        for executor in self._executors.values():
            executor.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restore(self, snapshot: Snapshot) -> None:
        found = {**snapshot.extra, "seed": snapshot.seed}
        for name in KEPT:
            want = getattr(self.settings, name)
            if found.get(name) != want:
                raise Refused(f"snapshot setting {name!r}: this run has {want!r}, the snapshot {found.get(name)!r}")
        stage = self._checked_stage(snapshot)
        snapshot.matching({name: (blob.shape, blob.dtype) for name, blob in self._persistent.items()})
        for name, array in snapshot.arrays.items():
            self.memory.put(name, self._persistent[name].tensor, array)
        self.position = Position(stage, snapshot.epoch, snapshot.position, snapshot.iteration)

    def _checked_stage(self, snapshot: Snapshot) -> int:
        """The stage of a snapshot whose place this run passes. Raises Refused for another place."""
        stage, epochs, most = snapshot.extra.get("stage"), snapshot.extra.get("epochs"), self.settings.epochs
        if not isinstance(stage, int) or not 0 <= stage < len(self.stages) or snapshot.position >= self.order.batches:
            raise Refused(
                f"snapshot is at stage {stage!r}, batch {snapshot.position}; this run has {len(self.stages)} stages "
                f"of {self.order.batches} batches an epoch"
            )
        if (snapshot.epoch, snapshot.position) > (most, 0):
            raise Refused(f"snapshot is in epoch {snapshot.epoch + 1}; this run has {most}: give it more epochs")
        if stage > 0 and epochs != most:
            raise Refused(f"snapshot is of a run of {epochs!r} epochs a stage, at stage {stage}; this run has {most}")
        return stage

    def _graph(self, stage: int, batch: int, train: bool) -> Graph:
        part = self.stages[stage]
        graph = part.build(batch, train)
        if train:
            gradients = backward(graph["loss"], part.trained(graph))
            optim.sgd(gradients, momentum=self.settings.momentum, decay=self.settings.decay)
        return graph

    def _executor(self, stage: int, batch: int, train: bool) -> Executor:
        key = (stage, batch, train)
        if key not in self._executors:
            self._executors[key] = self._open(self._graph(stage, batch, train))
        return self._executors[key]

    def _open(self, graph: Graph) -> Executor:
        """An executor over the memory. Only results are fetched, so all else may vanish, or share memory."""
        results = [name for name in RESULTS if name in graph]
        threads = self.settings.threads
        make = Serial if threads == 1 else partial(Threaded, threads=threads)
        return make(fuse(graph, results), seed=self.settings.seed, memory=self.memory, reuse=True, keep=results)


def _batch(graph: Graph, images: Array, labels: Array) -> dict[str, Array]:
    """What to feed: the images, and the labels where the graph has use for them."""
    return {"x": images, "label": labels} if "label" in graph else {"x": images}


def _persistent(graph: Graph) -> dict[str, Blob]:
    """What a snapshot keeps of a graph, by name: parameters, and what the next run reads of each swapped pair."""
    kept = [*graph.parameters, *(current for current, _ in graph.pairs)]
    return {blob.name: blob for blob in kept}


def _results(executor: Executor) -> tuple[float, float | None]:
    accuracy = float(executor.fetch("accuracy")) if "accuracy" in executor.graph else None
    return float(executor.fetch("loss")), accuracy
