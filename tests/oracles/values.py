"""Activations, softmax, losses, sums, dropout and updates, element by element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from oracles import Array, Index, each, numbers, places, zeros


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); inputs are moderate."""
    return each(lambda v: 1 / (1 + math.exp(-v)), x)


def rows(shape: Index, axis: int) -> list[list[Index]]:
    """The places along `axis`, for each place of the other axes."""
    lines = []
    for at in places((*shape[:axis], *shape[axis + 1 :])):
        lines.append([(*at[:axis], i, *at[axis:]) for i in range(shape[axis])])
    return lines


def softmax(x: Array, axis: int) -> Array:
    """exp(x) over the sum of exp(x) along `axis`; inputs are moderate."""
    x = numbers(x)
    y = zeros(x.shape)
    for row in rows(x.shape, axis):
        total = math.fsum(math.exp(x[at]) for at in row)
        for at in row:
            y[at] = math.exp(x[at]) / total
    return y


def log_softmax(x: Array, axis: int) -> Array:
    """The logarithm of the softmax."""
    return each(math.log, softmax(x, axis))


def softmax_gradient(dy: Array, y: Array, axis: int) -> Array:
    """dx, by the whole Jacobian y_i ([i = j] - y_j)."""
    dy, y = numbers(dy), numbers(y)
    dx = zeros(y.shape)
    for row in rows(y.shape, axis):
        for i in row:
            for j in row:
                dx[j] += dy[i] * y[i] * ((1 if i == j else 0) - y[j])
    return dx


def log_softmax_gradient(dy: Array, y: Array, axis: int) -> Array:
    """dx, by the whole Jacobian [i = j] - exp(y_j)."""
    dy, y = numbers(dy), numbers(y)
    dx = zeros(y.shape)
    for row in rows(y.shape, axis):
        for i in row:
            for j in row:
                dx[j] += dy[i] * ((1 if i == j else 0) - math.exp(y[j]))
    return dx


def samples(label: Array, ignore: int | None) -> list[Index]:
    """The places of the labels that count."""
    label = numbers(label)
    return [at for at in places(label.shape) if label[at] != ignore]


def cross_entropy(logits: Array, label: Array, reduction: str, ignore: int | None) -> Array:
    """The loss: minus the logarithm of the probability of each sample's label."""
    logs, label, loss = log_softmax(logits, 1), numbers(label), zeros(())
    counted = samples(label, ignore)
    for at in counted:
        loss[()] -= logs[(at[0], label[at], *at[1:])]
    if reduction == "mean" and counted:
        loss[()] /= len(counted)
    return loss


def cross_entropy_gradient(dloss: Array, logits: Array, label: Array, reduction: str, ignore: int | None) -> Array:
    """dlogits: the probabilities, less 1 at the label; 0 for samples that do not count."""
    y, label, dx = softmax(logits, 1), numbers(label), zeros(numbers(logits).shape)
    counted = samples(label, ignore)
    share = numbers(dloss)[()] / (len(counted) if reduction == "mean" and counted else 1)
    for at in counted:
        for k in range(dx.shape[1]):
            there = (at[0], k, *at[1:])
            dx[there] = share * (y[there] - (1 if k == label[at] else 0))
    return dx


def squared_error(x: Array, target: Array, reduction: str) -> Array:
    """Half the sum of the squared differences; the mean is over the batch."""
    squares, loss = each(lambda a, b: (a - b) * (a - b), x, target), zeros(())
    for at in places(squares.shape):
        loss[()] += squares[at]
    batch = squares.shape[0] if reduction == "mean" else 1
    loss[()] = loss[()] / (2 * max(batch, 1))
    return loss


def squared_error_gradient(dloss: Array, x: Array, target: Array, reduction: str, sign: int) -> Array:
    """sign dloss (x - target), over the batch for a mean."""
    batch = len(numbers(x)) if reduction == "mean" else 1
    arrived = numbers(dloss)[()]
    return each(lambda a, b: sign * arrived * (a - b) / batch, x, target)


def top_k_accuracy(logits: Array, label: Array, k: int) -> Array:
    """The share of rows whose label is among the first k in a sort by value, then by class."""
    logits, label, share = numbers(logits), numbers(label), zeros(())
    for n in range(len(label)):
        order = sorted(range(logits.shape[1]), key=lambda c: (-logits[n, c], c))
        share[()] += Fraction(label[n] in order[:k]) / len(label)
    return share


def dropout(x: Array, mask: Array, factor: Fraction) -> Array:
    """x times `factor` where the mask is 1, 0 where it is 0."""
    return each(lambda v, kept: v * factor if kept == 1 else 0, x, mask)


def weighted_sum(weights: Sequence[Any], *xs: Array) -> Array:
    """w1 x1 + w2 x2 + ..., in this order."""

    def add(*elements: Any) -> Any:
        total = elements[0] * Fraction(weights[0])
        for weight, element in zip(weights[1:], elements[1:], strict=True):
            total = total + element * Fraction(weight)
        return total

    return each(add, *xs)


def plain_sum(*xs: Array) -> Array:
    """x1 + x2 + ..., in this order."""
    return each(lambda first, *more: sum(more, first), *xs)


def mean(*xs: Array) -> Array:
    """The sum over the number of inputs."""
    return plain_sum(*xs) * Fraction(1, len(xs))


def reduce_sum(x: Array, axes: Index) -> Array:
    """The sum over `axes`, row by row."""
    x = numbers(x)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    y = zeros(tuple(x.shape[axis] for axis in kept))
    for at in places(x.shape):
        y[tuple(at[axis] for axis in kept)] += x[at]
    return y


def reduce_mean(x: Array, axes: Index) -> Array:
    """The sum over the number of elements that each sum has; 0 where there is none."""
    terms = math.prod(numbers(x).shape[axis] for axis in axes)
    return reduce_sum(x, axes) * Fraction(1, max(terms, 1))


def broadcast(x: Array, shape: Index, axes: Index, factor: Any) -> Array:
    """factor x, repeated along `axes`."""
    x, y = numbers(x), zeros(shape)
    for at in places(shape):
        y[at] = x[tuple(i for axis, i in enumerate(at) if axis not in axes)] * Fraction(factor)
    return y


def sgd(momentum: Any, decay: Any, multiplier: Any, *state: Array) -> list[Array]:
    """weight' and history', with the rate inside the history."""
    rate = numbers(state[3])[()] * Fraction(multiplier)
    carried, kept = Fraction(momentum), Fraction(decay)
    history = each(lambda w, g, h: carried * h + rate * (g + kept * w), *state[:3])
    return [each(lambda w, h: w - h, state[0], history), history]


def torch_sgd(momentum: Any, decay: Any, multiplier: Any, *state: Array) -> list[Array]:
    """weight' and history', with the rate outside the history."""
    rate = numbers(state[3])[()] * Fraction(multiplier)
    carried, kept = Fraction(momentum), Fraction(decay)
    history = each(lambda w, g, h: carried * h + (g + kept * w), *state[:3])
    return [each(lambda w, h: w - rate * h, state[0], history), history]


def adagrad(epsilon: float, decay: float, multiplier: float, *state: Array) -> list[Array]:
    """weight' and accumulated'."""
    rate = numbers(state[3])[()] * multiplier
    slope = each(lambda w, g: g + decay * w, *state[:2])
    squares = each(lambda a, g: a + g * g, state[2], slope)
    weight = each(lambda w, g, a: w - rate * g / (math.sqrt(a) + epsilon), state[0], slope, squares)
    return [weight, squares]
