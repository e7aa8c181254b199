"""PyTorch as the reference of the operations' suite: its functions, its autograd, its optimisers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.optim.adagrad import adagrad as torch_adagrad
from torch.optim.sgd import sgd as torch_sgd

from suites.operation_case import Array, Reference

Function = Callable[..., Any]

torch.set_num_threads(1)


def autograd(function: Function) -> Reference:
    """`function` of tensors, and the gradients of its inputs by PyTorch's autograd."""

    def reference(arrays: Sequence[Array], arrived: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
        inputs = [torch.tensor(array, requires_grad=array.dtype.kind == "f") for array in arrays]
        made = function(*inputs)
        outputs = list(made) if isinstance(made, tuple | list) else [made]
        values = [y.detach().numpy() for y in outputs]
        if not arrived:
            return values, [None] * len(inputs)
        floats = [x for x in inputs if x.requires_grad]
        reached = [y for y, dy in zip(outputs, arrived, strict=True) if dy is not None]
        dys = [torch.tensor(dy) for dy in arrived if dy is not None]
        found = iter(torch.autograd.grad(reached, floats, dys, allow_unused=True))
        gradients = [next(found) if x.requires_grad else None for x in inputs]
        return values, [None if gradient is None else gradient.numpy() for gradient in gradients]

    return reference


def pullback(function: Function, at: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The gradient at `at` that `dy` gives through `function`."""
    point = at.detach().requires_grad_()
    [gradient] = torch.autograd.grad(function(point), point, dy.detach())
    return gradient


def convolution(stride: Any, pads: Any, dilation: Any, groups: int) -> Function:
    """PyTorch's convolution, after its padding of each side."""
    return lambda x, weight: functional.conv2d(padded(x, pads), weight, None, stride, 0, dilation, groups)


def padded(x: torch.Tensor, pads: Any, value: float = 0.0) -> torch.Tensor:
    """x with ((height begin, height end), (width begin, width end)) more."""
    return functional.pad(x, (*pads[1], *pads[0]), value=value)


def sgd(momentum: float, decay: float, multiplier: float, *, rate_inside: bool) -> Reference:
    """PyTorch's SGD; with the rate inside the history, that is PyTorch's history times the rate."""

    def step(arrays: Sequence[Array], arrived: Any) -> tuple[list[Array], list[Array | None]]:
        weight, gradient, history, rate = (torch.tensor(array) for array in arrays)
        lr = float(rate) * multiplier
        buffer = history / lr if rate_inside else history
        torch_sgd(
            *([weight], [gradient], [buffer]),
            lr=lr,
            momentum=momentum,
            weight_decay=decay,
            dampening=0,
            nesterov=False,
            maximize=False,
        )
        return [weight.numpy(), (buffer * lr if rate_inside else buffer).numpy()], [None] * 4

    return step


def adagrad(epsilon: float, decay: float, multiplier: float) -> Reference:
    """PyTorch's Adagrad."""

    def step(arrays: Sequence[Array], arrived: Any) -> tuple[list[Array], list[Array | None]]:
        weight, gradient, accumulated, rate = (torch.tensor(array) for array in arrays)
        torch_adagrad(
            *([weight], [gradient], [accumulated], [torch.tensor(0.0)]),
            lr=float(rate) * multiplier,
            weight_decay=decay,
            lr_decay=0,
            eps=epsilon,
            maximize=False,
        )
        return [weight.numpy(), accumulated.numpy()], [None] * 4

    return step
