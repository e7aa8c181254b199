"""How convolutions and poolings are drawn, and their gradients: over windows of images (N, C, H, W)."""

from __future__ import annotations

from typing import Any

from purine_ref import ops
from purine_ref.conformance.driving.scene import Drawn, Scene, output_of


def _window(scene: Scene) -> dict[str, Any]:
    """Attributes of a convolution, but groups."""
    return {"stride": scene.pair(1, 1, 2), "pads": scene.pads(2), "dilation": scene.pair(1, 1, 2)}


def conv(scene: Scene) -> Drawn | None:
    """A convolution of images, with groups that divide their channels."""
    x = scene.value(4)
    if x is None or x.shape[1] == 0:
        return None
    groups = scene.rng.choice([g for g in (1, 1, 2, 3) if x.shape[1] % g == 0])
    weight = (groups * scene.rng.randint(1, 3), x.shape[1] // groups, *scene.pair(1, 2, 3))
    return Drawn(ops.Conv2d(**_window(scene), groups=groups), (x, scene.new(weight)))


def conv_gradient(scene: Scene, data: bool) -> Drawn | None:
    """Either gradient of a drawn convolution, for a gradient dy of its output's shape."""
    drawn = conv(scene)
    dy = None if drawn is None else output_of(drawn)
    if drawn is None or dy is None:
        return None
    x, weight = drawn.inputs
    attributes = {name: getattr(drawn.operation, name) for name in ("stride", "pads", "dilation", "groups")}
    kernel = weight.tensor.shape[2], weight.tensor.shape[3]
    if data:
        return Drawn(ops.Conv2dDataGradient(x.tensor.shape, **attributes), (scene.like(dy), weight))
    return Drawn(ops.Conv2dWeightGradient(kernel, **attributes), (scene.like(dy), x))


def pooling(scene: Scene) -> dict[str, Any]:
    """Attributes that both poolings have."""
    kernel = scene.pair(1, 2, 3)
    pads = tuple((scene.rng.randrange(k), scene.rng.randrange(k)) for k in kernel)
    return {"kernel": kernel, "stride": scene.pair(1, 2, 3), "pads": pads,
            "rounding": scene.rng.choice(("ceil", "floor"))}  # fmt: skip


def count(scene: Scene) -> str:
    """What an average divides by."""
    return scene.rng.choice(("padded", "valid"))


def max_pool(scene: Scene) -> Drawn | None:
    """A max pooling, where the port has integers for its index."""
    x = scene.value(4)
    return None if x is None or not scene.integers else Drawn(ops.MaxPool2d(**pooling(scene)), (x,))


def max_pool_gradient(scene: Scene) -> Drawn | None:
    """For an index that a max pool of the graph has made."""
    made = [b for b in scene.values if b.dtype == "int64" and b.producers]
    pools = [b for b in made if isinstance(b.producers[0][0].operation, ops.MaxPool2d)]
    if not pools:
        return None
    index = scene.rng.choice(pools)
    made_by = index.producers[0][0]
    pool: Any = made_by.operation
    window = (pool.kernel, pool.stride, pool.pads, pool.rounding)
    return Drawn(ops.MaxPool2dGradient(made_by.inputs[0].shape, *window), (scene.like(index.shape), index))


def average_pool_gradient(scene: Scene) -> Drawn | None:
    """For a gradient of the shape that the pooling of some images has."""
    x = scene.value(4)
    if x is None:
        return None
    attributes = {**pooling(scene), "count": count(scene)}
    dy = output_of(Drawn(ops.AveragePool2d(**attributes), (x,)))
    return None if dy is None else Drawn(ops.AveragePool2dGradient(x.shape, **attributes), (scene.like(dy),))


def global_gradient(scene: Scene) -> Drawn | None:
    """For a gradient of one number for each plane of some images."""
    x = scene.value(4)
    if x is None:
        return None
    return Drawn(ops.GlobalAveragePool2dGradient(x.shape), (scene.like((*x.shape[:2], 1, 1)),))
