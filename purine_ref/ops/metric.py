"""Metrics: numbers to report, which no gradient goes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Kinks, traffic
from purine_ref.ops.attributes import assign, integer
from purine_ref.ops.axes import at, mean_axis
from purine_ref.ops.cross_entropy import check_labels
from purine_ref.ops.loss import SampleMean
from purine_ref.rounding import KAPPA, roundings
from purine_ref.tensor import Tensor


@dataclass(frozen=True)
class TopKAccuracy(SampleMean):
    """{ logits, label } >> TopKAccuracy >> { accuracy }

    logits (N, K), floating point; label (N), int64, 0..K-1; accuracy (), as the logits. The share of samples whose
    label is among the `k` largest logits; of equal logits the lower class comes first. A NaN comes before every
    number, and a label whose own logit is NaN is never right. The accuracy of an empty batch is 0. `samples`: see
    SampleMean.
    """

    k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        assign(self, k=integer(self.k, f"{self.name} k", 1))

    def differentiable(self, index: int) -> bool:
        """No input."""
        return False

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Shape (). Raises ShapeError unless logits are (N, K) with K >= k and the label is (N), int64."""
        self.require_inputs(inputs, "logits label")
        logits, label = inputs
        self.require_float(logits, "logits")
        self.require(len(logits.shape) == 2, "logits of shape (N, K)", logits)
        self.require(logits.shape[1] >= self.k, f"{self.k} classes or more", logits)
        expected = Tensor(logits.shape[:1], "int64")
        self.require((label.shape, label.dtype) == (expected.shape, expected.dtype), f"label {expected}", label)
        return (Tensor((), logits.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Count the classes that come before the label's. Raises OperatorError for a label outside the classes."""
        xp = kernels.xp
        logits, label = inputs
        loop = getattr(kernels, "count_hits", None)
        hits = -1 if loop is None else loop(logits, label, self.k)
        if loop is None or hits < 0:  # where the loop found a label that is no class
            check_labels(self, kernels, label, logits.shape[1])
            hits = (self._before(xp, logits, label).sum(axis=1) < self.k).sum()
        outputs[0][...] = hits / self.mean_divisor(len(label))

    def _before(self, xp: Any, logits: Array, label: Array) -> Array:
        """Which classes come before the label's, (N, K)."""
        own = logits[xp.arange(len(label)), label][:, None]
        tied_later = (logits == own) & (xp.arange(logits.shape[1]) >= label[:, None])
        return ~((logits < own) | tied_later)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A quotient in float64, and its rounding."""
        return (roundings(call.xp, 2, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """None: it is constant but for its jumps."""
        return (call.xp.zeros(()),)

    def kinks(self, call: Call) -> Kinks:
        """The samples whose label may be among the largest, or not. Two logits without an error are as they are."""
        if call.variances[0] is None:
            return Kinks(0, (None,))
        xp, (logits, label) = call.xp, call.inputs
        before, deviation = self._before(xp, logits, label), xp.sqrt(call.variances[0])
        own = [xp.take_along_axis(each, label[:, None], axis=1) for each in (logits, deviation)]
        margin = KAPPA * (deviation + own[1])
        close = (xp.abs(logits - own[0]) <= margin) & (margin > 0) & (xp.arange(logits.shape[1]) != label[:, None])
        surely, perhaps = ((before & ~close).sum(axis=1), (before | close).sum(axis=1))
        count = int(((surely < self.k) & (perhaps >= self.k)).sum())
        return Kinks(count, (xp.asarray(count > 0),))

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """n: the batch; the share of the whole is the sum of the parts' shares of the whole."""
        batch = inputs[1].shape[0]
        return (mean_axis(Axis("n", batch, at(0, 0), at(None)), self.mean_divisor(batch)),)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per logit: three comparisons and an addition."""
        return Cost(4 * inputs[0].size, traffic(inputs, outputs))
