"""Cases of what moves elements, labels too."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from oracles import each
from oracles import movement as oracle
from purine_ref.ops import Concat, Copy, Identity, PadSlice, Reshape, Slice, Split
from purine_ref.tensor import DTYPES, Location
from suites.operation_case import Case, Input, Shape
from torch_reference import autograd

X = (5, 4, 3)


def movement(operation: Any, shapes: list[Shape], values: Any, form: Any, note: str = "", **facts: Any) -> Case:
    """A case without arithmetic."""
    facts = {"ulps": 0, "free": True, "moves_integers": True, "dtypes": DTYPES} | facts
    return Case(operation, tuple(map(Input, shapes)), values, autograd(form), note, **facts)


def same(x: Any) -> Any:
    """x itself."""
    return each(lambda element: element, x)


CASES = [
    movement(
        Concat(1),
        [X, (5, 2, 3), (5, 0, 3)],
        lambda *xs: oracle.concat(1, *xs),
        lambda *xs: torch.concat(xs, 1),
        variadic=True,
    ),
    movement(
        Concat(-1),
        [(5, 4, 2), X],
        lambda *xs: oracle.concat(2, *xs),
        lambda *xs: torch.concat(xs, 2),
        "last",
        variadic=True,
    ),
    movement(Split(1, (1, 0, 3)), [X], lambda x: oracle.split(x, 1, (1, 0, 3)), lambda x: torch.split(x, (1, 0, 3), 1)),
    movement(
        Split(-1, (2, 1)), [X], lambda x: oracle.split(x, 2, (2, 1)), lambda x: torch.split(x, (2, 1), -1), "last"
    ),
    movement(Slice(1, 1, 3), [X], lambda x: oracle.part(x, 1, 1, 3), lambda x: x[:, 1:3]),
    movement(Slice(-1, 1, 3), [X], lambda x: oracle.part(x, 2, 1, 3), lambda x: x[..., 1:3], "last"),
    movement(
        PadSlice(1, 2, 7),
        [X],
        lambda x: oracle.placed([x], (len(x), 7, 3), 1, 2),
        lambda x: functional.pad(x, (0, 0, 2, 1)),
    ),
    movement(
        PadSlice(-1, 0, 6),
        [X],
        lambda x: oracle.placed([x], (len(x), 4, 6), 2),
        lambda x: functional.pad(x, (0, 3)),
        "last",
    ),
    movement(
        Reshape((5, 2, 6)),
        [X],
        lambda x: oracle.reshape(x, (len(x), 2, 6)),
        lambda x: x.reshape(5, 2, 6),
        empty=Reshape((0, 2, 6)),
    ),
    movement(
        Reshape((-1, 6, 2)), [X], lambda x: oracle.reshape(x, (len(x), 6, 2)), lambda x: x.reshape(-1, 6, 2), "inferred"
    ),
    movement(Identity(), [X], same, torch.clone),
    movement(Copy(), [X], same, torch.clone),
    movement(Copy(Location()), [X], same, torch.clone, "to-a-place"),
]
