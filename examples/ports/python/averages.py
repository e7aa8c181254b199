"""Average pooling, local response normalisation and dropout, over flat lists in C order: images are (N, C, H, W)."""

import math


def windows(attributes, shape, pooled):
    """For each window, in C order, the places of its elements in x, and the number that the mean divides by."""
    (batch, channels, height, width), (_, _, oh, ow) = shape, pooled
    (kh, kw), (sh, sw) = attributes["kernel"], attributes["stride"]
    (top, bottom), (left, right) = attributes["pads"]
    padded = attributes["count"] == "padded"
    for plane in range(batch * channels):
        for i in range(oh):
            rows, tall = along_axis(i * sh - top, kh, height, top, bottom, padded)
            for j in range(ow):
                columns, wide = along_axis(j * sw - left, kw, width, left, right, padded)
                places = [(plane * height + row) * width + column for row in rows for column in columns]
                yield places, tall * wide


def along_axis(start, kernel, size, before, after, padded):
    """The elements of a window that are inside the image, and how many count: declared padding may, more never does."""
    inside = range(max(start, 0), min(start + kernel, size))
    counted = min(start + kernel, size + after) - max(start, -before) if padded else len(inside)
    return inside, counted


def pool_average(attributes, inputs, outputs):
    """The mean of each window."""
    (x,) = inputs
    found = windows(attributes, x.shape, outputs[0].shape)
    return [[sum(x.values[place] for place in places) / count if count else 0.0 for places, count in found]]


def scatter_average(attributes, inputs, outputs):
    """Each dy, divided as its mean was, goes to every element of its window; windows that overlap add up."""
    (dy,) = inputs
    dx = [0.0] * math.prod(outputs[0].shape)
    for value, (places, count) in zip(dy.values, windows(attributes, outputs[0].shape, dy.shape), strict=True):
        for place in places:
            dx[place] += value / count
    return [dx]


def neighbours(attributes, shape):
    """For each element in C order the places of those in the n channels around it, as far as they exist."""
    channels, inner, half = shape[1], math.prod(shape[2:]), attributes["n"] // 2
    for place in range(math.prod(shape)):
        channel = place // inner % channels
        first, last = max(channel - half, 0), min(channel + half, channels - 1)
        yield [place + (c - channel) * inner for c in range(first, last + 1)]


def scales(attributes, x):
    """k + alpha / n times the sum of squares around each element."""
    share = attributes["alpha"] / attributes["n"]
    around = neighbours(attributes, x.shape)
    return [attributes["k"] + share * sum(x.values[place] ** 2 for place in places) for places in around]


def normalise(attributes, inputs, outputs):
    """y = x scale^-beta."""
    (x,) = inputs
    beta = attributes["beta"]
    return [[value * scale**-beta for value, scale in zip(x.values, scales(attributes, x), strict=True)]]


def normalise_gradient(attributes, inputs, outputs):
    """dx = dy scale^-beta - 2 alpha / n beta x times the sum, around each, of dy x scale^(-beta - 1)."""
    dy, x = inputs
    beta, scale = attributes["beta"], scales(attributes, x)
    terms = [d * v * s ** (-beta - 1) for d, v, s in zip(dy.values, x.values, scale, strict=True)]
    sums = [sum(terms[place] for place in places) for places in neighbours(attributes, x.shape)]
    factor = 2 * attributes["alpha"] / attributes["n"] * beta
    return [[d * s**-beta - factor * v * t for d, s, v, t in zip(dy.values, scale, x.values, sums, strict=True)]]


def dropout(attributes, inputs, outputs):
    """x where the mask keeps it, else 0; scaled in training or in testing, as `scale` says."""
    x, keep = inputs[0].values, 1 - attributes["ratio"]
    if not attributes["train"]:
        return [[value * keep if attributes["scale"] == "test" else value for value in x]]
    factor = 1 / keep if attributes["scale"] == "train" else 1
    return [[value * factor if kept else 0.0 for value, kept in zip(x, inputs[1].values, strict=True)]]
