"""The embedded digits: 1,797 handwritten digits of 8x8 pixels, so that everything can be tried without a download.

Source and licence (CC BY 4.0, from the UCI Machine Learning Repository) are in `purine_ref/datasets/digits.txt`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from purine_ref.data.dataset import Bytes, Dataset, require_float, scaled
from purine_ref.errors import Refused

HELD_OUT = 6
"""One in this many samples of each class is held out for testing."""

_FILE = Path(__file__).parent.parent / "datasets" / "digits.npz"
_SHAPE = (1797, 8, 8)


def load_digits(dtype: str = "float32") -> Dataset:
    """The embedded digits: 1,501 training and 296 test images (N, 1, 8, 8), each pixel one of 0/16 to 16/16.

    Of each class, in stored order, every sixth sample is held out for testing; what remains keeps its order. (Every
    sixth sample of the whole would hold out even digits for the most part, since the digits are stored in rounds of
    ten.) Sixteenths are exact in either dtype.

    Raises ShapeError unless `dtype` is float32 or float64, and Refused when the embedded file is damaged.
    """
    require_float(dtype)
    pixels, classes = _stored(_FILE)
    images, labels = scaled(pixels[:, np.newaxis], 16, dtype), classes.astype(np.int64)
    test = held_out(classes)
    return Dataset(images[~test], labels[~test], images[test], labels[test])


def held_out(classes: Bytes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For labels (N,), whether each sample is the sixth, twelfth, and so on of its class."""
    test = np.zeros(len(classes), np.bool_)
    for label in np.unique(classes):
        test[np.flatnonzero(classes == label)[HELD_OUT - 1 :: HELD_OUT]] = True
    return test


def _stored(path: Path) -> tuple[Bytes, Bytes]:
    """The stored pixels (1797, 8, 8) and labels (1797,). Raises Refused when the file is damaged or another."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as members:
            pixels, classes = members["images"], members["labels"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise Refused(f"{path}: expected the embedded digits, got {error}; install the package again") from error
    if (pixels.shape, classes.shape) != (_SHAPE, _SHAPE[:1]) or pixels.dtype != np.uint8 or classes.dtype != np.uint8:
        raise Refused(
            f"{path}: expected uint8 images {_SHAPE} and labels {_SHAPE[:1]}, "
            f"got {pixels.dtype} {pixels.shape} and {classes.dtype} {classes.shape}; install the package again"
        )
    return pixels, classes
