"""What operations must give, by loops over single elements; no line is shared with the package.

Arrays go in as anything that numpy takes and come out as arrays of Python objects. The arithmetic is that of the
elements: Python floats give float64 values from the formula alone, fractions give exact ones. Attributes are taken as
fractions, which are what their floats are worth, so that neither is rounded by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

Array = Any
Index = tuple[int, ...]


def numbers(array: Any) -> Array:
    """The same elements as Python numbers: floats are float64, whatever they were in."""
    return np.asarray(array).astype(object)


def zeros(shape: Index) -> Array:
    """Zeros, as Python integers, which no addition rounds."""
    return np.full(shape, 0, object)


def places(shape: Index) -> Iterator[Index]:
    """Every index into `shape`, in row-major order."""
    return product(*map(range, shape))


def each(function: Callable[..., Any], *arrays: Any) -> Array:
    """`function` of the elements at each index of arrays of one shape."""
    given = [numbers(array) for array in arrays]
    result = zeros(given[0].shape)
    for at in places(result.shape):
        result[at] = function(*(array[at] for array in given))
    return result
