"""A first graph: y = x w', its squared error, and the gradient of w. Run it with `python examples/first_graph.py`."""

from __future__ import annotations

import numpy as np

import purine_ref as pr


def main() -> None:
    """Build the graph, run it on two threads, and print the gradient of w, of shape (4, 2).

    With ones in x (3,2) and w (4,2), every y is 2. The target is 0, so dy = y - 0 = 2, and dw = dy' x adds up three 2s.
    """
    g = pr.Graph("small")
    x, w, y = g.blob("x", (3, 2)), g.blob("w", (4, 2)), g.blob("y", (3, 4))
    target, loss = g.blob("target", (3, 4)), g.blob("loss", ())
    [x, w] >> pr.ops.Linear() >> [y]
    [y, target] >> pr.ops.SquaredError(reduction="sum") >> [loss]
    pr.backward(loss, [w])
    with pr.Threaded(g, threads=2) as run:
        run.feed(x=np.ones((3, 2), "float32"), w=np.ones((4, 2), "float32"), target=np.zeros((3, 4), "float32"))
        run.run()
        print(run.fetch("w/grad"))


if __name__ == "__main__":
    main()
