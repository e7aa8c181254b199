"""The most arithmetic that numpy's BLAS does here: products of square matrices, on each worker one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.side import Side
from purine_ref.devices.cpu import limit_blas

SIZE = 1024
"""Rows and columns: the matrices are out of the inner caches, as those of a network are."""

FLOPS = 2 * SIZE**3
"""Of one product."""


class Products(Side):
    """A step is one product on each worker, BLAS being held to one thread."""

    def __init__(self, workers: int, dtype: str, seed: int) -> None:
        limit_blas()
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal((2, SIZE, SIZE)).astype(dtype)
        self._sets = [(a, b, np.zeros_like(a)) for _ in range(workers)]
        self._pool = ThreadPoolExecutor(workers)

    def step(self) -> None:
        """A product on each worker."""
        for done in [self._pool.submit(np.matmul, a, b, out=c) for a, b, c in self._sets]:
            done.result()

    def checked_step(self) -> float:
        """No loss."""
        raise NotImplementedError("products of matrices have no loss")

    def facts(self) -> dict[str, float]:
        """The arithmetic of a step."""
        return {"flops": FLOPS * len(self._sets)}

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown()


def side(spec: Spec, dtype: str) -> Side:
    """The products of a spec."""
    return Products(spec.workers, dtype, spec.seed)
