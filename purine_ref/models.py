"""Networks as functions from sizes to a graph.

Each graph has source blobs `x` (N,C,H,W) and, for classifiers, `label` (N,) int64, and ends in `loss` () and
`accuracy` (). `train=False` builds the testing form: dropout does nothing. Gradients and updates are added by
`backward` and `optim`. `MODELS` lists the networks that the commands know by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from purine_ref import layers, optim
from purine_ref.errors import GraphError
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph


def mlp(
    batch: int, *, image: Sequence[int] = (1, 8, 8), sizes: Sequence[int] = (128, 64), classes: int = 10,
    dtype: str = "float32", train: bool = True,
) -> Graph:
    """A multi-layer perceptron: a ReLU layer for each of `sizes`, then one of `classes`."""
    graph, x, label = _inputs("mlp", batch, image, dtype)
    for number, size in enumerate(sizes, 1):
        x = layers.linear(x, size, activation="relu", name=f"fc{number}")
    return _classify(graph, layers.linear(x, classes, name="classes"), label)


def lenet(
    batch: int,
    *,
    image: Sequence[int] = (1, 28, 28),
    channels: tuple[int, int] = (20, 50),
    kernel: int = 5,
    pad: int = 0,
    hidden: int = 500,
    classes: int = 10,
    dtype: str = "float32",
    train: bool = True,
) -> Graph:
    """LeNet in Caffe's form: two convolutions, each with a max pool of 2, then two fully connected layers."""
    graph, x, label = _inputs("lenet", batch, image, dtype)
    for number, width in enumerate(channels, 1):
        x = layers.conv(x, width, kernel=kernel, pad=pad, name=f"conv{number}")
        x = layers.max_pool(x, kernel=2, name=f"pool{number}")
    x = layers.linear(x, hidden, activation="relu", name="fc1")
    return _classify(graph, layers.linear(x, classes, name="fc2"), label)


@dataclass(frozen=True, slots=True)
class NinBlock:
    """One block of a NIN: a convolution, and two of 1x1 after it, with their channels; then a pool, or none."""

    channels: tuple[int, int, int]
    kernel: int
    pool: str | None = None


CIFAR_NIN = (
    NinBlock((192, 160, 96), 5, "max"),
    NinBlock((192, 192, 192), 5, "average"),
    NinBlock((192, 192, 10), 3),
)
"""The geometry of NIN on CIFAR-10 (Lin, Chen, Yan, arXiv 1312.4400): nine convolutions, 18 parameter tensors."""

DIGITS_NIN = (NinBlock((24, 20, 16), 3, "max"), NinBlock((32, 28, 24), 3, "average"), NinBlock((40, 36, 10), 3))
"""The same for 8x8 digits."""


def nin(
    batch: int,
    *,
    image: Sequence[int] = (3, 32, 32),
    blocks: Sequence[NinBlock] = CIFAR_NIN,
    ratio: float = 0.5,
    std: float | None = 0.05,
    dtype: str = "float32",
    train: bool = True,
) -> Graph:
    """Network in network: blocks of a convolution and two 1x1 ones, dropout after pools, a global average at the end.

    The last block's last channels are the classes; their rate is a tenth (Purine's settings). They have no ReLU: a
    class whose scores it held at 0 would never learn again.
    """
    graph, x, label = _inputs("nin", batch, image, dtype)
    for number, block in enumerate(blocks, 1):
        last = number == len(blocks)
        for part, width in enumerate(block.channels):
            kernel = block.kernel if part == 0 else 1
            scores = last and part == 2
            x = layers.conv(
                x, width, kernel=kernel, pad=kernel // 2, activation=None if scores else "relu", std=std,
                rate=0.1 if scores else 1.0, name=f"nin{number}/{('conv', 'cccp1', 'cccp2')[part]}",
            )  # fmt: skip
        if block.pool is not None:
            pool = layers.max_pool if block.pool == "max" else layers.average_pool
            x = pool(x, kernel=3, stride=2, name=f"nin{number}/pool")
            x = layers.dropout(x, ratio=ratio, train=train, name=f"nin{number}/drop")
    x = layers.flatten(layers.global_average_pool(x, name="pool"), name="logits")
    return _classify(graph, x, label)


INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""GoogLeNet's modules (Szegedy et al., arXiv 1409.4842, table 1): channels of 1x1; 3x3 reduction, 3x3; 5x5 reduction,
5x5; pool projection."""


def inception(x: Blob, widths: Sequence[int], *, name: str) -> Blob:
    """Four branches over `x`, joined along channels: 1x1; 1x1 and 3x3; 1x1 and 5x5; max pool and 1x1."""
    one, reduce3, three, reduce5, five, project = widths
    conv = partial(layers.conv, activation="relu", bias=0.2)
    branches = [conv(x, one, kernel=1, name=f"{name}/1x1")]
    reduced = conv(x, reduce3, kernel=1, name=f"{name}/3x3_reduce")
    branches.append(conv(reduced, three, kernel=3, pad=1, name=f"{name}/3x3"))
    reduced = conv(x, reduce5, kernel=1, name=f"{name}/5x5_reduce")
    branches.append(conv(reduced, five, kernel=5, pad=2, name=f"{name}/5x5"))
    pooled = layers.max_pool(x, kernel=3, stride=1, pad=1, name=f"{name}/pool")
    branches.append(conv(pooled, project, kernel=1, name=f"{name}/pool_proj"))
    return layers.concat(branches, name=f"{name}/concat")


def googlenet(
    batch: int, *, image: Sequence[int] = (3, 224, 224), classes: int = 1000, with_lrn: bool = False,
    dtype: str = "float32", train: bool = True,
) -> Graph:
    """GoogLeNet without auxiliary heads: 116 parameter tensors. Without LRN, as Purine2's example, unless asked for."""
    graph, x, label = _inputs("googlenet", batch, image, dtype)
    conv = partial(layers.conv, activation="relu", bias=0.2)
    x = conv(x, 64, kernel=7, stride=2, pad=3, name="conv1")
    x = layers.max_pool(x, kernel=3, stride=2, name="pool1")
    x = layers.lrn(x, name="norm1") if with_lrn else x
    x = conv(x, 64, kernel=1, name="conv2_reduce")
    x = conv(x, 192, kernel=3, pad=1, name="conv2")
    x = layers.lrn(x, name="norm2") if with_lrn else x
    x = layers.max_pool(x, kernel=3, stride=2, name="pool2")
    for label_of, widths in INCEPTIONS.items():
        x = inception(x, widths, name=f"inception_{label_of}")
        if label_of in ("3b", "4e"):
            x = layers.max_pool(x, kernel=3, stride=2, name=f"pool{label_of[0]}")
    x = layers.global_average_pool(x, name="pool5")
    x = layers.dropout(x, ratio=0.4, train=train, name="drop")
    return _classify(graph, layers.linear(x, classes, std=0.01, name="classes"), label)


def inception_module(batch: int, *, dtype: str = "float32", train: bool = True) -> Graph:
    """One inception module (3a) alone, with a global average and a loss: a graph small enough to look at."""
    graph, x, label = _inputs("inception", batch, (192, 28, 28), dtype)
    x = inception(x, INCEPTIONS["3a"], name="3a")
    return _classify(graph, layers.flatten(layers.global_average_pool(x, name="pool"), name="logits"), label)


def autoencoder(
    batch: int,
    *,
    image: Sequence[int] = (1, 8, 8),
    sizes: Sequence[int] = (48, 32, 16),
    stage: int | None = None,
    dtype: str = "float32",
    train: bool = True,
) -> Graph:
    """A stacked autoencoder with sigmoid layers `encode1..n` and `decode1..n`; the loss is the squared error.

    With a `stage` of 1..n it is only that layer's own autoencoder: the layers before it encode, and it alone is to be
    trained, to reconstruct its input. Without, it is the whole. All stages share parameters by name.
    Raises GraphError for another stage.
    """
    if stage is not None and not 1 <= stage <= len(sizes):
        raise GraphError(f"autoencoder: expected a stage from 1 to {len(sizes)}, got {stage}")
    graph = Graph("autoencoder")
    code = layers.flatten(graph.blob("x", (batch, *image), dtype), name="flat")
    widths = [code.shape[1], *sizes]
    first, last = (1, len(sizes)) if stage is None else (stage, stage)
    layer = partial(layers.linear, activation="sigmoid")
    for number in range(1, first):
        code = layer(code, widths[number], std=_glorot(widths, number), name=f"encode{number}")
    target = code
    for number in range(first, last + 1):
        code = layer(code, widths[number], std=_glorot(widths, number), name=f"encode{number}")
    for number in range(last, first - 1, -1):
        code = layer(code, widths[number - 1], std=_glorot(widths, number), name=f"decode{number}")
    layers.squared_error(code, target)
    return graph


def _glorot(widths: Sequence[int], number: int) -> float:
    """The deviation sqrt(2 / (fan-in + fan-out)) of Glorot and Bengio (2010), times 2 for sigmoid layers."""
    return float(2.0 * (2.0 / (widths[number - 1] + widths[number])) ** 0.5)


def _inputs(name: str, batch: int, image: Sequence[int], dtype: str) -> tuple[Graph, Blob, Blob]:
    graph = Graph(name)
    return graph, graph.blob("x", (batch, *image), dtype), graph.blob("label", (batch,), "int64")


def _classify(graph: Graph, logits: Blob, label: Blob) -> Graph:
    layers.softmax_loss(logits, label)
    layers.accuracy(logits, label)
    return graph


MODELS: dict[str, Callable[..., Graph]] = {
    "nin-digits": partial(nin, image=(1, 8, 8), blocks=DIGITS_NIN, ratio=0.1, std=None),
    "lenet-digits": partial(lenet, image=(1, 8, 8), channels=(16, 32), kernel=3, pad=1, hidden=64),
    "mlp-digits": mlp,
    "autoencoder-digits": autoencoder,
    "nin": nin,
    "lenet": lenet,
    "googlenet": googlenet,
    "inception": inception_module,
}
"""The networks that commands know by name: each takes `batch`, `dtype` and `train`."""


def training_graph(name: str, batch: int, dtype: str, *, momentum: float = 0.9, decay: float = 1e-4) -> Graph:
    """The network `name` of `MODELS` in its training form, with gradients and SGD updates of every parameter.

    Raises GraphError, listing the names there are, for another one.
    """
    if name not in MODELS:
        raise GraphError(f"no model {name!r}; there are {', '.join(MODELS)}")
    graph = MODELS[name](batch, dtype=dtype)
    optim.sgd(backward(graph["loss"]), momentum=momentum, decay=decay)
    return graph
