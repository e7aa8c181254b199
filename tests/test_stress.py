"""Many runs in a row, under threads that are switched as often as Python can: wake-ups, counters, failures, BLAS."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from hooks import SHAPE, Call, Delays, bits, call, raised_by
from purine_ref.devices.cpu import blas_threads, limit_blas
from purine_ref.executors import Serial, Threaded
from purine_ref.graph import Graph
from purine_ref.ops import Linear


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads give up the interpreter every microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("threads", [1, 4])
def test_sc_08_twenty_thousand_runs_of_one_operator(threads: int) -> None:
    graph, count = Graph("one"), [0]

    def tick() -> None:
        count[0] += 1

    call(graph, "x", [], tick)
    with Threaded(graph, threads=threads) as executor:
        for _ in range(20_000):
            executor.run()
        assert count == [executor.iteration] == [20_000]


@pytest.mark.usefixtures("hasty")
def test_sc_08_two_thousand_runs_of_a_fan_in() -> None:
    graph = Graph("fan-in")
    call(graph, "y", [call(graph, f"x{number}") for number in range(64)])
    with Threaded(graph, threads=4) as executor:
        for _ in range(2_000):
            executor.run()
        np.testing.assert_array_equal(executor.fetch("y"), np.full(SHAPE, 65.0))


@pytest.mark.usefixtures("hasty")
def test_r12_a_thousand_runs_that_fail_somewhere_each_followed_by_a_clean_one() -> None:
    """A layered graph on eight threads; after each failure the bits are those of a run that never failed."""
    rng = np.random.default_rng(8)
    graph, target = Graph("fails"), [""]

    def fail_at(name: str) -> None:
        if name == target[0]:
            raise ValueError(f"boom in {name}")

    layer = [call(graph, f"in{number}", [], partial(fail_at, f"in{number}")) for number in range(4)]
    for depth in range(4):
        chosen = [[layer[k] for k in rng.integers(0, len(layer), 2)] for _ in range(4)]
        layer = [call(graph, f"h{depth}.{k}", pair, partial(fail_at, f"h{depth}.{k}")) for k, pair in enumerate(chosen)]
    total = graph.blob("total", SHAPE, "float64")
    for number, blob in enumerate(layer):
        graph.connect([blob], Call(partial(fail_at, f"out{number}")), [total], name=f"out{number}")
    with Serial(graph) as serial:
        serial.run()
        expected = bits(serial)
    with Threaded(graph, threads=8) as executor:
        for number in range(1_000):
            op = graph.ops[int(rng.integers(len(graph.ops)))]
            target[0] = op.name
            inputs = ", ".join(f"{blob.name} {blob.tensor}" for blob in op.inputs) or "none"
            with pytest.raises(ValueError, match=raised_by(op.name, f"boom in {op.name}", inputs)):
                executor.run()
            target[0] = ""
            executor.run()
            assert executor.iteration == number + 1
            if number % 50 == 0:
                assert bits(executor) == expected
        assert bits(executor) == expected


def test_r3_two_hundred_runs_under_delays() -> None:
    graph = Graph("delays")
    x = call(graph, "x")
    layers = [[call(graph, f"a{number}", [x]) for number in range(5)]]
    layers.append([call(graph, f"b{number}", [layers[0][number], layers[0][number - 1]]) for number in range(5)])
    call(graph, "y", layers[1])
    with Serial(graph) as serial, Threaded(graph, threads=8, observer=Delays(1)) as executor:
        serial.run()
        for _ in range(200):
            executor.run()
        assert bits(executor) == bits(serial)


def test_sc_15_blas_has_one_thread_and_the_bits_do_not_depend_on_workers() -> None:
    graph = Graph("products")
    x = graph.blob("x", (512, 384))
    weights = [graph.blob(f"w{number}", (448, 384)) for number in range(4)]
    for number, weight in enumerate(weights):
        graph.apply(Linear(), [x, weight], f"y{number}")
    rng = np.random.default_rng(15)
    values = {blob.name: rng.standard_normal(blob.shape).astype(np.float32) for blob in [x, *weights]}
    found = []
    for threads in (1, 2, 4):
        with Threaded(graph, threads=threads) as executor:
            assert set(blas_threads().values()) <= {1}
            executor.feed(values)
            executor.run()
            found.append(bits(executor))
    assert found[0] == found[1] == found[2]


def test_sc_15_the_limit_may_be_set_from_a_worker() -> None:
    """An operator makes an executor of its own, which asks for the limit again, on every worker at once."""
    inner, outer = Graph("inner"), Graph("outer")
    call(inner, "x")

    def nested() -> None:
        limit_blas()
        with Serial(inner) as executor:
            executor.run()

    for number in range(6):
        call(outer, f"y{number}", [], nested)
    with Threaded(outer, threads=4) as executor:
        for _ in range(20):
            executor.run()
    assert set(blas_threads().values()) <= {1}
