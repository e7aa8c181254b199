"""PyTorch's side on a GPU: the same networks, eager and channels-last, with TF32 off or on; timed by CUDA events.

cuDNN may try which of its algorithms is fastest (`benchmark`), which it does in the first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.side import Side
from purine_ref.benchmarks.timing import paused_collector
from purine_ref.benchmarks.torch_peer import TorchStep

HOWS = ("channels-last", "channels-last, TF32")
"""What is measured: products in float32, and with the operands rounded to 10 bits for the tensor cores."""


def lack() -> str | None:
    """Why PyTorch is left out here, with what to do; None where it finds a GPU."""
    try:
        import torch
    except ImportError:
        return "torch is left out: it is not installed; pip install a build of torch for CUDA"
    if not torch.cuda.is_available():
        return f"torch is left out: {torch.__version__} finds no GPU; pip install a build for this driver's CUDA"
    return None


class TorchGpuStep(TorchStep):
    """A model, its optimiser and the data on PyTorch's first GPU. Raises RuntimeError where there is none."""

    device = "cuda"

    def __init__(self, spec: Spec, dtype: str) -> None:
        import torch

        tf32 = spec.how == HOWS[1]
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        super().__init__(spec, dtype)

    def seconds(self, work: Callable[[], object]) -> Mapping[str, float]:
        """By the clock on the wall and, as `gpu`, between two events in the stream."""
        cuda = self._torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        with paused_collector():
            wall = time.perf_counter()
            start.record()
            work()
            end.record()
            end.synchronize()
            wall = time.perf_counter() - wall
        return {"gpu": start.elapsed_time(end) / 1e3, "wall": wall}


def side(spec: Spec, dtype: str) -> Side:
    """PyTorch on a spec. Raises ImportError where it is not installed, RuntimeError where it finds no GPU."""
    return TorchGpuStep(spec, dtype)
