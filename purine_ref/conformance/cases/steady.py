"""Arithmetic that gives the same bits on every machine: the vocabulary by which expected values are computed.

BLAS, and the vectorised functions of an array library, may differ in the last bit from one machine to another. Here
every operation writes with the code that it always has, but its arrays are `Steady`: an array that lets through what
IEEE 754 fixes (the four operations, roots, comparisons, sums in a stated order), takes sums of many elements exactly
and rounds once, takes functions from decimal arithmetic, and refuses everything else. So nothing can slip
by, in an operation that is added later either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import mul
from typing import Any

import numpy as np

from purine_ref.conformance.cases.functions import FUNCTIONS
from purine_ref.devices.kernels import PlainKernels
from purine_ref.operation import Array, RunKey, Window

IEEE = frozenset(
    "add subtract multiply divide sqrt square reciprocal absolute negative positive maximum minimum sign nextafter "
    "equal not_equal less less_equal greater greater_equal isnan isfinite isinf logical_and logical_or logical_not "
    "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift floor rint frexp ldexp".split()
)
"""Functions of numpy whose every bit is fixed by their definition."""

ORDERED = frozenset({"maximum", "minimum", "logical_and", "logical_or"})
"""Those that give the same whatever the order in which they reduce."""

MADE = frozenset(
    "zeros ones full empty empty_like arange asarray ascontiguousarray where moveaxis take_along_axis argwhere reshape "
    "broadcast_to concatenate stack copyto cumsum".split()
)
"""Functions that only make and move; `cumsum` adds one element after the other."""

CONSTANTS = frozenset({"inf", "nan", "pi", "float32", "float64", "int64", "uint64", "newaxis", "bool_", "errstate"})

Plain = Any
"""A numpy array of the base class."""


class Steady(np.ndarray):
    """An array whose arithmetic is the same everywhere; see the module's text."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Compute by a steady rule, or raise TypeError where there is none."""
        plain = [_plain(each) for each in inputs]
        result = _computed(ufunc.__name__, ufunc, method, plain, options)
        if out is None:
            return steady(result)
        for target, value in zip(out, result if isinstance(result, tuple) else (result,), strict=True):
            _plain(target)[...] = value
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, _: Any, arguments: Any, options: Any) -> Any:
        """Call a function that only makes and moves; raise TypeError for others, which might go to BLAS."""
        if function.__name__ not in MADE:
            raise TypeError(f"numpy's {function.__name__} has no steady rule")
        return _wrapped(function)(*arguments, **options)

    def dot(self, *_: Any, **__: Any) -> Any:
        """Refused: it would go past the rules, to BLAS."""
        raise TypeError("Steady.dot: use matmul, whose sums are steady")


def steady(result: Any) -> Any:
    """A result as a steady array, also where it is a scalar or a tuple of arrays."""
    if isinstance(result, tuple):
        return tuple(steady(each) for each in result)
    return np.asarray(result).view(Steady) if isinstance(result, (np.ndarray, np.generic)) else result


def _plain(value: Any) -> Any:
    """Without the class, so that numpy computes by itself."""
    return value.view(np.ndarray) if isinstance(value, Steady) else value


def _computed(name: str, ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """One call of a numpy function, by a steady rule. Raises TypeError where there is none."""
    if method == "__call__" and name == "matmul":
        return _matmul(*inputs)
    if method == "__call__" and (name in FUNCTIONS):
        return _function(FUNCTIONS[name], inputs)
    if method in ("__call__", "outer", "at") and name in IEEE:
        return getattr(ufunc, method)(*inputs, **options)
    if method == "accumulate" and name == "add":
        return ufunc.accumulate(*inputs, **options)
    if method == "reduce" and name == "add" and _is_float(inputs[0], options.get("dtype")):
        return _reduced(inputs[0], **options)
    if method == "reduce" and (name in ORDERED or name == "add"):  # sums of integers are exact
        return ufunc.reduce(*inputs, **options)
    raise TypeError(f"numpy's {name}.{method} has no steady rule: its bits may differ from machine to machine")


def _is_float(array: Any, dtype: Any) -> bool:
    return np.asarray(array).dtype.kind == "f" or (dtype is not None and np.dtype(dtype).kind == "f")


def _function(function: Callable[..., float], inputs: Sequence[Any]) -> Plain:
    """A function of float64, correctly rounded, element by element."""
    arrays = np.broadcast_arrays(*[np.asarray(each, np.float64) for each in inputs])
    values = [function(*elements) for elements in zip(*(each.ravel().tolist() for each in arrays), strict=True)]
    return np.array(values, np.float64).reshape(arrays[0].shape)


def _reduced(
    array: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Plain:
    """A sum along axes, exact and rounded once to float64."""
    if where is not True or initial not in (None, np._NoValue, 0):
        raise TypeError("a steady sum is over all elements along its axes, from 0")
    x = np.asarray(array, np.float64)
    axes = tuple(range(x.ndim)) if axis is None else tuple(a % x.ndim for a in np.atleast_1d(axis).tolist())
    rest = [a for a in range(x.ndim) if a not in axes]
    rows = x.transpose(*rest, *axes).reshape(math.prod(x.shape[a] for a in rest), -1 if x.size else 0)
    sums = np.array([exact_sum(row) for row in rows.tolist()], np.float64)
    shape = [1 if a in axes else n for a, n in enumerate(x.shape)] if keepdims else [x.shape[a] for a in rest]
    return sums.reshape(shape).astype(dtype or np.float64)


def _matmul(a: Any, b: Any) -> Plain:
    """The product of matrices or of stacks of them: each sum of products is exact and rounded once."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    stack = math.prod(shape)
    lefts = np.broadcast_to(a, (*shape, *a.shape[-2:])).reshape(stack, *a.shape[-2:]).tolist()
    rights = np.broadcast_to(b, (*shape, *b.shape[-2:])).swapaxes(-1, -2)
    columns = rights.reshape(stack, b.shape[-1], b.shape[-2]).tolist()
    product = [[[exact_dot(row, column) for column in columns[i]] for row in lefts[i]] for i in range(stack)]
    return np.array(product, np.float64).reshape(*shape, a.shape[-2], b.shape[-1])


def exact_dot(a: Sequence[float], b: Sequence[float]) -> float:
    """The sum of the products, as `exact_sum` has it; the products are rounded to float64 each."""
    return exact_sum(list(map(mul, a, b)))


def exact_sum(terms: Sequence[float]) -> float:
    """The sum, rounded once; infinite or NaN where IEEE 754 has it so in every order, and where it overflows."""
    try:
        return math.fsum(terms)
    except ValueError:  # infinities of both signs
        return math.nan
    except OverflowError:  # a partial sum was too large; the whole may not be
        total = sum(map(Fraction, terms))
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


LOOPS = (
    "im2col col2im max_pool max_pool_scatter average_pool average_pool_scatter window_sum philox add_bias "
    "bias_relu relu_bias_gradient bias_gradient relu relu_gradient momentum_update torch_update adagrad_update".split()
)
"""Loops whose every operation, and the order of them, is fixed by IEEE 754 and their definition."""

OWN = ("cross_entropy", "cross_entropy_gradient", "flatten")
"""Loops that a device may lack, and that would leave the steady arrays: operations are spelled out instead."""


class SteadyKernels(PlainKernels):
    """The plain kernel set with steady arithmetic: what makes arrays makes steady ones, loops return such.

    Convolutions are the plain set's own, over steady arrays; LRN is spelled out, since its loop takes powers.
    """

    def __init__(self, key: RunKey) -> None:
        super().__init__(key)
        self.xp = _Vocabulary()
        for name in LOOPS:
            setattr(self, name, _wrapped(getattr(PlainKernels, name)))
        for name in OWN:
            setattr(self, name, None)

    def convolution(self, x: Array, weight: Array, y: Array, window: Window) -> None:
        """The plain set's, of steady arrays."""
        super().convolution(steady(x), steady(weight), y, window)

    def convolution_data(self, dy: Array, weight: Array, dx: Array, window: Window) -> None:
        """The plain set's, of steady arrays."""
        super().convolution_data(steady(dy), steady(weight), dx, window)

    def convolution_weight(self, dy: Array, x: Array, dweight: Array, window: Window) -> None:
        """The plain set's, of steady arrays."""
        super().convolution_weight(steady(dy), steady(x), dweight, window)

    def lrn(self, x: Array, n: int, alpha: float, beta: float, k: float, out: Array) -> None:
        """out = x scale^-beta, with scale = k + alpha / n times the window's sum of squares."""
        x = steady(x)
        out[...] = x * (k + alpha / n * self.window_sum(x * x, n)) ** -beta

    def lrn_gradient(self, dy: Array, x: Array, n: int, alpha: float, beta: float, k: float, out: Array) -> None:
        """The element's own term less what it does to its neighbours' scales."""
        dy, x = steady(dy), steady(x)
        scale = k + alpha / n * self.window_sum(x * x, n)
        own = dy * scale**-beta
        out[...] = own - (2 * alpha / n * beta) * x * self.window_sum(own * x / scale, n)


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function on plain arrays that takes and gives steady ones."""

    def call(*arguments: Any, **options: Any) -> Any:
        """The function, on plain arrays."""
        options = {name: _plain(value) for name, value in options.items()}
        return steady(function(*[_plain(each) for each in arguments], **options))

    return call


class _Vocabulary:
    """What operations call `xp`: the part of numpy that has steady rules."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, np.ufunc):
            return _Function(found)
        if name in MADE:
            return _wrapped(found)
        if name in CONSTANTS:
            return found
        raise TypeError(f"numpy's {name} has no steady rule: add it to those that only move, or give it one")


class _Function:
    """A numpy function whose arguments become steady before it is called, so that they decide how it is computed."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self._function(*[_given(each) for each in inputs], **options)

    def outer(self, *inputs: Any, **options: Any) -> Any:
        """The function of all pairs."""
        return self._function.outer(*[_given(each) for each in inputs], **options)


def _given(value: Any) -> Any:
    """An argument as a steady array. Python numbers stay: they do not promote."""
    return steady(value) if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value).view(Steady)
