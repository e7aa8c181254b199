"""How each operation is drawn: attributes, and inputs among the blobs of a scene or new sources, or None.

A draw may propose what the operation refuses: whoever asked finds that out by its shape rule. `DRAWS` has one for each
operation; one that is not named here is never drawn by itself, but may come as the gradient of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from purine_ref import ops
from purine_ref.conformance.driving import window_draws as windows
from purine_ref.conformance.driving.scene import Draw, Drawn, New, Scene
from purine_ref.operation import Operation


def _unary(make: Callable[[Scene], Operation], axes: int | None = None) -> Draw:
    """Any value, or any with so many axes."""

    def draw(scene: Scene) -> Drawn | None:
        """The operator, or None where the scene has no input for it."""
        x = scene.value(axes)
        return None if x is None else Drawn(make(scene), (x,))

    return draw


def _several(make: Callable[[Scene, int], Operation], least: int = 1, most: int = 3) -> Draw:
    """Several values of one shape, one perhaps twice."""

    def draw(scene: Scene) -> Drawn | None:
        """The operator, or None where the scene has no input for it."""
        x = scene.value()
        if x is None:
            return None
        count = scene.rng.randint(least, most)
        alike = [b for b in scene.values if b.tensor == x.tensor]
        return Drawn(make(scene, count), (x, *(scene.rng.choice(alike) for _ in range(count - 1))))

    return draw


def _beside(make: Callable[[], Operation]) -> Draw:
    """A value and one like it: the gradient of an element-wise operation."""

    def draw(scene: Scene) -> Drawn | None:
        """The operator, or None where the scene has no input for it."""
        y = scene.value()
        return None if y is None else Drawn(make(), (scene.like(y.shape), y))

    return draw


def _linear(scene: Scene) -> Drawn | None:
    x = scene.value()
    if x is None or len(x.shape) < 2:
        return None
    return Drawn(ops.Linear(), (x, scene.new((scene.rng.randint(1, 6), math.prod(x.shape[1:])))))


def _linear_data(scene: Scene) -> Drawn | None:
    x, dy = scene.value(), scene.value(2)
    if x is None or dy is None or len(x.shape) < 2:
        return None
    shape = (dy.shape[0], *x.shape[1:])
    return Drawn(ops.LinearDataGradient(shape), (dy, scene.new((dy.shape[1], math.prod(shape[1:])))))


def _linear_weight(scene: Scene) -> Drawn | None:
    x = scene.value()
    if x is None or len(x.shape) < 2:
        return None
    return Drawn(ops.LinearWeightGradient(), (scene.like((x.shape[0], scene.rng.randint(1, 6))), x))


def _bias(scene: Scene, operation: Callable[[int], Operation] = ops.Bias) -> Drawn | None:
    x = scene.value()
    if x is None or not x.shape:
        return None
    axis = scene.rng.choice((1, 1, 0, len(x.shape) - 1)) if len(x.shape) > 1 else 0
    return Drawn(operation(axis), (x, scene.new((x.shape[axis],))))


def _bias_gradient(scene: Scene) -> Drawn | None:
    dy = scene.value()
    return None if dy is None or len(dy.shape) < 2 else Drawn(ops.BiasGradient(1), (dy,))


def _bias_relu_gradient(scene: Scene) -> Drawn | None:
    y = scene.value()
    return None if y is None or len(y.shape) < 2 else Drawn(ops.BiasReLUGradient(1), (scene.like(y.shape), y))


def _concat(scene: Scene) -> Drawn | None:
    """Values that agree but along one axis; the same one twice, now and then."""
    x = scene.value()
    if x is None or not x.shape:
        return None
    axis = scene.rng.randrange(len(x.shape))

    def rest(shape: tuple[int, ...]) -> tuple[object, ...]:
        """The shape but for the axis."""
        return (*shape[:axis], None, *shape[axis + 1 :])

    fit = [b for b in scene.values if len(b.shape) == len(x.shape) and rest(b.shape) == rest(x.shape)]
    fit = [b for b in fit if b.tensor.at(x.location).dtype == x.dtype]
    return Drawn(ops.Concat(axis), (x, *(scene.rng.choice(fit) for _ in range(scene.rng.randint(1, 2)))))


def _cut(scene: Scene, make: Callable[[Scene, int, int], Operation]) -> Drawn | None:
    """An operation that takes a value apart along an axis of two or more."""
    x = scene.value()
    axes = [] if x is None else [axis for axis, length in enumerate(x.shape) if length > 1]
    if x is None or not axes:
        return None
    axis = scene.rng.choice(axes)
    return Drawn(make(scene, axis, x.shape[axis]), (x,))


def _slice(scene: Scene, axis: int, length: int) -> Operation:
    start = scene.rng.randrange(length)
    return ops.Slice(axis, start, scene.rng.randint(start + 1, length))


def _split(scene: Scene, axis: int, length: int) -> Operation:
    first = scene.rng.randint(1, length - 1)
    return ops.Split(axis, (first, length - first))


def _pad_slice(scene: Scene, axis: int, length: int) -> Operation:
    start = scene.rng.randint(0, 2)
    return ops.PadSlice(axis, start, start + length + scene.rng.randint(0, 2))


def _reshape(scene: Scene) -> Drawn | None:
    x = scene.value()
    if x is None or len(x.shape) < 2:
        return None
    shape = scene.rng.choice(((x.shape[0], -1), x.shape[::-1], (-1,)))
    return Drawn(ops.Reshape(tuple(int(n) for n in shape)), (x,)) if 0 not in x.shape else None


def _over(scene: Scene, axes: int) -> tuple[int, ...]:
    return tuple(sorted(scene.rng.sample(range(axes), scene.rng.randint(1, axes)))) if axes else ()


def _reduce(make: Callable[[tuple[int, ...]], Operation]) -> Draw:
    def draw(scene: Scene) -> Drawn | None:
        """The operator, or None where the scene has no input for it."""
        x = scene.value()
        return None if x is None or 0 in x.shape else Drawn(make(_over(scene, len(x.shape))), (x,))

    return draw


def _broadcast(scene: Scene) -> Drawn | None:
    like = scene.value()
    if like is None:
        return None
    over = _over(scene, len(like.shape))
    kept = tuple(n for axis, n in enumerate(like.shape) if axis not in over)
    return Drawn(ops.BroadcastTo(like.shape, over, scene.rng.choice((1.0, 0.5))), (scene.like(kept),))


def _squared(scene: Scene) -> Drawn | None:
    x = scene.value()
    if x is None or not x.shape:
        return None
    return Drawn(ops.SquaredError(scene.rng.choice(("sum", "mean"))), (x, scene.like(x.shape)))


def _squared_gradient(scene: Scene) -> Drawn | None:
    x = scene.value()
    if x is None or not x.shape:
        return None
    operation = ops.SquaredErrorGradient(scene.rng.choice(("sum", "mean")), scene.rng.choice((1, -1)))
    return Drawn(operation, (scene.like(()), x, scene.like(x.shape)))


def _cross_entropy(scene: Scene) -> Drawn | None:
    x = scene.value(2)
    if x is None or not scene.integers or 0 in x.shape:
        return None
    label = New(x.shape[:1], "int64", f"label:{x.shape[1]}")
    return Drawn(ops.SoftmaxCrossEntropy(scene.rng.choice(("sum", "mean"))), (x, label))


def _cross_entropy_gradient(scene: Scene) -> Drawn | None:
    x = scene.value(2)
    if x is None or not scene.integers or 0 in x.shape:
        return None
    label = New(x.shape[:1], "int64", f"label:{x.shape[1]}")
    operation = ops.SoftmaxCrossEntropyGradient(scene.rng.choice(("sum", "mean")))
    return Drawn(operation, (scene.like(()), x, label))


def _accuracy(scene: Scene) -> Drawn | None:
    x = scene.value(2)
    if x is None or not scene.integers or 0 in x.shape:
        return None
    label = New(x.shape[:1], "int64", f"label:{x.shape[1]}")
    return Drawn(ops.TopKAccuracy(scene.rng.randint(1, x.shape[1])), (x, label))


def _dropout(scene: Scene) -> Drawn | None:
    x = scene.value()
    if x is None:
        return None
    mask = New(x.shape, scene.dtype, "mask")
    return Drawn(ops.Dropout(0.5, scene.rng.choice(("train", "test"))), (x, mask))


def _update(make: Callable[[Scene], Operation], role: str = "history") -> Draw:
    def draw(scene: Scene) -> Drawn | None:
        """The operator, or None where the scene has no input for it."""
        gradient = scene.value()
        if gradient is None:
            return None
        shape = gradient.shape
        return Drawn(make(scene), (scene.like(shape), gradient, scene.new(shape, role), scene.new((), "rate")))

    return draw


def _source(make: Callable[[Scene, tuple[int, ...]], Operation]) -> Draw:
    """An operator without inputs, that makes a blob of the shape of another."""

    def draw(scene: Scene) -> Drawn | None:
        """The operator, or None where the scene has no input for it."""
        like = scene.value()
        return None if like is None else Drawn(make(scene, like.shape), ())

    return draw


def _momentum(scene: Scene) -> dict[str, float]:
    pick = scene.rng.choice
    return {"momentum": pick((0.5, 0.25)), "decay": pick((0.0, 0.5)), "multiplier": pick((1.0, 2.0))}


DRAWS: dict[str, Draw] = {
    "AdaGrad": _update(lambda s: ops.AdaGrad(1e-3, s.rng.choice((0.0, 0.5))), "squares"),
    "AveragePool2d": _unary(lambda s: ops.AveragePool2d(**windows.pooling(s), count=windows.count(s)), 4),
    "AveragePool2dGradient": windows.average_pool_gradient,
    "Bernoulli": _source(lambda s, shape: ops.Bernoulli(shape, s.dtype, s.rng.choice((0.5, 0.75)))),
    "Bias": _bias,
    "BiasGradient": _bias_gradient,
    "BiasReLU": lambda scene: _bias(scene, ops.BiasReLU),
    "BiasReLUGradient": _bias_relu_gradient,
    "BroadcastTo": _broadcast,
    "Concat": _concat,
    "Constant": _source(lambda s, shape: ops.Constant(s.rng.choice((0.0, 1.0, -2.0)), shape, s.dtype)),
    "Conv2d": windows.conv,
    "Conv2dDataGradient": lambda scene: windows.conv_gradient(scene, True),
    "Conv2dWeightGradient": lambda scene: windows.conv_gradient(scene, False),
    "Copy": _unary(lambda s: ops.Copy()),
    "Dropout": _dropout,
    "GlobalAveragePool2d": _unary(lambda s: ops.GlobalAveragePool2d(), 4),
    "GlobalAveragePool2dGradient": windows.global_gradient,
    "Identity": _unary(lambda s: ops.Identity()),
    "LRN": _unary(lambda s: ops.LRN(s.rng.choice((1, 3, 5)), 0.5, 0.75, s.rng.choice((1.0, 2.0))), 4),
    "LRNGradient": _beside(lambda: ops.LRNGradient(3, 0.5, 0.75)),
    "Linear": _linear,
    "LinearDataGradient": _linear_data,
    "LinearWeightGradient": _linear_weight,
    "LogSoftmax": _unary(lambda s: ops.LogSoftmax(1), 2),
    "LogSoftmaxGradient": _beside(lambda: ops.LogSoftmaxGradient(1)),
    "MaxPool2d": windows.max_pool,
    "MaxPool2dGradient": windows.max_pool_gradient,
    "Mean": _several(lambda s, n: ops.Mean()),
    "Mul": _several(lambda s, n: ops.Mul(), 2, 2),
    "PadSlice": lambda scene: _cut(scene, _pad_slice),
    "ReLU": _unary(lambda s: ops.ReLU()),
    "ReLUGradient": _beside(lambda: ops.ReLUGradient()),
    "ReduceMean": _reduce(ops.ReduceMean),
    "ReduceSum": _reduce(ops.ReduceSum),
    "Reshape": _reshape,
    "SGD": _update(lambda s: ops.SGD(**_momentum(s))),
    "Scale": _unary(lambda s: ops.Scale(s.rng.choice((0.5, -2.0, 3.0)))),
    "Sigmoid": _unary(lambda s: ops.Sigmoid()),
    "SigmoidGradient": _beside(lambda: ops.SigmoidGradient()),
    "Slice": lambda scene: _cut(scene, _slice),
    "Softmax": _unary(lambda s: ops.Softmax(1), 2),
    "SoftmaxCrossEntropy": _cross_entropy,
    "SoftmaxCrossEntropyGradient": _cross_entropy_gradient,
    "SoftmaxGradient": _beside(lambda: ops.SoftmaxGradient(1)),
    "Split": lambda scene: _cut(scene, _split),
    "SquaredError": _squared,
    "SquaredErrorGradient": _squared_gradient,
    "Sum": _several(lambda s, n: ops.Sum()),
    "Tanh": _unary(lambda s: ops.Tanh()),
    "TanhGradient": _beside(lambda: ops.TanhGradient()),
    "TopKAccuracy": _accuracy,
    "TorchSGD": _update(lambda s: ops.TorchSGD(**_momentum(s))),
    "Uniform": _source(lambda s, shape: ops.Uniform(shape, s.dtype, -1.0, 1.0)),
    "WeightedSum": _several(lambda s, n: ops.WeightedSum(tuple(s.rng.choice((1.0, -2.0, 0.5)) for _ in range(n)))),
}
"""The draw of each operation, by its name."""
