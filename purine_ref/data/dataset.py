"""`Dataset`, what every loader returns, and the conversion of stored pixels to it.

Pixels are stored as unsigned bytes, whose arithmetic wraps around; they become floats before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purine_ref.errors import ShapeError

Images = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images (N, channels, height, width) of float32 or float64, and labels (N,) of int64, for training and testing."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels

    def centred(self) -> Dataset:
        """The same data less the mean training image, which is summed in float64 and rounded once; dtypes stay."""
        mean = self.train_images.mean(axis=0, dtype=np.float64).astype(self.train_images.dtype)
        return replace(self, train_images=self.train_images - mean, test_images=self.test_images - mean)


def scaled(pixels: Bytes, top: int, dtype: str) -> Images:
    """`pixels / top` as `dtype`, of the same shape: a pixel of value `top` becomes 1.

    Raises ShapeError unless `dtype` is float32 or float64.
    """
    require_float(dtype)
    images: Images = pixels.astype(dtype)
    images /= top
    return images


def require_float(dtype: str) -> None:
    """Raise ShapeError unless `dtype` is float32 or float64."""
    if dtype not in ("float32", "float64"):
        raise ShapeError(f"images: expected dtype float32 or float64, got {dtype!r}")
