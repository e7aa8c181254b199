"""What an example can be made smaller by: each function proposes examples with less, the boldest first.

Every proposal has less of something and more of nothing, so that taking one after the other ends. A proposal need not
be possible: one that cannot be built, or whose composition does not fit, is no failure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from purine_ref.conformance.checking import Verdict
from purine_ref.conformance.examples import PHASES, Division, Example, Layer
from purine_ref.conformance.networks import composed_graph, network_graph, refiner, serial_graph
from purine_ref.conformance.running import schedule_string
from purine_ref.conformance.schedules import decode, encode
from purine_ref.devices import CpuDevice, kernel_set
from purine_ref.errors import GraphError
from purine_ref.plan import prepare

Reduction = Callable[[Example, Verdict], Iterator[Example]]
"""Proposals for an example and what is wrong with it."""

DEFAULTS = {"kernel": 1, "stride": 1, "pad": 0, "groups": 1, "bias": False}
"""The least that a layer can have of each."""


def smaller_numbers(number: int, least: int = 1) -> Iterator[int]:
    """From `least` up towards `number`: the least, half way, one less."""
    return iter(dict.fromkeys(n for n in (least, least + 1, number // 2, number - 1) if least <= n < number))


# The graph ------------------------------------------------------------------------------------------------------------


def less_to_compute(example: Example, verdict: Verdict) -> Iterator[Example]:
    """An earlier phase; only what the first tensor that differs needs, or else what an earlier blob needs."""
    network = example.network
    for phase in PHASES[: PHASES.index(network.phase)]:
        yield replace(example, network=replace(network, phase=phase))
    graph = network_graph(network)
    last = graph[example.wanted].index if example.wanted in graph else len(graph.blobs)
    found = verdict.difference.tensor if verdict.difference is not None else ""
    if found in graph and found != example.wanted:
        yield replace(example, wanted=found)
    else:
        yield from (replace(example, wanted=blob.name) for blob in graph.blobs[:last] if blob.producers)


def fewer_losses(example: Example, verdict: Verdict) -> Iterator[Example]:
    """Without each loss; each by its sum, and unweighted."""
    losses = example.network.losses
    for i, loss in enumerate(losses):
        yield _with_network(example, losses=losses[:i] + losses[i + 1 :])
        for simple in (replace(loss, reduction="sum"), replace(loss, weight=1.0), replace(loss, kind="squared")):
            if simple != loss:
                yield _with_network(example, losses=(*losses[:i], simple, *losses[i + 1 :]))


def fewer_layers(example: Example, verdict: Verdict) -> Iterator[Example]:
    """Without each layer, its first input in place of its output; with parameters of its own; with fewer inputs."""
    layers = example.network.layers
    for position in reversed(range(len(layers))):
        yield _without_layer(example, position)
    for position, layer in enumerate(layers):
        if layer.shared >= 0:
            yield _with_layer(example, position, replace(layer, shared=-1))
        for inputs in combinations(layer.inputs, len(layer.inputs) - 1):
            if inputs:
                yield _with_layer(example, position, replace(layer, inputs=inputs))


def simpler_layers(example: Example, verdict: Verdict) -> Iterator[Example]:
    """Without biases; with kernels and strides of 1, no padding, one group; with fewer channels and features."""
    for position, layer in enumerate(example.network.layers):
        for name, least in DEFAULTS.items():
            if getattr(layer, name) != least:
                yield _with_layer(example, position, replace(layer, **{name: least}))  # type: ignore[arg-type]
        if layer.kind in ("conv", "linear", "slice"):
            for size in smaller_numbers(layer.size):
                yield _with_layer(example, position, replace(layer, size=size))


def smaller_inputs(example: Example, verdict: Verdict) -> Iterator[Example]:
    """A smaller batch, with even parts; images without axes, or smaller along each."""
    network = example.network
    for batch in smaller_numbers(network.batch):
        parts = tuple(replace(part, sizes=()) for part in example.composition.parts)
        composition = replace(example.composition, parts=parts)
        yield replace(_with_network(example, batch=batch), composition=composition)
    if len(network.image) > 1:
        yield _with_network(example, image=network.image[:1])
    for axis, length in enumerate(network.image):
        for smaller in smaller_numbers(length):
            yield _with_network(example, image=(*network.image[:axis], smaller, *network.image[axis + 1 :]))


def _with_network(example: Example, **changes: object) -> Example:
    return replace(example, network=replace(example.network, **changes))  # type: ignore[arg-type]


def _with_layer(example: Example, position: int, layer: Layer) -> Example:
    layers = example.network.layers
    return _with_network(example, layers=(*layers[:position], layer, *layers[position + 1 :]))


def _without_layer(example: Example, position: int) -> Example:
    """The example without a layer, with everything that names or counts layers moved up."""
    network = example.network
    bypass = network.layers[position].inputs[0]

    def value(index: int) -> int:
        """The new index of a layer's output."""
        return bypass if index == position + 1 else index - (index > position)

    layers = tuple(
        replace(layer, inputs=tuple(map(value, layer.inputs)), shared=_shared(layer.shared, position))
        for layer in (*network.layers[:position], *network.layers[position + 1 :])
    )
    losses = tuple(replace(loss, input=value(loss.input)) for loss in network.losses)
    parts = tuple(replace(part, rules=_renamed_rules(part, position)) for part in example.composition.parts)
    zeros = filter(None, (_renamed(name, position) for name in example.feeding.zeros))
    return replace(
        _with_network(example, layers=layers, losses=losses),
        composition=replace(example.composition, parts=parts),
        feeding=replace(example.feeding, zeros=tuple(zeros)),
        wanted=_renamed(example.wanted, position),
    )


def _shared(shared: int, position: int) -> int:
    return -1 if shared == position else shared - (shared > position)


def _renamed_rules(part: Division, position: int) -> tuple[tuple[str, str], ...]:
    renamed = ((_renamed(pattern, position), what) for pattern, what in part.rules)
    return tuple((pattern, what) for pattern, what in renamed if pattern)


def _renamed(name: str, position: int) -> str:
    """A name or pattern such as `l3/weight` when the layer at `position` is gone; empty if it was that layer's."""
    match = re.match(r"l(\d+)", name)
    if match is None or int(match[1]) < position:
        return name
    return "" if int(match[1]) == position else f"l{int(match[1]) - 1}{name[match.end() :]}"


# The composition ------------------------------------------------------------------------------------------------------


def fewer_parts(example: Example, verdict: Verdict) -> Iterator[Example]:
    """Without each part of the composition; each narrower, even, in its simplest mode, and with fewer rules."""
    parts = example.composition.parts
    for i in range(len(parts)):
        yield from _with_parts(example, (*parts[:i], *parts[i + 1 :]))
    for i, part in enumerate(parts):
        for simpler in _simpler_parts(part):
            yield from _with_parts(example, (*parts[:i], simpler, *parts[i + 1 :]))


def _simpler_parts(part: Division) -> Iterator[Division]:
    for count in smaller_numbers(part.count):
        yield replace(part, count=count, sizes=())
    for more in smaller_numbers(part.more):
        yield replace(part, more=more, sizes=())
    if part.sizes:
        yield replace(part, sizes=())
    for i in range(len(part.rules)):
        yield replace(part, rules=(*part.rules[:i], *part.rules[i + 1 :]))
    if part.mode not in ("", "replicated", "output"):
        yield replace(part, mode="")


def _with_parts(example: Example, parts: tuple[Division, ...]) -> Iterator[Example]:
    """With these parts, over the first places, and over places from all of the former ones."""
    try:
        width = math.prod(refiner(part).width for part in parts)
    except GraphError:
        return
    places = example.composition.places
    spread = tuple(places[i * len(places) // width] for i in range(width))
    for chosen in dict.fromkeys((places[:width], places[-width:], spread)):
        yield replace(example, composition=replace(example.composition, parts=parts, places=chosen))


def simpler_places(example: Example, verdict: Verdict) -> Iterator[Example]:
    """All at one place; without ranks, or devices; in order; one at the first place or a CPU; sums at one place."""
    composition = example.composition
    places = composition.places
    no_ranks = tuple((0, device) for _, device in places)
    no_devices = tuple((rank, -1) for rank, _ in places)
    whole = (((0, -1),) * len(places), no_ranks, no_devices, _renumbered(places), tuple(sorted(places)))
    for proposal in (*whole, *_merged(places)):
        if proposal != places:
            yield replace(example, composition=replace(composition, places=proposal))
    if composition.reduction != "central":
        yield replace(example, composition=replace(composition, reduction="central"))


def _renumbered(places: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same places with ranks and devices numbered in the order in which they come."""
    ranks = list(dict.fromkeys(rank for rank, _ in places))
    devices = list(dict.fromkeys(device for _, device in places if device >= 0))
    return tuple((ranks.index(rank), devices.index(device) if device >= 0 else -1) for rank, device in places)


def _merged(places: tuple[tuple[int, int], ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """One of the places given up for the first, or for a CPU."""
    for given_up in dict.fromkeys(places):
        for other in (places[0], (given_up[0], -1), (0, -1)):
            yield tuple(other if place == given_up else place for place in places)


# The run and its schedule ---------------------------------------------------------------------------------------------


def simpler_run(example: Example, verdict: Verdict) -> Iterator[Example]:
    """On the serial executor, first ready, first started; once; with fewer threads and without delays."""
    running = example.running
    if running.executor != "serial":
        yield replace(example, running=replace(running, executor="serial", threads=1, delays=0))
    if running.executor == "ranks":
        yield replace(example, running=replace(running, executor="threaded"))
    simplest = {"schedule": "", "delay": 0, "delays": 0}
    for name, value in simplest.items():
        if getattr(running, name) != value:
            yield replace(example, running=replace(running, **{name: value}))  # type: ignore[arg-type]
    for name in ("iterations", "threads"):
        for number in smaller_numbers(getattr(running, name)):
            yield replace(example, running=replace(running, **{name: number}))  # type: ignore[arg-type]


def simpler_schedule(example: Example, verdict: Verdict) -> Iterator[Example]:
    """The schedule as a schedule string; that with its choices made 0 from some place on, or one by one."""
    text = example.running.schedule
    if not text:
        return
    try:
        plan = prepare(composed_graph(example), lambda _: CpuDevice(kernel_set()))
    except GraphError:
        return
    pinned = schedule_string(plan, text)
    choices = decode(pinned)
    simpler: list[Iterable[int]] = [choices[:length] for length in smaller_numbers(len(choices), 0)]
    simpler += [(*choices[:i], 0, *choices[i + 1 :]) for i, choice in enumerate(choices) if choice]
    for proposal in (choices, *simpler):
        padded = tuple(proposal)
        fresh = encode((*padded, *(0,) * (len(choices) - len(padded))))
        if fresh != text:
            yield replace(example, running=replace(example.running, schedule=fresh))


# The inputs -----------------------------------------------------------------------------------------------------------


def fewer_values(example: Example, verdict: Verdict) -> Iterator[Example]:
    """Zeros for each blob that is fed; fewer elements that are not zero; the first seeds."""
    feeding = example.feeding
    for blob in serial_graph(example).blobs:
        if not blob.producers and blob.shape and blob.tensor.is_float and blob.name not in feeding.zeros:
            yield replace(example, feeding=replace(feeding, zeros=(*feeding.zeros, blob.name)))
    for most in (1, 2, 4, 8) if feeding.most < 0 else smaller_numbers(feeding.most):
        yield replace(example, feeding=replace(feeding, most=most))
    for seed in smaller_numbers(feeding.seed, 0):
        yield replace(example, feeding=replace(feeding, seed=seed))


REDUCTIONS: tuple[Reduction, ...] = (
    simpler_run,
    less_to_compute,
    fewer_losses,
    fewer_parts,
    fewer_layers,
    simpler_places,
    smaller_inputs,
    simpler_layers,
    fewer_values,
    simpler_schedule,
)
"""All reductions, in the order in which they are tried."""
