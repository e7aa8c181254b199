"""An operation of one's own: a frozen dataclass with a shape rule, a computation, and a gradient rule.

The gradient rule names further operations and never sees an array, so every executor, device and composition can run
it. Here the slope is one that the package has: the derivative of softplus is the logistic sigmoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import purine_ref as pr
from purine_ref.operation import Array, Kernels, Wiring


@dataclass(frozen=True)
class Softplus(pr.Operation):
    """{ x } >> Softplus >> { y }

    x and y of one shape, floating point. y = log(1 + exp(x)) (Dugas et al., 2000).
    """

    def infer(self, inputs: Sequence[pr.Tensor]) -> tuple[pr.Tensor, ...]:
        """The tensor of x. Raises ShapeError unless there is one input, of floating point."""
        self.require_inputs(inputs, "x")
        self.require_float(inputs[0], "x")
        return (inputs[0],)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """logaddexp does not overflow; the Python float 0.0 leaves a float32 array float32."""
        kernels.xp.logaddexp(inputs[0], 0.0, out=outputs[0])

    def gradient(self, wiring: Wiring) -> None:
        """{ x } >> Sigmoid >> { slope }; { dy, slope } >> Mul >> { dx }"""
        (slope,) = wiring.add(pr.ops.Sigmoid(), [wiring.inputs[0]], [None])
        wiring.add(pr.ops.Mul(), [wiring.gradient(0), slope], [0])


def main() -> None:
    """Run it and print its gradient beside the one from the formula 1 / (1 + exp(-x))."""
    values = np.array([-3.0, -0.5, 0.0, 2.0, 30.0])
    g = pr.Graph("own")
    x, y = g.blob("x", values.shape, "float64"), g.blob("y", values.shape, "float64")
    [x] >> Softplus() >> [y]
    (loss,) = g.apply(pr.ops.ReduceSum(), [y], "loss")
    pr.backward(loss, [x])
    with pr.Serial(g) as run:
        run.feed(x=values)
        run.run()
        got = run.fetch("x/grad")
    known = 1 / (1 + np.exp(-values))
    for row in zip(values, got, known, strict=True):
        print("x {:5.1f}  gradient {:.6f}  known {:.6f}".format(*row))
    np.testing.assert_array_max_ulp(got, known, maxulp=4)


if __name__ == "__main__":
    main()
