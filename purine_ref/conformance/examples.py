"""An example of the oracle as plain data: a network, how it is composed, how it is run, and what it is fed.

Everything is rebuilt from an `Example` alone, which is frozen, compares by value, and goes to JSON and back. So it can
be drawn, written to a file, replayed on another machine, and made smaller field by field.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar

from purine_ref.errors import Refused

SCHEMA = "purine-ref/example/1"
"""The version of the JSON form."""

PHASES = ("forward", "backward", "update")
"""How much of a training step a network has: outputs and losses; gradients too; updates of parameters too."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, named `l0`, `l1`, ... by its position. `inputs` are values: 0 is the network's input, i + 1 layer i's.

    `kind` is a key of `networks.KINDS`, which says what the other fields mean for it. `size` are output channels or
    features. `shared` is the position of an earlier layer whose parameters this one uses, or -1.
    """

    kind: str
    inputs: tuple[int, ...]
    size: int = 0
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    groups: int = 1
    bias: bool = True
    shared: int = -1


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of value `input`, named `loss0`, ...: `squared` or `softmax`, by `mean` or `sum`, with a weight."""

    kind: str
    input: int
    reduction: str = "sum"
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network over images of shape `image`, without the batch axis, up to one of `PHASES`."""

    batch: int
    image: tuple[int, ...]
    layers: tuple[Layer, ...]
    losses: tuple[Loss, ...] = ()
    phase: str = "forward"
    dtype: str = "float64"


@dataclass(frozen=True, slots=True)
class Division:
    """One refiner: `kind` is data, model, pipeline, hybrid or placed.

    `count` are replicas, parts, stages, groups or places; `more` are a pipeline's micro-batches and a hybrid's parts.
    `sizes` are samples of replicas or micro-batches, nearly even where there are none. `mode` is where data updates
    (replicated, server, server:K), by what a model divides (output, input). `rules` are pairs of a name pattern and
    what it says: a mode for data's and a model's parameters (or whole), a place's number for placed, `begins` for a
    pipeline's later stages.
    """

    kind: str
    count: int
    more: int = 1
    sizes: tuple[int, ...] = ()
    mode: str = ""
    rules: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Composition:
    """A composition: `parts`, the outermost first; a (rank, device) for each place; how partial sums are added."""

    parts: tuple[Division, ...] = ()
    places: tuple[tuple[int, int], ...] = ((0, -1),)
    reduction: str = "central"


@dataclass(frozen=True, slots=True)
class Running:
    """How to run: `executor` is serial, threaded or ranks, with `threads` where it has any.

    `schedule` is empty (first ready, first started), a schedule string of the composed graph, `random:SEED`,
    `pct:SEED:CHANGES`, or `gpipe` or `1f1b`. `delay` is the most microseconds that work on a virtual device may start
    late, and `delays`, where it is not 0, the seed by which operators are held up.
    """

    executor: str = "serial"
    threads: int = 1
    schedule: str = ""
    iterations: int = 1
    delay: int = 0
    delays: int = 0


@dataclass(frozen=True, slots=True)
class Feeding:
    """What is fed: drawn from `seed`; `exact` says whether so that every sum is exact (rule R10).

    Of each fed blob the first `most` elements, in an order drawn from the seed, are not zero; all of them for -1. The
    blobs named in `zeros` are zeros.
    """

    seed: int = 0
    exact: bool = True
    most: int = -1
    zeros: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One case for the oracle. `wanted` names the one blob of the serial graph that is computed; empty means all."""

    network: Architecture
    composition: Composition = Composition()
    running: Running = Running()
    feeding: Feeding = Feeding()
    wanted: str = ""


def to_json(example: Example) -> dict[str, Any]:
    """The example as an object that `json` can write."""
    return {"schema": SCHEMA, **asdict(example)}


def from_json(data: object) -> Example:
    """The example of an object that `json` has read. Raises Refused, naming the field, for anything else."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise Refused(f"an example is an object with the schema {SCHEMA!r}")
    return _rebuilt(Example, {name: value for name, value in data.items() if name != "schema"}, "example")


_Record = TypeVar("_Record")


def _rebuilt(kind: type[_Record], data: object, where: str) -> _Record:
    """A dataclass from an object with just its fields."""
    hints = typing.get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(data, Mapping) or set(data) != known:
        raise Refused(f"{where}: expected an object with {', '.join(sorted(known))}, got {_shortened(data)}")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _value(kind: Any, data: object, where: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _rebuilt(kind, data, where)
    if isinstance(kind, types.GenericAlias):
        return _tuple(typing.get_args(kind), data, where)
    if kind is float and type(data) is int:
        return float(data)
    if type(data) is not kind:
        raise Refused(f"{where}: expected {kind.__name__}, got {_shortened(data)}")
    return data


def _tuple(kinds: tuple[Any, ...], data: object, where: str) -> tuple[Any, ...]:
    """A tuple of any length of one kind, or of one element for each of `kinds`."""
    if not isinstance(data, list | tuple):
        raise Refused(f"{where}: expected a list, got {_shortened(data)}")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(data)
    if len(data) != len(kinds):
        raise Refused(f"{where}: expected {len(kinds)} elements, got {len(data)}")
    return tuple(_value(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, data, strict=True)))


def _shortened(data: object) -> str:
    text = repr(sorted(data)) if isinstance(data, Mapping) else repr(data)
    return text if len(text) <= 80 else f"{text[:77]}..."
