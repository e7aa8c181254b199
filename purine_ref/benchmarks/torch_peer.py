"""PyTorch's side: the same networks as its users write them, its autograd, its fused SGD.

Parameters are made in the order of the graph's, so that they can be given the same values. A dropout layer draws its
own masks when it is timed, and takes those of the graph when results are compared. PyTorch is imported when a peer is
made: it need not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.side import DECAY, LEARNING_RATE, MOMENTUM, Array, Side, data, initial_values, network
from purine_ref.devices import cpu_devices
from purine_ref.graph import Graph
from purine_ref.models import CIFAR_NIN, INCEPTIONS
from purine_ref.operation import RunKey
from purine_ref.ops import Bernoulli
from purine_ref.tensor import Location

LAYOUTS = ("channels-last", "default")
"""How images lie in PyTorch's memory."""

Module = Any
"""A `torch.nn.Module`; mypy sees no more of it, as the package is checked without PyTorch."""


class TorchStep(Side):
    """A model, its optimiser, and the data, on `workers` threads; `device` is PyTorch's name of where."""

    device = "cpu"

    def __init__(self, spec: Spec, dtype: str) -> None:
        import torch  # a peer, which need not be there

        torch.set_num_threads(spec.workers)
        torch.manual_seed(spec.seed)
        self._torch = torch
        self._graph = network(spec.model, spec.batch, dtype)
        self._kernels = cpu_devices()(Location()).kernels
        self._seed, self._iteration = spec.seed, 0
        fed = data(self._graph, spec.seed)
        order = torch.channels_last if spec.how.startswith("channels-last") else torch.contiguous_format
        made = MODELS[spec.model]().to(device=self.device, dtype=getattr(torch, dtype))
        self._parameters = load(made, self._graph, initial_values(self._graph, self._kernels(RunKey(spec.seed))))
        self._model = made.to(memory_format=order)
        self._images = torch.from_numpy(fed["x"]).to(self.device).to(memory_format=order)
        self._labels = torch.from_numpy(fed["label"]).to(self.device)
        self._optimiser = torch.optim.SGD(_groups(self._graph, self._parameters), lr=LEARNING_RATE, momentum=MOMENTUM,
                                          fused=True)  # fmt: skip

    def step(self) -> None:
        """One step."""
        self._loss()

    def checked_step(self) -> float:
        """One step with the masks that the graph draws in this iteration."""
        layers = [layer for layer in self._model.modules() if hasattr(layer, "mask")]
        for layer, mask in zip(layers, self._masks(), strict=True):
            layer.mask = self._torch.from_numpy(mask).to(self.device)
        self._iteration += 1
        loss = float(self._loss())
        for layer in layers:
            layer.mask = None
        return loss

    def _loss(self) -> Any:
        self._optimiser.zero_grad()
        loss: Any = self._torch.nn.functional.cross_entropy(self._model(self._images), self._labels)
        loss.backward()
        self._optimiser.step()
        return loss.detach()

    def _masks(self) -> Iterator[Array]:
        """What the graph's draws give in this iteration, in their order."""
        kernels = self._kernels(RunKey(self._seed, self._iteration))
        for op in self._graph.ops:
            if isinstance(op.operation, Bernoulli):
                mask = np.zeros(op.outputs[0].shape, op.outputs[0].dtype)
                op.operation.compute(kernels, (), (mask,))
                yield mask


def side(spec: Spec, dtype: str) -> Side:
    """PyTorch on a spec; its `how` is the memory layout. Raises ImportError where PyTorch is not installed."""
    return TorchStep(spec, dtype)


def version() -> str:
    """PyTorch's version; afterwards it is imported. Raises ImportError where it is not installed."""
    import torch

    return str(torch.__version__)


def load(model: Module, graph: Graph, values: dict[str, Array]) -> dict[str, Any]:
    """Give the model's parameters the values, in the order of the graph's; returns them by the graph's names."""
    import torch  # a peer, which need not be there

    found = dict(zip(values, model.parameters(), strict=True))
    with torch.no_grad():
        for name, parameter in found.items():
            if tuple(parameter.shape) != graph[name].shape:
                raise RuntimeError(f"{name}: the graph has {graph[name].shape}, PyTorch {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(values[name]))
    return found


def _groups(graph: Graph, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Parameters with the same multipliers of rate and decay as one group of the optimiser."""
    groups: dict[tuple[float, float], list[Any]] = {}
    for name, parameter in parameters.items():
        groups.setdefault(graph.multipliers.get(name, (1.0, 1.0)), []).append(parameter)
    return [
        {"params": members, "lr": LEARNING_RATE * rate, "weight_decay": DECAY * decay}
        for (rate, decay), members in groups.items()
    ]


# Networks --------------------------------------------------------------------------------------------------------


def _dropout(ratio: float) -> Module:
    import torch

    class Dropout(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        """`torch.nn.functional.dropout`, or where there is one by a given mask."""

        mask: Any = None

        def forward(self, x: Any) -> Any:
            """What is kept, scaled up."""
            if self.mask is None:
                return torch.nn.functional.dropout(x, ratio)
            return x * self.mask * (1 / (1 - ratio))

    return Dropout()


def lenet() -> Module:
    """LeNet for 8x8 digits, as `models.MODELS["lenet-digits"]` has it."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(), nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Linear(64, 10),
    )  # fmt: skip


def nin() -> Module:
    """NIN on CIFAR-10's geometry."""
    from torch import nn

    layers: list[Module] = []
    channels = 3
    for number, block in enumerate(CIFAR_NIN, 1):
        for part, width in enumerate(block.channels):
            kernel = block.kernel if part == 0 else 1
            layers.append(nn.Conv2d(channels, width, kernel, padding=kernel // 2))
            if (number, part) != (len(CIFAR_NIN), 2):
                layers.append(nn.ReLU(inplace=True))
            channels = width
        if block.pool is not None:
            pool = nn.MaxPool2d if block.pool == "max" else nn.AvgPool2d
            layers += [pool(3, 2, ceil_mode=True), _dropout(0.5)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def googlenet() -> Module:
    """GoogLeNet without auxiliary heads and LRN."""
    import torch
    from torch import nn

    def conv(inputs: int, outputs: int, kernel: int, **keywords: Any) -> list[Module]:
        """A convolution and its ReLU."""
        return [nn.Conv2d(inputs, outputs, kernel, **keywords), nn.ReLU(inplace=True)]

    class Inception(nn.Module):  # type: ignore[misc,unused-ignore]
        """Four branches, joined along channels."""

        def __init__(self, inputs: int, widths: Sequence[int]) -> None:
            super().__init__()
            one, reduce3, three, reduce5, five, project = widths
            self.branches = nn.ModuleList([
                nn.Sequential(*conv(inputs, one, 1)),
                nn.Sequential(*conv(inputs, reduce3, 1), *conv(reduce3, three, 3, padding=1)),
                nn.Sequential(*conv(inputs, reduce5, 1), *conv(reduce5, five, 5, padding=2)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), *conv(inputs, project, 1)),
            ])  # fmt: skip

        def forward(self, x: Any) -> Any:
            """The four, joined."""
            return torch.cat([branch(x) for branch in self.branches], 1)

    layers = [*conv(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, 2, ceil_mode=True), *conv(64, 64, 1)]
    layers += [*conv(64, 192, 3, padding=1), nn.MaxPool2d(3, 2, ceil_mode=True)]
    channels = 192
    for name, widths in INCEPTIONS.items():
        layers.append(Inception(channels, widths))
        one, _, three, _, five, project = widths
        channels = one + three + five + project
        if name in ("3b", "4e"):
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    layers += [nn.AdaptiveAvgPool2d(1), _dropout(0.4), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[[], Module]] = {"lenet-digits": lenet, "nin": nin, "googlenet": googlenet}
"""The networks by the names of `purine_ref.models.MODELS`."""
