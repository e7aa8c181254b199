"""The operations, over flat lists in C order. Sums are taken in Python's floats, which are float64, in a fixed order.

Each function takes the attributes, the input tensors and the output tensors (`Tensor`: a shape, a dtype and, for
inputs, the elements), and returns a list of elements for each output. `OPERATIONS` has them by their names in cases.
"""

import math
from collections import namedtuple

import npy
from averages import dropout, normalise, normalise_gradient, pool_average, scatter_average
from windows import convolve, convolve_data, convolve_weight, pool_maximum, scatter_maximum

Tensor = namedtuple("Tensor", "shape dtype values")


def linear(attributes, inputs, outputs):
    """y[n, o] = sum over i of x[n, i] weight[o, i]."""
    x, weight = inputs
    (batch, features), (out, _) = (x.shape[0], math.prod(x.shape[1:])), weight.shape
    rows = [x.values[n * features : (n + 1) * features] for n in range(batch)]
    columns = [weight.values[o * features : (o + 1) * features] for o in range(out)]
    return [[dot(row, column) for row in rows for column in columns]]


def linear_data_gradient(attributes, inputs, outputs):
    """dx[n, i] = sum over o of dy[n, o] weight[o, i]."""
    dy, weight = inputs
    (batch, out), features = dy.shape, weight.shape[1]
    columns = [weight.values[i::features] for i in range(features)]
    rows = [dy.values[n * out : (n + 1) * out] for n in range(batch)]
    return [[dot(row, column) for row in rows for column in columns]]


def linear_weight_gradient(attributes, inputs, outputs):
    """dweight[o, i] = sum over n of dy[n, o] x[n, i]."""
    dy, x = inputs
    out, features = outputs[0].shape
    rows = [dy.values[o::out] for o in range(out)]
    columns = [x.values[i::features] for i in range(features)]
    return [[dot(row, column) for row in rows for column in columns]]


def dot(a, b):
    """The sum of products."""
    total = 0.0
    for left, right in zip(a, b, strict=True):
        total += left * right
    return total


def bias(attributes, inputs, outputs):
    """y = x + bias, along one axis."""
    x, b = inputs
    return [[value + b.values[c] for value, c in zip(x.values, along(x.shape, attributes["axis"]), strict=True)]]


def bias_gradient(attributes, inputs, outputs):
    """dbias[c] = sum of dy over all other axes."""
    (dy,) = inputs
    sums = [0.0] * outputs[0].shape[0]
    for value, c in zip(dy.values, along(dy.shape, attributes["axis"]), strict=True):
        sums[c] += value
    return [sums]


def along(shape, axis):
    """For each element in C order its index along an axis."""
    axis %= len(shape)
    inner = math.prod(shape[axis + 1 :])
    return [i // inner % shape[axis] for i in range(math.prod(shape))]


def relu(attributes, inputs, outputs):
    """x where it is above 0, else 0; NaN passes."""
    return [[value if value > 0 or value != value else 0.0 for value in inputs[0].values]]


def relu_gradient(attributes, inputs, outputs):
    """dy where y is above 0 or NaN, else 0."""
    dy, y = inputs
    return [[d if value > 0 or value != value else 0.0 for d, value in zip(dy.values, y.values, strict=True)]]


def total(attributes, inputs, outputs):
    """The sum of the inputs, added in their order and rounded to the dtype after each addition."""
    result = list(inputs[0].values)
    for x in inputs[1:]:
        result = rounded(x.dtype, [a + b for a, b in zip(result, x.values, strict=True)])
    return [result]


def multiply(attributes, inputs, outputs):
    """The product, element by element."""
    a, b = inputs
    return [[left * right for left, right in zip(a.values, b.values, strict=True)]]


def scale(attributes, inputs, outputs):
    """The input times a number."""
    return [[value * attributes["factor"] for value in inputs[0].values]]


def constant(attributes, inputs, outputs):
    """One value everywhere."""
    value = attributes["value"] if outputs[0].dtype == "int64" else float(attributes["value"])
    return [[value] * math.prod(outputs[0].shape)]


def identity(attributes, inputs, outputs):
    """The input as it is, perhaps in another shape or at another place."""
    return [inputs[0].values]


def squared_error(attributes, inputs, outputs):
    """Half the sum of (x - target)^2, over the batch where the reduction is a mean."""
    x, target = inputs
    squares = math.fsum((a - b) ** 2 for a, b in zip(x.values, target.values, strict=True))
    return [[squares / 2 / divisor(attributes, x)]]


def squared_error_gradient(attributes, inputs, outputs):
    """sign dloss (x - target), over the same divisor."""
    dloss, x, target = inputs
    factor = attributes["sign"] * dloss.values[0] / divisor(attributes, x)
    return [[factor * (a - b) for a, b in zip(x.values, target.values, strict=True)]]


def divisor(attributes, x):
    """What a loss divides by: the samples of the whole batch for a mean, else 1."""
    if attributes["reduction"] == "sum":
        return 1
    samples = attributes["samples"]
    return max(x.shape[0] if samples is None else samples, 1)


def sgd(attributes, inputs, outputs):
    """history' = momentum history + lr (gradient + decay weight); weight' = weight - history'."""
    weight, gradient, history, rate = inputs
    lr = rate.values[0] * attributes["multiplier"]
    momentum, decay = attributes["momentum"], attributes["decay"]
    moved = rounded(
        weight.dtype,
        [
            momentum * h + lr * (g + decay * w)
            for w, g, h in zip(weight.values, gradient.values, history.values, strict=True)
        ],
    )
    return [[w - h for w, h in zip(weight.values, moved, strict=True)], moved]


def concat(attributes, inputs, outputs):
    """The inputs one after the other along an axis."""
    axis = attributes["axis"] % len(outputs[0].shape)
    outer = math.prod(outputs[0].shape[:axis])
    rows = [math.prod(x.shape[axis:]) for x in inputs]
    return [
        [value for n in range(outer) for x, row in zip(inputs, rows, strict=True)
         for value in x.values[n * row : (n + 1) * row]]
    ]  # fmt: skip


def split(attributes, inputs, outputs):
    """Parts of the input along an axis, of the given sizes."""
    start, parts = 0, []
    for size in attributes["sizes"]:
        parts.append(cut(inputs[0], attributes["axis"], start, start + size))
        start += size
    return parts


def slice_axis(attributes, inputs, outputs):
    """Elements start to stop - 1 along an axis."""
    return [cut(inputs[0], attributes["axis"], attributes["start"], attributes["stop"])]


def pad_slice(attributes, inputs, outputs):
    """The input at `start` along an axis of `length`, zeros elsewhere."""
    (x,), axis = inputs, attributes["axis"] % len(inputs[0].shape)
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    row, before = x.shape[axis] * inner, attributes["start"] * inner
    after = attributes["length"] * inner - before - row
    result = []
    for n in range(outer):
        result += [0] * before + list(x.values[n * row : (n + 1) * row]) + [0] * after
    return [result]


def cut(x, axis, start, stop):
    """The part of a tensor between two indices of an axis."""
    axis %= len(x.shape)
    inner = math.prod(x.shape[axis + 1 :])
    row = x.shape[axis] * inner
    rows = range(math.prod(x.shape[:axis]))
    return [value for n in rows for value in x.values[n * row + start * inner : n * row + stop * inner]]


def rounded(dtype, values):
    """The values rounded to a dtype."""
    return list(npy.cells(dtype, values))


OPERATIONS = {
    "AveragePool2d": pool_average,
    "AveragePool2dGradient": scatter_average,
    "Bias": bias,
    "BiasGradient": bias_gradient,
    "Concat": concat,
    "Constant": constant,
    "Conv2d": convolve,
    "Conv2dDataGradient": convolve_data,
    "Conv2dWeightGradient": convolve_weight,
    "Copy": identity,
    "Dropout": dropout,
    "Identity": identity,
    "LRN": normalise,
    "LRNGradient": normalise_gradient,
    "Linear": linear,
    "LinearDataGradient": linear_data_gradient,
    "LinearWeightGradient": linear_weight_gradient,
    "MaxPool2d": pool_maximum,
    "MaxPool2dGradient": scatter_maximum,
    "Mul": multiply,
    "PadSlice": pad_slice,
    "ReLU": relu,
    "ReLUGradient": relu_gradient,
    "Reshape": identity,
    "SGD": sgd,
    "Scale": scale,
    "Slice": slice_axis,
    "Split": split,
    "SquaredError": squared_error,
    "SquaredErrorGradient": squared_error_gradient,
    "Sum": total,
}
