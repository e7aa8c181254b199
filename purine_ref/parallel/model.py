"""Model parallelism: parameters are divided over places, and each place computes with its own part.

A weight divided along axis 0 gives its part of the output channels, one along axis 1 takes its part of the input
channels and gives a partial sum. What works channel by channel after it (bias, ReLU, pooling) keeps the parts where
they are; what needs all channels gets them gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Op
from purine_ref.operation import Axis
from purine_ref.parallel.tasks import Network, Task, divide

AXES = {"output": 0, "input": 1}
"""By which channels a weight is divided: its axis."""


@dataclass(frozen=True)
class Model:
    """Divide every convolution's and linear layer's weight over `parts` places, nearly evenly.

    `by` is `output` or `input` channels; `layers` may say otherwise for patterns of weight names, such as
    `{"fc*/weight": "input", "conv1/weight": "whole"}`. Layers left whole, and what needs all channels, run at the first
    place.
    """

    parts: int
    by: str = "output"
    layers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise GraphError(f"model parallelism needs 1 part or more, got {self.parts}")
        for by in (self.by, *self.layers.values()):
            if by not in (*AXES, "whole"):
                raise GraphError(f"a weight is divided by 'output' or 'input', or left 'whole'; got {by!r}")

    @property
    def width(self) -> int:
        """One place for each part."""
        return self.parts

    def refine(self, network: Network, op: Op, task: Task) -> list[Task]:
        """A task for each part of the channels; what has no divided channels runs once, at the first place.

        Raises GraphError when a weight has fewer channels than there are parts.
        """
        found = self._axis(network, op)
        if found is None:
            return [task.at(self.width, 0)]
        axis, grain = found
        start, stop = task.range_of(axis)
        channels = (stop - start) // grain
        if channels < self.parts:
            raise GraphError(f"{op.describe()}: {channels} channels cannot be divided into {self.parts} parts")
        ranges = [(start + a * grain, start + b * grain) for a, b in divide(channels, self.parts)]
        return [task.cut(axis, *part).at(self.width, place) for place, part in enumerate(ranges)]

    def choice(self, weight: Blob) -> str:
        """By what a weight is divided: `output`, `input`, or `whole`."""
        return next((by for pattern, by in self.layers.items() if fnmatchcase(weight.name, pattern)), self.by)

    def _axis(self, network: Network, op: Op) -> tuple[Axis, int] | None:
        """The axis to divide, and how many of its indices must stay together.

        It is that of the operator's own weight, if it has one; else one whose channels an earlier layer has divided.
        """
        layers = layers_of(network)
        weight = layers.weight_of(op)
        if weight is not None:
            choice = self.choice(weight)
            return None if choice == "whole" else layers.axis(op, weight, AXES[choice])
        divided = {network.class_of(w, 0) for w in layers.weights if self.choice(w) == "output"}
        axis = network.axis_in(op, divided - network.batch)
        return None if axis is None else (axis, 1)


class Layers:
    """Which weight each operator has to do with: it reads or writes the weight, or its gradient, history or update."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.weights = [blob for blob in network.graph.parameters if len(blob.shape) > 1]
        self._by_key = {self._key(weight): weight for weight in self.weights}
        self._grain: dict[tuple[Blob, int], int] = {}
        for op in network.graph.ops:
            for axis in network.axes(op):
                for blob, end in _ends(op, axis):
                    weight = self._weight_like(blob)
                    if weight is not None:
                        key = (weight, end[0])
                        self._grain[key] = max(self._grain.get(key, 1), end[1])

    def weight_of(self, op: Op) -> Blob | None:
        """The operator's weight; None when it has to do with none."""
        found = (self._weight_like(blob) for blob in (*op.inputs, *op.outputs))
        return next((weight for weight in found if weight is not None), None)

    def axis(self, op: Op, weight: Blob, number: int) -> tuple[Axis, int] | None:
        """The operator's axis along which axis `number` of the weight runs, and how many indices are one channel."""
        for axis in self._network.axes(op):
            for blob, end in _ends(op, axis):
                if end[0] == number and self._weight_like(blob) is weight:
                    return axis, self._grain[weight, number] // end[1]
        return None

    def _key(self, blob: Blob) -> tuple[object, ...]:
        return (blob.shape, self._network.class_of(blob, 0), self._network.class_of(blob, 1))

    def _weight_like(self, blob: Blob) -> Blob | None:
        return self._by_key.get(self._key(blob)) if len(blob.shape) > 1 else None


_layers: WeakKeyDictionary[Network, Layers] = WeakKeyDictionary()


def layers_of(network: Network) -> Layers:
    """The layers of a network, found once."""
    if network not in _layers:
        _layers[network] = Layers(network)
    return _layers[network]


def _ends(op: Op, axis: Axis) -> Iterator[tuple[Blob, tuple[int, int]]]:
    for blobs, ends in ((op.inputs, axis.inputs), (op.outputs, axis.outputs)):
        for blob, end in zip(blobs, ends, strict=True):
            if end is not None:
                yield blob, end
