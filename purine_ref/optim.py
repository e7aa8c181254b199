"""Updates: composite graphs that leave new parameters in their own blobs, to be swapped in after the run (rule R6).

Each parameter `p` gets `p/history` (persistent, zeros at first), and one update operator that writes `p/next` and
`p/history/next`. The learning rate is the source blob `rate`, of shape (), so it can differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Operation
from purine_ref.ops import SGD, AdaGrad, TorchSGD

RATE = "rate"
"""The name of the learning rate's blob."""


def sgd(gradients: Mapping[Blob, Blob], *, momentum: float = 0.9, decay: float = 0.0) -> None:
    """Caffe's and Purine's update: { weight, gradient, history, rate } >> SGD >> { weight', history' }.

    `gradients` is what `backward` returned. `decay` is times each parameter's own multiplier, as is the rate.
    """
    _update(gradients, lambda rate, own_decay: SGD(momentum, decay * own_decay, rate))


def torch_sgd(gradients: Mapping[Blob, Blob], *, momentum: float = 0.9, decay: float = 0.0) -> None:
    """PyTorch's form, with the rate outside the history: TorchSGD in place of SGD."""
    _update(gradients, lambda rate, own_decay: TorchSGD(momentum, decay * own_decay, rate))


def adagrad(gradients: Mapping[Blob, Blob], *, epsilon: float = 1e-8, decay: float = 0.0) -> None:
    """AdaGrad: { weight, gradient, accumulated, rate } >> AdaGrad >> { weight', accumulated' }."""
    _update(gradients, lambda rate, own_decay: AdaGrad(epsilon, decay * own_decay, rate))


def _update(gradients: Mapping[Blob, Blob], operation: Callable[[float, float], Operation]) -> None:
    if not gradients:
        raise GraphError("an update needs at least one parameter with its gradient, as backward returns them")
    graph = next(iter(gradients)).graph
    with graph.scope(None):
        for weight, gradient in gradients.items():
            rate = _rate(graph, weight)
            multipliers = graph.multipliers.get(weight.name, (1.0, 1.0))
            history = graph.blob(f"{weight.name}/history", weight.shape, weight.dtype, weight.location)
            following = [
                graph.blob(f"{name}/next", weight.shape, weight.dtype, weight.location)
                for name in (weight.name, history.name)
            ]
            inputs = [weight, gradient, history, rate]
            graph.connect(inputs, operation(*multipliers), following, name=f"{weight.name}/update")
            graph.swap(weight, following[0])
            graph.swap(history, following[1])


def _rate(graph: Graph, weight: Blob) -> Blob:
    """The learning rate's blob, made for the first parameter."""
    return graph[RATE] if RATE in graph else graph.blob(RATE, (), weight.dtype, weight.location)
