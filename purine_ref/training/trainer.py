"""The loop over batches, on the whole graph or under a scheme; evaluation; the snapshot of a run, and going on from it.

State: parameters and histories (`State`), and a `Position` (stage, epoch, batch, iteration). Everything else follows
from the `Settings`: the graphs, the order of the data, every random mask. So a snapshot of values, position and
settings is all that a resumed run needs. A batch size other than the usual one, as the last of an epoch may have, is
one more session beside the others; so is the testing form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np

from purine_ref import optim
from purine_ref.conformance import Driven, Session
from purine_ref.data import BatchOrder, Dataset, load_digits
from purine_ref.errors import GraphError, Refused
from purine_ref.fusing import fuse
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.snapshot import Snapshot
from purine_ref.training.settings import KEPT, Settings, stages
from purine_ref.training.state import Replicas, State, assembled, persistent

RESULTS = ("loss", "accuracy")
"""The blobs that are fetched after a run, where the graph has them."""


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


class Trainer:
    """Trains from `settings`, or goes on from a snapshot made by a `Trainer` with the same `KEPT` settings.

    On hosts every rank makes the same calls in the same order, and all get the same. Raises GraphError for a model that
    cannot be trained, and for a scheme that does not fit it or one of the batches; ValueError for a text that is no
    scheme; Refused for a snapshot of something else. Use it as a context manager, or call `close`.
    """

    def __init__(self, settings: Settings, snapshot: Snapshot | None = None, data: Dataset | None = None) -> None:
        self.settings = settings
        self.stages = stages(settings)
        self.scheme = settings.parsed()
        self.data = data or load_digits(settings.dtype)
        self.order = BatchOrder(len(self.data.train_images), settings.batch, settings.seed)
        self.position = Position()
        self._state = State()
        self._sessions: dict[tuple[int, int, bool], Session] = {}
        graphs = [stage.graph(settings, settings.batch, True) for stage in self.stages]
        self._persistent = {name: blob for graph in graphs for name, blob in persistent(graph).items()}
        if snapshot is not None:
            self._restore(snapshot)
        try:
            for number, graph in enumerate(graphs):
                self._sessions[number, settings.batch, True] = self._open(graph)
            self._require_fit()
        except BaseException:
            self.close()
            raise

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
        session = self._session(at.stage, len(indices), True)
        session.executor.iteration = at.iteration
        rate = self.settings.lr / (1 + self.settings.cooling * at.epoch)
        session.feed(_batch(session.serial, self.data.train_images[indices], self.data.train_labels[indices]))
        session.feed({optim.RATE: np.array(rate, self.settings.dtype)})
        session.run()
        self._state.updated(session)
        epoch, batch = self.order.after(at.epoch, at.batch)
        self.position = Position(at.stage, epoch, batch, at.iteration + 1)
        return Step(self.stages[at.stage].name, at, *_results(session))

    def evaluate(self) -> Evaluation:
        """Loss and accuracy of the stage just trained on the held-out images."""
        session = self._session(self.position.stage, len(self.data.test_images), False)
        session.feed(_batch(session.serial, self.data.test_images, self.data.test_labels))
        session.run()
        return Evaluation(*_results(session))

    def snapshot(self) -> Snapshot:
        """Everything that a run needs to go on from here. Raises ResultDiffers where replicas differ (rule R8)."""
        held = {name: self._state.whole(name) for name in self._persistent}
        kept = {name: value for name, value in asdict(self.settings).items() if name in KEPT and name != "seed"}
        at = self.position
        extra = {**kept, "stage": at.stage, "epochs": self.settings.epochs}
        return Snapshot(held, at.iteration, self.settings.seed, at.epoch, at.batch, extra)

    def replicas(self) -> Replicas:
        """Compare the pieces of parameters and histories that must hold the same bits."""
        return self._state.replicas()

    def close(self) -> None:
        """Let go of threads and arrays."""
        for session in self._sessions.values():
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _restore(self, snapshot: Snapshot) -> None:
        found = {**snapshot.extra, "seed": snapshot.seed}
        for name in KEPT:
            want = getattr(self.settings, name)
            if found.get(name) != want:
                raise Refused(f"snapshot setting {name!r}: this run has {want!r}, the snapshot {found.get(name)!r}")
        stage = self._checked_stage(snapshot)
        snapshot.matching({name: (blob.shape, blob.dtype) for name, blob in self._persistent.items()})
        self._state.restore(snapshot.arrays)
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

    def _require_fit(self) -> None:
        """Raise GraphError where the scheme does not fit a graph that comes later in the run: now, and not then."""
        if not self.scheme.divides:
            return
        last = len(self.order.batch_indices(0, self.order.batches - 1))
        later = (("last batch of an epoch", last, True), ("held-out images", len(self.data.test_images), False))
        for stage in self.stages:
            for what, batch, train in later:
                try:
                    self.scheme.compose(_fused(stage.graph(self.settings, batch, train)))
                except GraphError as error:
                    raise GraphError([f"{what}: {problem}" for problem in error.problems]) from error

    def _session(self, stage: int, batch: int, train: bool) -> Session:
        """The session for a batch, with the last values."""
        key = (stage, batch, train)
        if key not in self._sessions:
            self._sessions[key] = self._open(self.stages[stage].graph(self.settings, batch, train))
        self._state.refresh(self._sessions[key])
        return self._sessions[key]

    def _open(self, graph: Graph) -> Session:
        """A session over the memory. Only results are fetched, so all else may vanish, or share memory."""
        assert self.scheme.drive is not None  # `Settings.parsed` refuses a scheme without
        fused = _fused(graph)
        how = Driven(memory=self._state.memory, keep=_result_names(fused))
        session = self.scheme.drive(fused, self.settings.seed, how)
        self._state.add(session)
        return session


def _fused(graph: Graph) -> Graph:
    return fuse(graph, _result_names(graph))


def _result_names(graph: Graph) -> tuple[str, ...]:
    return tuple(name for name in RESULTS if name in graph)


def _batch(graph: Graph, images: Array, labels: Array) -> dict[str, Array]:
    """What to feed: the images, and the labels where the graph has use for them."""
    return {"x": images, "label": labels} if "label" in graph else {"x": images}


def _results(session: Session) -> tuple[float, float | None]:
    """Loss and accuracy; an executor may be on several hosts, where all fetch the same blobs in the same order."""
    loss, *accuracy = (float(assembled(session, name)[0]) for name in _result_names(session.serial))
    return loss, accuracy[0] if accuracy else None
