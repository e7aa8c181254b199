"""A layer of one's own: a function that adds operators and parameters to the graph of its input.

The layer here is a residual block (He et al., arXiv 1512.03385). Nothing is registered and no gradient is written:
`backward` follows the operators, and x, which two of them read, gets the sum of both gradients (rule R4).
"""

from __future__ import annotations

import numpy as np

import purine_ref as pr


def residual(x: pr.Blob, *, name: str) -> pr.Blob:
    """{ x (N,C,H,W) } >> two 3x3 convolutions, plus x itself >> ReLU >> { y (N,C,H,W) }.

    Parameters are named `<name>/first/weight` and so on, as the layers of the package name theirs.
    """
    channels = x.shape[1]
    h = pr.layers.conv(x, channels, kernel=3, pad=1, activation="relu", name=f"{name}/first")
    h = pr.layers.conv(h, channels, kernel=3, pad=1, name=f"{name}/second")
    (total,) = x.graph.apply(pr.ops.Sum(), [h, x], f"{name}/sum")
    return pr.layers.activation(total, "relu", name=name)


def build(batch: int) -> pr.Graph:
    """A small network of 8x8 images (batch, 3, 8, 8) with two such blocks, its loss, gradients, and updates."""
    g = pr.Graph("residual")
    x, label = g.blob("x", (batch, 3, 8, 8)), g.blob("label", (batch,), "int64")
    h = residual(residual(x, name="block1"), name="block2")
    loss = pr.layers.softmax_loss(pr.layers.linear(h, 10, std=0.05, name="classes"), label)
    pr.optim.sgd(pr.backward(loss))
    return g


def main() -> None:
    """Update the parameters ten times on one batch, and print the loss before and after."""
    rng = np.random.default_rng(0)
    with pr.Threaded(build(16), threads=2, seed=0) as run:
        run.feed(x=rng.standard_normal((16, 3, 8, 8)).astype("float32"), label=rng.integers(0, 10, 16))
        run.feed(rate=np.array(0.02, "float32"))
        losses = []
        for _ in range(10):
            run.run()
            losses.append(float(run.fetch("loss")))
    print(f"loss {losses[0]:.2f}, after ten updates {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
