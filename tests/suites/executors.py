"""The contract of an executor, as a suite: rules R2, R3, R4, R6, R7, R8 and R12, for any implementation.

Subclass `ExecutorSuite` and override the fixture `make`: a function that takes a graph and the keywords `seed`,
`memory`, `observer` and `devices`, and returns an executor. One that computes several operators at once runs
`ConcurrentSuite` too, whose fixture `workers` says how many.
"""

from __future__ import annotations

import gc
import itertools
import logging
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hooks import SHAPE, WATCH, Apply, Call, Gate, InTurn, Swallow, Trace, bits, call, fail_with, raised_by, running
from purine_ref.devices import CpuDevice
from purine_ref.errors import GraphError, OperatorError, ShapeError
from purine_ref.executors import Executor, Memory, Observer, Serial
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import Bernoulli, Concat, Constant, Gaussian, Linear, Mul, ReduceSum, Scale, Sum, Tanh
from purine_ref.tensor import Tensor

Make = Callable[..., Executor]


class JunkDevice(CpuDevice):
    """A CPU whose new memory holds NaN, or 7 for integers: what is read before it is written shows."""

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Any:
        array = super().allocate(tensor, name, row_major=row_major)
        array.fill(np.nan if tensor.is_float else 7)
        return array


def chain_and_branch(b: Callable[[], object]) -> Graph:
    """a -> b -> c -> sink beside e -> f; `b` is what operator b does."""
    graph = Graph("case")
    c = call(graph, "c", [call(graph, "b", [call(graph, "a")], b)])
    graph.connect([c], Swallow(lambda x: None), [], name="sink")
    call(graph, "f", [call(graph, "e")])
    return graph


def run_for_ever(executor: Executor) -> None:
    """Run it again and again, until something is raised."""
    while True:
        executor.run()


class ExecutorSuite:
    """What every executor must do."""

    @pytest.fixture
    def make(self) -> Make:
        """How to make the executor under test."""
        raise NotImplementedError("override the fixture make")

    # R3: runs, sources and sinks --------------------------------------------------------------------------------

    def test_r3_every_kind_of_end_is_done_exactly_once(self, make: Make) -> None:
        graph = Graph("ends")
        counts = dict.fromkeys(["source", "sink", "lonely"], 0)

        def count(name: str) -> Callable[..., None]:
            def action(*arrays: np.ndarray) -> None:
                counts[name] += 1

            return action

        source = call(graph, "source", [], count("source"))
        graph.connect([source], Swallow(count("sink")), [], name="sink")
        graph.connect([], Swallow(count("lonely")), [], name="lonely")
        graph.blob("isolated", (2, 5))
        trace = Trace()
        with make(graph, observer=trace) as executor:
            executor.run()
            assert counts == {"source": 1, "sink": 1, "lonely": 1}
            assert executor.fetch("isolated").shape == (2, 5)
        assert sorted(trace.names("started")) == sorted(trace.names("finished")) == ["lonely", "sink", "source"]

    def test_r3_an_empty_graph_runs(self, make: Make) -> None:
        with make(Graph("empty")) as executor:
            executor.run()
            executor.run()
            assert executor.iteration == 2

    def test_r3_run_is_run_async_and_sync(self, make: Make) -> None:
        graph = Graph("steps")
        call(graph, "y", [call(graph, "x")])
        with make(graph) as executor:
            executor.run_async()
            executor.sync()
            assert executor.iteration == 1
            np.testing.assert_array_equal(executor.fetch("y"), np.full(SHAPE, 2.0))

    def test_r3_sync_without_a_run_returns_at_once(self, make: Make) -> None:
        graph = Graph("idle")
        call(graph, "x")
        with make(graph) as executor:
            executor.sync()
            executor.run()
            executor.sync()
            assert executor.iteration == 1

    def test_r3_two_hundred_immediate_runs_again(self, make: Make) -> None:
        """Each run adds one: a run that lost or doubled an operator, or met stale counters, would show."""
        graph = Graph("again")
        old, new = graph.blob("old", SHAPE, "float64"), graph.blob("new", SHAPE, "float64")
        parts = [call(graph, f"part{i}", [old]) for i in range(3)]
        graph.connect([*parts, old, old], Call(), [new], name="update")
        graph.swap(old, new)
        with make(graph) as executor:
            for _ in range(200):
                executor.run()
                executor.feed(old=np.minimum(executor.fetch("old"), 5.0))
            np.testing.assert_array_equal(executor.fetch("old"), np.full(SHAPE, 5.0))
            executor.feed(old=np.zeros(SHAPE))
            executor.run()
            np.testing.assert_array_equal(executor.fetch("old"), np.full(SHAPE, 4.0))

    def test_r3_starting_again_while_it_runs_is_refused_and_changes_nothing(self, make: Make) -> None:
        graph, gate = Graph("busy"), Gate()
        call(graph, "y", [call(graph, "x", [], gate)])
        refused = "^executor of graph 'busy' cannot be {} while it runs: call sync first$"
        with make(graph) as executor:
            with running(executor, gate) as future:
                with pytest.raises(RuntimeError, match=refused.format("started again")):
                    executor.run()
                with pytest.raises(RuntimeError, match=refused.format("started again")):
                    executor.run_async()
                with pytest.raises(RuntimeError, match=refused.format("fed")):
                    executor.feed(x=np.zeros(SHAPE))
                with pytest.raises(RuntimeError, match=refused.format("fetched from")):
                    executor.fetch("y")
            future.result(WATCH)
            assert executor.iteration == 1
            np.testing.assert_array_equal(executor.fetch("y"), np.full(SHAPE, 2.0))

    def test_r3_of_several_threads_that_wait_one_ends_the_run(self, make: Make) -> None:
        graph, gate = Graph("waits"), Gate()
        call(graph, "x", [], gate)
        with make(graph) as executor:
            with running(executor, gate) as future:
                second = threading.Thread(target=executor.sync)
                second.start()
            future.result(WATCH)
            second.join(WATCH)
            assert not second.is_alive()
            assert executor.iteration == 1

    # R2: edges --------------------------------------------------------------------------------------------------

    def test_sc_01_one_blob_wired_twice(self, make: Make) -> None:
        graph = Graph("twice")
        x = graph.blob("x", (3,))
        (product,) = graph.apply(Mul(), [x, x], "product")
        (summed,) = graph.apply(Sum(), [x, x, x], "summed")
        (joined,) = graph.apply(Concat(0), [product, product], "joined")
        (loss,) = graph.apply(ReduceSum((0,)), [product], "loss")
        (other,) = graph.apply(ReduceSum((0,)), [summed], "other")
        (third,) = graph.apply(ReduceSum((0,)), [joined], "third")
        gradients = backward({loss: 1.0, other: 1.0, third: 0.5}, [x, product])
        with make(graph) as executor:
            executor.feed(x=np.array([1, 2, 3], np.float32))
            for _ in range(100):
                executor.run()
                assert executor.fetch("product").tolist() == [1, 4, 9]
                assert executor.fetch("summed").tolist() == [3, 6, 9]
                assert executor.fetch("joined").tolist() == [1, 4, 9, 1, 4, 9]
                assert executor.fetch(gradients[product].name).tolist() == [2, 2, 2]
                assert executor.fetch(gradients[x].name).tolist() == [2 * 2 + 3, 2 * 4 + 3, 2 * 6 + 3]

    def test_r2_an_operator_waits_for_every_edge(self, make: Make) -> None:
        """A blob of two producers, wired twice beside another: the consumer starts after all three producers."""
        graph = Graph("edges")
        both = graph.blob("both", SHAPE, "float64")
        for name in ("first", "second"):
            graph.connect([], Call(), [both], name=name)
        late = call(graph, "late", [call(graph, "early")])
        call(graph, "all", [both, late, both])
        trace = Trace()
        with make(graph, observer=trace) as executor:
            for _ in range(5):
                executor.run()
                np.testing.assert_array_equal(executor.fetch("all"), np.full(SHAPE, 1 + 2 + 2 + 2.0))
        for run in range(5):
            events = trace.events[run * 10 : run * 10 + 10]
            begun = events.index(("started", "all"))
            assert {name for kind, name in events[:begun] if kind == "finished"} == {"first", "second", "early", "late"}

    # R4: several producers --------------------------------------------------------------------------------------

    def test_sc_02_eight_producers_of_one_blob(self, make: Make) -> None:
        graph = Graph("producers")
        total = graph.blob("t", (4,))
        for number in range(8):
            graph.connect([], Constant(1.0, (4,)), [total], name=f"one{number}")
        with make(graph, devices=lambda place: JunkDevice()) as executor:
            for _ in range(200):
                executor.run()
                assert executor.fetch("t").tolist() == [8, 8, 8, 8]

    @pytest.mark.parametrize("order", [(1e8, 1.0, -1e8, 1.0), (1.0, 1.0, 1e8, -1e8), (1e8, -1e8, 1.0, 1.0)])
    def test_sc_02_the_order_of_the_edges_is_the_order_of_the_sum(
        self, make: Make, order: tuple[float, ...]
    ) -> None:
        graph = Graph("order")
        total = graph.blob("t", (4,))
        for number, value in enumerate(order):
            graph.connect([], Constant(value, (4,)), [total], name=f"p{number}")
        expected = np.float32(0)
        for value in order:
            expected = np.float32(expected + np.float32(value))
        with make(graph, devices=lambda place: JunkDevice()) as executor:
            for _ in range(200):
                executor.run()
                assert executor.fetch("t").tolist() == [expected] * 4

    def test_r4_one_operator_with_two_edges_into_one_blob_adds_both(self, make: Make) -> None:
        graph = Graph("pairs")
        total = graph.blob("t", SHAPE, "float64")
        graph.connect([], Call(), [total], name="first")

        class Two(Call):
            def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
                return super().infer(inputs) * 2

            def compute(self, kernels: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
                outputs[0][...], outputs[1][...] = 10, 100

        graph.connect([], Two(), [total, total], name="two")
        with make(graph) as executor:
            for _ in range(2):
                executor.run()
                np.testing.assert_array_equal(executor.fetch("t"), np.full(SHAPE, 111.0))

    # R6: iteration ----------------------------------------------------------------------------------------------

    def test_r6_pairs_are_swapped_between_runs_and_not_copied(self, make: Make) -> None:
        graph, seen = Graph("pair"), []
        old, new = graph.blob("old", (2, 5), "float64"), graph.blob("new", (2, 5), "float64")

        def add_one(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            seen.append((id(inputs[0]), id(outputs[0])))
            outputs[0][...] = inputs[0] + 1

        graph.connect([old], Apply(add_one), [new])
        graph.swap(old, new)
        with make(graph) as executor:
            for iteration in range(1, 5):
                executor.run()
                assert executor.iteration == iteration
                np.testing.assert_array_equal(executor.fetch("old"), np.full((2, 5), float(iteration)))
                np.testing.assert_array_equal(executor.fetch("new"), np.full((2, 5), float(iteration - 1)))
        assert seen == [seen[0], seen[0][::-1]] * 2

    def test_r6_two_graphs_take_turns_on_one_memory(self, make: Make) -> None:
        """One fetches the next batch while it is not read; the other reads the batch, and updates its state."""
        fetch, network = Graph("fetch"), Graph("network")
        numbers = itertools.count(1)
        batch, following = (fetch.blob(name, (2, 3), "float64") for name in ("batch", "following"))
        fill = Apply(lambda inputs, outputs: outputs[0].fill(next(numbers)))
        fetch.connect([fetch.blob("shape", (2, 3), "float64")], fill, [following])
        fetch.swap(batch, following)
        data = network.blob("batch", (2, 3), "float64", persistent=True)
        state, new_state = (network.blob(name, (2, 3), "float64") for name in ("state", "new_state"))
        network.connect([state, data], Sum(), [new_state])
        network.swap(state, new_state)
        memory = Memory()
        with make(fetch, memory=memory) as first, make(network, memory=memory) as second:
            for _ in range(6):
                first.run()
                second.run()
            np.testing.assert_array_equal(second.fetch("batch"), np.full((2, 3), 6.0))
            np.testing.assert_array_equal(second.fetch("state"), np.full((2, 3), 1.0 + 2 + 3 + 4 + 5 + 6))

    def test_r6_even_and_odd_iterations_may_be_two_graphs(self, make: Make) -> None:
        memory = Memory()
        graphs = []
        for source, target, factor in (("a", "b", 2.0), ("b", "a", 3.0)):
            graph = Graph(f"from {source}")
            ends = [graph.blob(name, (4,), "float64", persistent=True) for name in (source, target)]
            graph.connect([ends[0]], Scale(factor), [ends[1]])
            graphs.append(graph)
        with make(graphs[0], memory=memory) as even, make(graphs[1], memory=memory) as odd:
            even.feed(a=np.arange(4.0))
            for _ in range(3):
                even.run()
                odd.run()
            np.testing.assert_array_equal(odd.fetch("a"), np.arange(4.0) * 6**3)

    def test_r6_a_view_follows_the_swap(self, make: Make) -> None:
        graph = Graph("views")
        old, new = graph.blob("old", (6,), "float64"), graph.blob("new", (6,), "float64")
        graph.connect([old], Scale(2.0), [new])
        graph.swap(old, new)
        graph.apply(Scale(1.0), [graph.view(graph.view(old, "rows", shape=(2, 3)), "row", [(1, 2), (0, 2)])], "copy")
        with make(graph) as executor:
            executor.feed(old=np.arange(6.0))
            for iteration in range(3):
                executor.run()
                np.testing.assert_array_equal(executor.fetch("copy"), np.array([[3.0, 4.0]]) * 2**iteration)

    def test_r6_a_failed_run_swaps_nothing(self, make: Make) -> None:
        graph, broken = Graph("failed"), [False]
        old, new = graph.blob("old", SHAPE, "float64"), graph.blob("new", SHAPE, "float64")

        def action() -> None:
            if broken[0]:
                raise ValueError("boom")

        graph.connect([old], Call(), [new])
        graph.swap(old, new)
        call(graph, "late", [new], action)
        with make(graph) as executor:
            executor.run()
            broken[0] = True
            with pytest.raises(ValueError, match=raised_by("late", "boom", "new float64[3, 2]")):
                executor.run()
            assert executor.iteration == 1
            np.testing.assert_array_equal(executor.fetch("old"), np.full(SHAPE, 1.0))
            broken[0] = False
            executor.run()
            np.testing.assert_array_equal(executor.fetch("old"), np.full(SHAPE, 2.0))

    def test_a_memory_refuses_another_description_under_one_name(self, make: Make) -> None:
        memory = Memory()
        one, two = Graph("one"), Graph("two")
        one.blob("w", (2, 3), persistent=True)
        two.blob("w", (3, 2), persistent=True)
        with make(one, memory=memory), pytest.raises(
            ShapeError,
            match=(
                r"^blob 'w' of graph 'two' is float32\[3, 2\] at cpu, but the memory holds float32\[2, 3\] at cpu "
                r"under that name: use one description, or another memory$"
            ),
        ):
            make(two, memory=memory)

    # R7 and R8: the same bits -----------------------------------------------------------------------------------

    def test_r7_draws_depend_on_seed_and_iteration_alone(self, make: Make) -> None:
        graph = Graph("draws")
        graph.apply(Gaussian((5, 3)), [], "noise")
        graph.apply(Bernoulli((4, 7)), [], "mask")

        def two_runs(seed: int) -> list[dict[str, bytes]]:
            with make(graph, seed=seed) as executor:
                executor.run()
                first = bits(executor)
                executor.run()
                return [first, bits(executor)]

        one, again, other = two_runs(5), two_runs(5), two_runs(6)
        assert one == again
        assert one[0]["noise"] != one[1]["noise"]
        assert one[0]["mask"] != other[0]["mask"]

    def test_r8_the_bits_of_the_serial_executor(self, make: Make) -> None:
        graph = Graph("bits")
        x = graph.blob("x", (5, 3), "float32")
        w = graph.parameter("w", (7, 3), "float32", Gaussian((7, 3)))
        v = graph.parameter("v", (7, 7), "float32", Gaussian((7, 7), std=0.3))
        (h,) = graph.apply(Tanh(), graph.apply(Linear(), [x, w], "h0"), "h")
        for step in range(3):
            (h,) = graph.apply(Tanh(), graph.apply(Linear(), [h, v], f"l{step}"), f"t{step}")
        (loss,) = graph.apply(ReduceSum((0, 1)), [h], "loss")
        backward(loss, [x, w, v])
        results = []
        for kind in (make, Serial):
            with kind(graph, seed=3) as executor:
                executor.feed(x=np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))
                for _ in range(3):
                    executor.run()
                results.append(bits(executor))
        assert results[0] == results[1]
        assert len(set(results[0].values())) > 10

    # R12: failures ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", [ValueError, KeyError, OperatorError, SystemExit, KeyboardInterrupt])
    def test_sc_04_an_operator_that_raises(self, make: Make, kind: type[BaseException]) -> None:
        """The error has its type, names the operator, comes soon, and the run after it is clean."""
        broken = [True]

        def b() -> None:
            if broken[0]:
                raise kind("boom")

        trace, before = Trace(), set(threading.enumerate())
        with make(chain_and_branch(b), observer=trace) as executor:
            workers = set(threading.enumerate()) - before  # threads of an earlier test may end meanwhile
            begun = time.perf_counter()
            with pytest.raises(kind, match=raised_by("b", "'?boom'?", "a float64[3, 2]")) as caught:
                executor.run()
            assert time.perf_counter() - begun < 5.0
            assert type(caught.value) is kind
            assert trace.names("failed") == ["b"]
            assert not {"c", "sink"} & set(trace.names("started"))
            assert set(threading.enumerate()) - before == workers
            broken[0] = False
            trace.events.clear()
            executor.run()
            assert sorted(trace.names("finished")) == ["a", "b", "c", "e", "f", "sink"]
            np.testing.assert_array_equal(executor.fetch("c"), np.full(SHAPE, 3.0))

    def test_sc_04_what_fails_while_it_is_made_leaves_no_thread(self, make: Make) -> None:
        class FullDevice(CpuDevice):
            def allocate(self, tensor: Tensor, name: str = "") -> Any:
                raise MemoryError(f"no room for {tensor}")

        before = set(threading.enumerate())
        with pytest.raises(MemoryError, match=r"^no room for float64\[3, 2\]$"):
            make(chain_and_branch(lambda: None), devices=lambda place: FullDevice())
        assert set(threading.enumerate()) <= before

    def test_sc_05_an_error_is_raised_once(self, make: Make) -> None:
        broken = [True]

        def b() -> None:
            if broken[0]:
                raise ValueError("first")

        with make(chain_and_branch(b)) as executor, make(chain_and_branch(lambda: None)) as other:
            with pytest.raises(ValueError, match=raised_by("b", "first", "a float64[3, 2]")):
                executor.run()
            executor.sync()
            other.run()
            broken[0] = False
            executor.run()
            executor.sync()

    def test_r12_nothing_starts_after_a_failure(self, make: Make) -> None:
        graph, count = Graph("stops"), [0]

        def tick() -> None:
            count[0] += 1

        bad = call(graph, "bad", [], fail_with(ValueError("boom")))
        last = bad
        for number in range(20):
            last = call(graph, f"after{number}", [last], tick)
        with make(graph) as executor:
            with pytest.raises(ValueError, match=raised_by("bad", "boom")):
                executor.run()
        assert count == [0]

    def test_r12_no_traceback_keeps_arrays_alive(self, make: Make) -> None:
        """Neither the arrays of the graph nor those that the operator made, in the frames of the error or its cause."""
        refs: list[weakref.ref[np.ndarray]] = []

        def helper(array: np.ndarray) -> None:
            temporary = array * 2
            refs.append(weakref.ref(temporary))
            raise KeyError("inner")

        def fail(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            local = inputs[0] + 1
            refs.extend(weakref.ref(array) for array in (local, inputs[0], outputs[0]))
            try:
                helper(local)
            except KeyError:
                raise ValueError("outer") from OSError("cause")

        graph = Graph("leak")
        graph.apply(Apply(fail), [graph.blob("x", (4, 3))], "y")
        with make(graph) as executor:
            with pytest.raises(ValueError, match=raised_by("y", "outer", "x float32[4, 3]", "Apply")) as caught:
                executor.run()
            assert len(refs) == 4
            assert refs[0]() is None  # the local of `fail`
            assert refs[3]() is None  # the temporary of `helper`
        gc.collect()
        assert all(ref() is None for ref in refs)
        assert isinstance(caught.value.__context__, KeyError)

    def test_r12_a_waiting_executor_keeps_no_error_alive(self, make: Make) -> None:
        class Marked(Exception):
            pass

        graph = Graph("errors")
        call(graph, "x", [], lambda: fail_with(Marked("boom"))())
        with make(graph) as executor:
            try:
                executor.run()
            except Marked as error:
                ref = weakref.ref(error)
            gc.collect()
            assert ref() is None

    def test_r12_an_error_that_is_its_own_cause_is_raised_all_the_same(self, make: Make) -> None:
        def action() -> None:
            error = ValueError("loop")
            raise error from error

        graph = Graph("loop")
        call(graph, "x", [], action)
        with make(graph) as executor, pytest.raises(ValueError, match=raised_by("x", "loop")):
            executor.run()

    def test_r12_ctrl_c_ends_a_run_and_the_next_is_clean(self, make: Make) -> None:
        graph, interrupted, started = Graph("ctrl-c"), [False], []

        def interrupt() -> None:
            if not interrupted[0]:
                interrupted[0] = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                for _ in range(1000):  # the main thread takes the signal between two of its instructions
                    started.append("a")

        last = call(graph, "a", [], interrupt)
        for number in range(300):
            last = call(graph, f"b{number}", [last])
        with make(graph) as executor:
            begun = time.perf_counter()
            with pytest.raises(KeyboardInterrupt):
                run_for_ever(executor)
            assert time.perf_counter() - begun < 5.0
            executor.run()
            np.testing.assert_array_equal(executor.fetch("b299"), np.full(SHAPE, 301.0))

    # Misuse -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("method", "message"),
        [
            ("run", "cannot be started again while it runs: call sync first"),
            ("run_async", "cannot be started again while it runs: call sync first"),
            ("sync", "cannot be waited for from its own operator 'x'"),
            ("close", "cannot be closed from its own operator 'x'"),
        ],
    )
    def test_an_operator_cannot_drive_its_own_executor(self, make: Make, method: str, message: str) -> None:
        graph = Graph("inside")
        held: list[Executor] = []
        busy = [True]
        call(graph, "x", [], lambda: busy[0] and getattr(held[0], method)())
        with make(graph) as executor:
            held.append(executor)
            with pytest.raises(RuntimeError, match=raised_by("x", f"executor of graph 'inside' {message}")):
                executor.run()
            busy[0] = False
            executor.run()

    def test_an_operator_may_run_another_executor(self, make: Make) -> None:
        inner, outer = Graph("inner"), Graph("outer")
        call(inner, "y", [call(inner, "x")])
        with make(inner) as worker:
            call(outer, "z", [], worker.run)
            with make(outer) as executor:
                for _ in range(20):
                    executor.run()
            assert worker.iteration == 20

    def test_a_closed_executor_refuses_and_can_be_closed_again(self, make: Make) -> None:
        graph = Graph("done")
        call(graph, "x")
        executor = make(graph)
        executor.run()
        executor.close()
        executor.close()
        executor.sync()
        message = "^executor of graph 'done' is closed and cannot {}: make a new one$"
        for method, what in (("run", "run"), ("run_async", "run")):
            with pytest.raises(RuntimeError, match=message.format(what)):
                getattr(executor, method)()
        with pytest.raises(RuntimeError, match=message.format("be fed")):
            executor.feed(x=np.zeros(SHAPE))
        with pytest.raises(RuntimeError, match=message.format("be fetched from")):
            executor.fetch("x")

    def test_closing_in_the_middle_of_a_run(self, make: Make) -> None:
        graph, gate = Graph("middle"), Gate()
        trace = Trace()
        call(graph, "y", [call(graph, "x", [], gate)])
        executor = make(graph, observer=trace)
        with running(executor, gate) as future:
            executor.close()
        message = "executor of graph 'middle' was closed while it ran"
        with pytest.raises(RuntimeError, match=rf"^{message}$|{raised_by('x', message)}"):
            future.result(WATCH)
        assert "y" not in trace.names("started")

    def test_closing_lets_go_of_threads_and_arrays(self, make: Make) -> None:
        graph = Graph("free")
        refs: list[weakref.ref[np.ndarray]] = []
        graph.apply(Apply(lambda inputs, outputs: refs.append(weakref.ref(outputs[0]))), [graph.blob("x", (2, 3))], "y")
        before = set(threading.enumerate())
        with make(graph) as executor:
            executor.run()
            assert refs[0]() is not None
        assert set(threading.enumerate()) <= before  # threads of an earlier test may have ended meanwhile
        gc.collect()
        assert refs[0]() is None

    # Feeding and fetching ---------------------------------------------------------------------------------------

    def test_feed_and_fetch_copy(self, make: Make) -> None:
        graph = Graph("copies")
        graph.apply(Scale(2.0), [graph.blob("in/x", (2, 3), "float64")], "y")
        array = np.arange(12.0).reshape(3, 4)[:, ::2].T
        with make(graph) as executor:
            executor.feed({"in/x": array})
            array[...] = -1
            executor.run()
            expected = np.arange(12.0).reshape(3, 4)[:, ::2].T * 2
            fetched = executor.fetch("y")
            np.testing.assert_array_equal(fetched, expected)
            fetched[...] = 0
            np.testing.assert_array_equal(executor.fetch("y"), expected)

    def test_feed_errors(self, make: Make) -> None:
        graph = Graph("feeds")
        x, scalar = graph.blob("x", (2, 3)), graph.blob("scalar", ())
        graph.apply(Scale(2.0), [x], "y")
        graph.apply(Scale(2.0), [scalar], "z")
        with make(graph) as executor:
            with pytest.raises(GraphError, match=r"^graph 'feeds' has no blob 'yy'; nearest: y$"):
                executor.feed(yy=np.zeros((2, 3), np.float32))
            with pytest.raises(GraphError, match=r"^blob 'y' is written by operator 'y'; feed a source blob$"):
                executor.feed(y=np.zeros((2, 3), np.float32))
            with pytest.raises(ShapeError, match=r"^blob 'x' takes float32\[2, 3\], got float32\[3, 2\]$"):
                executor.feed(x=np.zeros((3, 2), np.float32))
            with pytest.raises(ShapeError, match=r"^blob 'x' takes float32\[2, 3\], got float64\[2, 3\]$"):
                executor.feed(x=np.zeros((2, 3)))
            with pytest.raises(ShapeError, match=r"^blob 'scalar' takes float32\[\], got float\[\]$"):
                executor.feed(scalar=2.0)
            executor.feed(scalar=np.float32(2))
            executor.run()
            assert executor.fetch("z") == 4

    def test_fetch_errors(self, make: Make) -> None:
        graph = Graph("fetches")
        (h,) = graph.apply(Scale(2.0), [graph.blob("x", (2, 3))], "h")
        graph.connect([h], Tanh(), [graph.view(h, "t")])
        with make(graph) as executor:
            executor.run()
            with pytest.raises(GraphError, match=r"^graph 'fetches' has no blob 'q'$"):
                executor.fetch("q")
            graph.blob("late", (2,))
            with pytest.raises(
                GraphError, match=r"^blob 'late' is newer than this executor of graph 'fetches': make a new one$"
            ):
                executor.fetch("late")
            with pytest.raises(
                GraphError,
                match=r"^blob 'h' was overwritten in place: fetch what overwrote it, or give it memory$",
            ):
                executor.fetch("h")
            assert executor.fetch("t").shape == (2, 3)

    # The observer -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", [ValueError, SystemExit])
    def test_an_observer_that_fails_cannot_break_a_run(
        self, make: Make, kind: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        class Bad(Observer):
            def started(self, *facts: object) -> None:
                raise kind("observer")

            finished = copied = failed = started

        broken = [False]
        graph = Graph("watched")
        y = call(graph, "y", [call(graph, "x")], lambda: broken[0] and fail_with(ValueError("boom"))())
        call(graph, "z", [y])
        with make(graph, observer=Bad()) as executor, caplog.at_level(logging.ERROR, "purine_ref"):
            executor.run()
            np.testing.assert_array_equal(executor.fetch("z"), np.full(SHAPE, 3.0))
            broken[0] = True
            with pytest.raises(ValueError, match=raised_by("y", "boom", "x float64[3, 2]")):
                executor.run()
            broken[0] = False
            executor.run()
            assert executor.iteration == 2
        assert len(caplog.records) == 6 + 4 + 6
        caplog.clear()

    def test_an_observer_sees_every_operator_start_before_it_ends_and_after_its_producers(self, make: Make) -> None:
        graph, trace = chain_and_branch(lambda: None), Trace()
        with make(graph, observer=trace) as executor:
            executor.run()
        place = {event: number for number, event in enumerate(trace.events)}
        assert len(place) == len(trace.events) == 12
        for op in graph.ops:
            assert place["started", op.name] < place["finished", op.name]
            for blob in op.inputs:
                for producer, _ in blob.producers:
                    assert place["finished", producer.name] < place["started", op.name]

    def test_an_observer_cannot_wait_for_the_run_that_waits_for_it(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        held: list[Executor] = []

        class Waits(Observer):
            def finished(self, *facts: object) -> None:
                held[0].sync()

        graph = Graph("waits")
        call(graph, "x")
        with make(graph, observer=Waits()) as executor, caplog.at_level(logging.ERROR, "purine_ref"):
            held.append(executor)
            executor.run()
        message = "executor of graph 'waits' cannot be waited for from its own operator 'x'"
        assert re.search(message, caplog.text)
        caplog.clear()


class ConcurrentSuite(ExecutorSuite):
    """What an executor must do besides that computes several operators at once."""

    @pytest.fixture
    def workers(self) -> int:
        """How many operators it computes at once, 2 or more."""
        raise NotImplementedError("override the fixture workers")

    def test_as_many_operators_run_at_once_as_there_are_workers(self, make: Make, workers: int) -> None:
        """Each waits in a barrier for all others: one worker less, and the barrier would never open."""
        graph, barrier = Graph("wide"), threading.Barrier(workers)
        for number in range(workers):
            call(graph, f"x{number}", [], lambda: barrier.wait(WATCH))
        with make(graph) as executor:
            for _ in range(50):
                executor.run()

    def test_all_workers_are_there_after_they_have_all_failed(self, make: Make, workers: int) -> None:
        graph, barrier, broken = Graph("fails"), threading.Barrier(workers), [True]

        def action() -> None:
            barrier.wait(WATCH)
            if broken[0]:
                raise ValueError("boom")

        for number in range(workers):
            call(graph, f"x{number}", [], action)
        with make(graph) as executor:
            for _ in range(10):
                broken[0] = True
                with pytest.raises(ExceptionGroup, match=rf"^{workers} operators of graph 'fails' failed$"):
                    executor.run()
                broken[0] = False
                executor.run()

    def test_sc_02_producers_that_end_at_the_same_time(self, make: Make, workers: int) -> None:
        graph, barrier = Graph("together"), threading.Barrier(workers)
        total = graph.blob("t", SHAPE, "float64")
        for number in range(workers):
            graph.connect([], Call(lambda: barrier.wait(WATCH)), [total], name=f"p{number}")
        with make(graph, devices=lambda place: JunkDevice()) as executor:
            for _ in range(200):
                executor.run()
                np.testing.assert_array_equal(executor.fetch("t"), np.full(SHAPE, float(workers)))

    def test_sc_02_the_order_of_the_sum_is_not_that_of_the_ends(self, make: Make) -> None:
        """1 + 1e8 - 1e8 is 0 in float32; the first producer ends last, and would make it 1."""
        graph = Graph("late")
        total = graph.blob("t", (4,))
        for name, value in (("first", 1.0), ("second", 1e8), ("third", -1e8)):
            graph.connect([], Constant(value, (4,)), [total], name=name)
        turns = InTurn(["second", "third", "first"])
        with make(graph, observer=turns, devices=lambda place: JunkDevice()) as executor:
            for _ in range(2):
                executor.run()
                assert executor.fetch("t").tolist() == [0] * 4

    def test_sc_05_two_errors_become_a_group(self, make: Make) -> None:
        graph, barrier, broken = Graph("both"), threading.Barrier(2), [True]

        def failing(error: Exception) -> Callable[[], None]:
            def action() -> None:
                barrier.wait(WATCH)
                if broken[0]:
                    raise error

            return action

        call(graph, "x", [], failing(ValueError("one")))
        call(graph, "y", [], failing(KeyError("two")))
        with make(graph) as executor:
            with pytest.raises(ExceptionGroup, match=r"^2 operators of graph 'both' failed$") as group:
                executor.run()
            notes = {type(error): error.__notes__ for error in group.value.exceptions}
            assert notes == {
                ValueError: ["operator 'x' (Call) at cpu, inputs: none"],
                KeyError: ["operator 'y' (Call) at cpu, inputs: none"],
            }
            broken[0] = False
            executor.run()
            executor.sync()

    def test_sc_05_a_group_holds_what_is_no_exception_too(self, make: Make) -> None:
        graph, barrier = Graph("both"), threading.Barrier(2)

        def failing(error: BaseException) -> Callable[[], None]:
            def action() -> None:
                barrier.wait(WATCH)
                raise error

            return action

        call(graph, "x", [], failing(ValueError("one")))
        call(graph, "y", [], failing(SystemExit("two")))
        with make(graph) as executor, pytest.raises(BaseExceptionGroup) as group:
            executor.run()
        assert {type(error) for error in group.value.exceptions} == {ValueError, SystemExit}

    def test_r12_running_operators_end_before_sync_raises(self, make: Make) -> None:
        graph, other_runs, failed = Graph("ends"), threading.Event(), threading.Event()
        ended = []

        class Sees(Observer):
            def failed(self, *facts: object) -> None:
                failed.set()

        def slow() -> None:
            other_runs.set()
            assert failed.wait(WATCH)
            ended.append("slow")

        def bad() -> None:
            assert other_runs.wait(WATCH)
            raise ValueError("boom")

        call(graph, "after", [call(graph, "slow", [], slow)], lambda: ended.append("after"))
        call(graph, "bad", [], bad)
        with make(graph, observer=Sees()) as executor:
            with pytest.raises(ValueError, match=raised_by("bad", "boom")):
                executor.run()
            assert ended == ["slow"]
