"""Forms of what moves elements, and of what has no inputs: concat, split, slices, shapes, copies; draws, constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purine_ref.conformance.cases.suites.drawing import whole
from purine_ref.conformance.cases.suites.forms import Form, In, Source, chosen
from purine_ref.ops import (
    Bernoulli,
    Concat,
    Constant,
    Copy,
    Gaussian,
    Identity,
    PadSlice,
    Reshape,
    Slice,
    Split,
    Uniform,
)
from purine_ref.tensor import Location

X = (4, 3)


def _moves(note: str, operation: Any, *shapes: tuple[int, ...], whole_numbers: bool = False) -> Form:
    """A movement of tensors of those shapes, after the batch; of integers where `whole_numbers`."""

    def built(n: int) -> tuple[Any, list[In]]:
        """The operation and its inputs, for n samples."""
        made = operation(n) if callable(operation) and not hasattr(operation, "infer") else operation
        return made, [chosen((n, *s), whole(100)) if whole_numbers else In((n, *s)) for s in shapes]

    special = () if whole_numbers else tuple(range(len(shapes)))
    dtypes = ("float32",) if whole_numbers else ("float32", "float64")
    return Form(note, built, samples=5, special=special, dtypes=dtypes, only=whole_numbers)


FORMS: dict[str, Sequence[Form]] = {
    "Concat": [
        _moves("three, one of them empty", Concat(1), X, (2, 3), (0, 3)),
        _moves("along the last axis", Concat(-1), (4, 2), X),
        _moves("one", Concat(1), X),
        _moves("integers along the batch", Concat(0), (3,), (3,), whole_numbers=True),
    ],
    "Split": [
        _moves("one part empty", Split(1, (1, 0, 3)), X),
        _moves("along the last axis", Split(-1, (2, 1)), X),
        _moves("into one", Split(1, (4,)), X),
        _moves("integers", Split(1, (3, 2)), (5,), whole_numbers=True),
    ],
    "Slice": [
        _moves("the middle", Slice(1, 1, 3), X),
        _moves("the last axis", Slice(-1, 1, 3), X),
        _moves("nothing", Slice(1, 2, 2), X),
        _moves("integers", Slice(1, 0, 2), (5,), whole_numbers=True),
    ],
    "PadSlice": [
        _moves("into the middle", PadSlice(1, 2, 7), X),
        _moves("to the start of the last axis", PadSlice(-1, 0, 6), X),
        _moves("to the end", PadSlice(1, 3, 7), X),
        _moves("integers", PadSlice(1, 1, 4), (2,), whole_numbers=True),
    ],
    "Reshape": [
        _moves("to other axes", lambda n: Reshape((n, 2, 6)), X),
        _moves("with one axis left open", Reshape((-1, 6, 2)), X),
        _moves("to one axis", lambda n: Reshape((n * 12,)), X),
        _moves("integers", lambda n: Reshape((n, 3, 2)), (6,), whole_numbers=True),
    ],
    "Identity": [
        _moves("three axes", Identity(), X),
        _moves("one axis", Identity(), ()),
        _moves("images", Identity(), (2, 3, 4)),
        _moves("integers", Identity(), (4,), whole_numbers=True),
    ],
    "Copy": [
        _moves("here", Copy(), X),
        _moves("to another rank", Copy(Location(1)), X),
        _moves("to a device", Copy(Location(0, 0)), (2, 3, 4)),
        _moves("integers to another rank", Copy(Location(2)), (4,), whole_numbers=True),
    ],
}

SHAPE, WINDOW = (5, 4, 3), ((9, 7, 6), (2, 3, 1))


def _draws(kind: Any, **facts: Any) -> list[Source]:
    """A draw in both dtypes, whole and in a window, for several iterations and seeds, and of odd sizes."""
    cases = []
    for dtype in ("float32", "float64"):
        plain = kind(SHAPE, dtype, stream="net/noise", **facts)
        windowed = kind(SHAPE, dtype, stream="net/noise", window=WINDOW, **facts)
        cases += [
            Source(f"{dtype}, three iterations", plain, 3, 11),
            Source(f"{dtype}, a window of a larger tensor", windowed, 2, 11),
        ]
    return [
        *cases,
        Source("another stream", kind((7,), "float32", stream="a", **facts), 1, 11),
        Source("the largest seed", kind((6,), "float64", stream="net/noise", **facts), 1, 2**64 - 1),
        Source("a stream of other letters", kind((2, 3), "float32", stream="größe/β", **facts), 1, 1),
        Source("no elements", kind((0, 3), "float32", stream="net/noise", **facts)),
        Source("one number", kind((), "float64", stream="net/noise", **facts), 2),
    ]


SOURCES: dict[str, Sequence[Source]] = {
    "Uniform": [
        *_draws(Uniform, low=-3.0, high=5.5),
        Source("from 0 to 1", Uniform((4, 3), "float32", stream="u"), 2, 3),
    ],
    "Gaussian": _draws(Gaussian, mean=0.5, std=2.5),
    "Bernoulli": [
        *_draws(Bernoulli, keep=0.3),
        Source("all kept", Bernoulli((4,), "float32", stream="b", keep=1.0)),
        Source("none kept", Bernoulli((4,), "float32", stream="b", keep=0.0)),
    ],
    "Constant": [
        Source("float32", Constant(-2.5, SHAPE, "float32"), 2),
        Source("float64", Constant(0.75, SHAPE, "float64")),
        Source("int64", Constant(-3, SHAPE, "int64")),
        Source("a number that float32 rounds", Constant(0.1, (4,), "float32")),
        Source("0.1 in float64", Constant(0.1, (4,), "float64")),
        Source("a large integer", Constant(2**62 + 1, (2, 3), "int64")),
        Source("no elements", Constant(1.0, (0, 3), "float32")),
        Source("one number", Constant(7.0, (), "float32")),
    ],
}
