"""Convolution and max pooling, over flat lists in C order: images (N, C, H, W), weights (K, C/groups, kh, kw).

A convolution and its two gradients add the same products to different elements, so one generator, `products`, gives
the places of all three factors.
"""

import math


def products(attributes, x_shape, weight_shape, y_shape):
    """For each product of a convolution the places in x, weight and y. The kernel is not flipped."""
    (batch, channels, height, width), (_, depth, kh, kw), (_, kernels, oh, ow) = x_shape, weight_shape, y_shape
    (sh, sw), (dh, dw) = attributes["stride"], attributes["dilation"]
    (top, _), (left, _) = attributes["pads"]
    per_group = kernels // attributes["groups"]
    for n in range(batch):
        for k in range(kernels):
            first = k // per_group * depth  # the group's first input channel
            for i in range(oh):
                for j in range(ow):
                    y = ((n * kernels + k) * oh + i) * ow + j
                    for c in range(depth):
                        for p in range(kh):
                            row = i * sh + p * dh - top
                            if not 0 <= row < height:
                                continue
                            for q in range(kw):
                                column = j * sw + q * dw - left
                                if 0 <= column < width:
                                    x = ((n * channels + first + c) * height + row) * width + column
                                    yield x, ((k * depth + c) * kh + p) * kw + q, y


def convolve(attributes, inputs, outputs):
    """y gets x times weight."""
    x, weight = inputs
    y = [0.0] * math.prod(outputs[0].shape)
    for a, b, c in products(attributes, x.shape, weight.shape, outputs[0].shape):
        y[c] += x.values[a] * weight.values[b]
    return [y]


def convolve_data(attributes, inputs, outputs):
    """dx gets dy times weight; what no window touches stays 0."""
    dy, weight = inputs
    dx = [0.0] * math.prod(outputs[0].shape)
    for a, b, c in products(attributes, outputs[0].shape, weight.shape, dy.shape):
        dx[a] += dy.values[c] * weight.values[b]
    return [dx]


def convolve_weight(attributes, inputs, outputs):
    """dweight gets dy times x."""
    dy, x = inputs
    dweight = [0.0] * math.prod(outputs[0].shape)
    for a, b, c in products(attributes, x.shape, outputs[0].shape, dy.shape):
        dweight[b] += dy.values[c] * x.values[a]
    return [dweight]


def pool_maximum(attributes, inputs, outputs):
    """Each window's greatest element and its place in the plane. Ties go to the first, NaN wins, padding never does."""
    (x,) = inputs
    (_, _, height, width), (batch, channels, oh, ow) = x.shape, outputs[0].shape
    (kh, kw), (top, _), (left, _) = attributes["kernel"], *attributes["pads"]
    sh, sw = attributes["stride"]
    values, places = [], []
    for plane in range(batch * channels):
        pixels = x.values[plane * height * width : (plane + 1) * height * width]
        for i in range(oh):
            rows = range(max(i * sh - top, 0), min(i * sh - top + kh, height))
            for j in range(ow):
                columns = range(max(j * sw - left, 0), min(j * sw - left + kw, width))
                place = winner(pixels, [row * width + column for row in rows for column in columns])
                values.append(pixels[place])
                places.append(place)
    return [values, places]


def winner(pixels, places):
    """The place of the greatest, of equal ones the first; of the first NaN, if there is one."""
    best = places[0]
    for place in places[1:]:
        value, most = pixels[place], pixels[best]
        if value > most or (value != value and most == most):
            best = place
    return best


def scatter_maximum(attributes, inputs, outputs):
    """Each dy goes to the element that won its window; windows that overlap add up."""
    dy, index = inputs
    _, _, height, width = outputs[0].shape
    dx = [0.0] * math.prod(outputs[0].shape)
    windows = dy.shape[2] * dy.shape[3]
    for i, (value, place) in enumerate(zip(dy.values, index.values, strict=True)):
        dx[i // windows * height * width + place] += value
    return [dx]
