"""What pooling operations share: how many windows there are and what they hold, and along which axes they can be cut.

One function, `pooled_size`, gives the number of windows per axis to shape rule, forward and backward alike. Every
window it counts holds at least one element of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.operation import Axis, Operation
from purine_ref.ops.attributes import Pair
from purine_ref.ops.axes import common_axes
from purine_ref.tensor import Tensor


def pooled_size(size: int, kernel: int, stride: int, pad: Pair, rounding: str) -> int:
    """Windows along an axis: (size + pads - kernel) / stride, rounded up ("ceil") or down ("floor"), plus 1.

    A last window that would start outside image and begin padding is left out: it would hold no element. Less than 1
    when no window fits. Source: Caffe, and its bug report 6881.
    """
    room = size + sum(pad) - kernel
    count = (-(-room // stride) if rounding == "ceil" else room // stride) + 1
    starts_inside = (count - 1) * stride < size + pad[0]
    return count if starts_inside else count - 1


def window_lengths(size: int, kernel: int, stride: int, pad: Pair, rounding: str, count: str) -> tuple[int, ...]:
    """Elements along an axis that each window's average counts.

    With `count` "padded" those of the image and its declared padding, with "valid" those of the image alone. What a
    last window has beyond the declared padding is never counted.
    """
    low, high = (-pad[0], size + pad[1]) if count == "padded" else (0, size)
    starts = (i * stride - pad[0] for i in range(pooled_size(size, kernel, stride, pad, rounding)))
    return tuple(min(start + kernel, high) - max(start, low) for start in starts)


class PlaneOperation(Operation):
    """An operation on each image and channel alone."""

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """n: the images; c: the channels."""
        return common_axes({"n": 0, "c": 1}, inputs, outputs)
