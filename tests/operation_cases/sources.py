"""Cases of what has no inputs: draws, which PyTorch cannot repeat, and constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from oracles import draws as oracle
from purine_ref.ops import Bernoulli, Constant, Gaussian, Uniform
from suites.operation_case import FLOATS, RUN, Case
from torch_reference import autograd

SHAPE, WINDOW = (5, 4, 3), ((9, 7, 6), (2, 3, 1))
STREAM = "net/noise"
KEY = (RUN.seed, STREAM, RUN.iteration)


def draw_cases(kind: Any, dtype: str, element: Any, **attributes: Any) -> list[Case]:
    """A draw in `dtype`, of the undivided tensor and of a window of one."""

    def case(note: str, undivided: Any, start: Any, window: Any) -> Case:
        operation = kind(SHAPE, dtype, stream=STREAM, window=window, **attributes)
        return Case(
            operation,
            (),
            lambda: oracle.draw(element, SHAPE, undivided, start),
            note=note,
            empty=replace(operation, shape=(0, *SHAPE[1:])),
            dtypes=(dtype,),
        )

    return [case(dtype, SHAPE, (0, 0, 0), None), case(f"window-{dtype}", *WINDOW, WINDOW)]


def constant_case(value: float, dtype: str) -> Case:
    """A constant, which PyTorch fills a tensor with."""
    return Case(
        Constant(value, SHAPE, dtype),
        (),
        lambda: np.full(SHAPE, value, object),
        autograd(lambda: torch.full(SHAPE, value, dtype=getattr(torch, dtype))),
        dtype,
        empty=Constant(value, (0, *SHAPE[1:]), dtype),
        free=True,
        dtypes=(dtype,),
    )


CASES = [
    *(case for d in FLOATS for case in draw_cases(Uniform, d, oracle.uniform(KEY, d, -3, 5.5), low=-3, high=5.5)),
    *(case for d in FLOATS for case in draw_cases(Gaussian, d, oracle.gaussian(KEY, 0.5, 2.5), mean=0.5, std=2.5)),
    *(case for d in FLOATS for case in draw_cases(Bernoulli, d, oracle.bernoulli(KEY, 0.3), keep=0.3)),
    constant_case(-2.5, "float32"),
    constant_case(0.75, "float64"),
    constant_case(-3, "int64"),
]
