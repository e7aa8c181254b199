"""Small training steps whose schedules can all be explored, under any scheme, at any place.

`small_workload` makes them, `explore_scheme` explores one, or any other workload. Where more schedules could differ
than are worth running, some are drawn by random priorities instead; `explore` has both.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from purine_ref import layers, optim
from purine_ref.conformance.explore import Bits, Exploration, Runner, bits_of, explore, sample, traces
from purine_ref.conformance.places import Driven
from purine_ref.conformance.schedules import schedule_of
from purine_ref.conformance.schemes import Scheme
from purine_ref.conformance.verify import Workload
from purine_ref.errors import Refused, ResultDiffers
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.ops import Gaussian, Linear, Tanh
from purine_ref.optim import RATE
from purine_ref.plan import Plan

MOST_TRACES = 1_000
"""Runs that may stand for all schedules: where it takes more, `SAMPLED` are drawn."""

SAMPLED = 20


def linear(dtype: str) -> Graph:
    """A training step of one linear layer, 5 samples of 4 inputs and 3 outputs."""
    graph = Graph("linear")
    x, target = graph.blob("x", (5, 4), dtype), graph.blob("target", (5, 3), dtype)
    optim.sgd(backward(layers.squared_error(layers.linear(x, 3, name="fc"), target)))
    return graph


def tied(dtype: str) -> Graph:
    """A training step of two linear layers with one weight: both add to its gradient (rule R4)."""
    graph = Graph("tied")
    x = graph.blob("x", (3, 4), dtype)
    weight = graph.parameter("weight", (4, 4), dtype, Gaussian((4, 4), dtype))
    (hidden,) = graph.apply(Linear(), [x, weight], "hidden")
    (act,) = graph.apply(Tanh(), [hidden], "act")
    (out,) = graph.apply(Linear(), [act, weight], "out")
    optim.sgd(backward(layers.squared_error(out, x), [weight]))
    return graph


SMALL: dict[str, Callable[[str], Graph]] = {"linear": linear, "tied": tied}
"""The small networks by name: functions from a dtype to a graph."""


def small_workload(name: str, dtype: str, steps: int, seed: int) -> Workload:
    """Training steps of a network of `SMALL`, on drawn values."""
    graph = SMALL[name](dtype)
    fed = [blob for blob in graph.blobs if not blob.producers and not blob.persistent and blob.name != RATE]

    def feeds(step: int) -> dict[str, Array]:
        """Values of a step, and the learning rate."""
        rng = np.random.default_rng([seed, step])
        drawn = {blob.name: rng.standard_normal(blob.shape).astype(dtype) for blob in fed}
        return {**drawn, RATE: np.array(0.05, dtype)}

    return Workload(name, dtype, graph, feeds, steps)


def explore_scheme(
    workload: Workload, scheme: Scheme, seed: int, *, most: int = MOST_TRACES, sampled: int = SAMPLED
) -> Exploration:
    """Run a workload's steps under a scheme in every schedule that could differ, or, above `most`, in `sampled` ones.

    Raises GraphError for a scheme that does not fit, Refused for one that stands alone, ResultDiffers for a race, or
    another fault beside the values.
    """
    run, plan = _runner(workload, scheme, seed)
    if sum(1 for _ in islice(traces(plan), most + 1)) <= most:
        return explore(plan, run, most=most)
    return sample(plan, run, runs=sampled, seed=seed)


def _runner(workload: Workload, scheme: Scheme, seed: int) -> tuple[Runner, Plan]:
    """What runs the steps under the scheme, each with its operators in a given order; and the plan of these orders."""
    drive = scheme.drive
    if drive is None:
        raise Refused(f"scheme {scheme.text!r} stands alone, and takes no schedule")
    with drive(workload.graph, seed, Driven()) as session:
        plan = session.executor.plan

    def run(order: list[str]) -> Bits:
        """What the steps leave in every blob."""
        schedule = schedule_of(plan, order)
        with drive(workload.graph, seed, Driven(schedule=schedule)) as session:
            for step in range(workload.steps):
                session.feed(workload.feeds(step))
                session.run()
            for fault in session.faults():
                raise ResultDiffers(f"scheme {scheme.text!r}, schedule {schedule}: {fault}", workload.model)
            return bits_of(session.executor)

    return run, plan
