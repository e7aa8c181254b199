"""One suite for both twins of the readiness tracker, plain (`py`) and compiled (`cy`), and twin against twin (rule R2).

Graphs are drawn as a seed: any number of edges between any operators and blobs, wired twice or with several producers
too. `cy` is skipped only where PURINE_REF_FAST is 0 or nothing was built; never where it is 1.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import os
import re
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref._fast import select, tracker
from purine_ref._fast.edges import LIMIT

Lists = tuple[list[str], list[int], list[int], list[list[int]], list[list[int]], list[int]]


def plain() -> ModuleType:
    """The plain twin, whatever the environment says."""
    return importlib.import_module("purine_ref._fast.tracker")


def compiled() -> ModuleType:
    """The compiled twin, or a skip that says why there is none."""
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    if setting == "0":
        pytest.skip("PURINE_REF_FAST=0 asks for the plain tracker alone")
    if setting == "auto" and importlib.util.find_spec("purine_ref._fast._tracker") is None:
        pytest.skip("the compiled tracker is not built; run python setup.py build_ext --inplace")
    return select("1", "purine_ref._fast._tracker")


@pytest.fixture(scope="module", params=["py", "cy"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return plain() if request.param == "py" else compiled()


def lists(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], external: Sequence[int] = ()) -> Lists:
    """What `Edges` takes, for operators with these input and output blobs."""
    blobs = max((blob for row in (*inputs, *outputs) for blob in row), default=-1) + 1
    producers = [sum(row.count(blob) for row in outputs) for blob in range(blobs)]
    waiting = [sum(producers[blob] > 0 for blob in row) + (op in external) for op, row in enumerate(inputs)]
    consumers = [[op for op, row in enumerate(inputs) for _ in range(row.count(blob))] for blob in range(blobs)]
    names = [f"op{op}" for op in range(len(inputs))]
    return names, waiting, producers, [list(row) for row in outputs], consumers, list(external)


DIAMOND = lists([[], [0], [0], [1, 2, 1]], [[0], [1], [2], [3]])
"""0 -> 1, 0 -> 2, and 3 reads both of theirs, the first one twice."""


def drawn(seed: int, external: bool = True) -> Lists:
    """A random graph whose blobs flow from operators of smaller numbers to those of greater ones."""
    rng = np.random.default_rng(seed)
    operators = int(rng.integers(0, 12))
    inputs: list[list[int]] = []
    outputs: list[list[int]] = []
    for op in range(operators):
        inputs.append([int(blob) for blob in rng.integers(0, 1 + 2 * op, int(rng.integers(0, 5)))])
        outputs.append([int(blob) for blob in rng.integers(1 + 2 * op, 4 + 2 * op, int(rng.integers(0, 4)))])
    outside = [op for op in range(operators) if external and rng.random() < 0.2]
    return lists(inputs, outputs, outside)


def first_of(edges: Lists) -> list[int]:
    """The operators that wait for nothing."""
    return [op for op, count in enumerate(edges[1]) if count == 0]


def make(twin: ModuleType, edges: Lists = DIAMOND) -> Any:
    """A tracker of one run."""
    return twin.Tracker(twin.Edges(*edges))


# A run step by step -------------------------------------------------------------------------------------------------


def test_a_run_of_a_diamond(twin: ModuleType) -> None:
    run = make(twin)
    assert run.active()
    assert [run.state(op) for op in (0, 1, 3)] == ["ready", "waiting for 1 input edges", "waiting for 3 input edges"]
    assert run.done(0) == [1, 2]
    assert run.done(2) == []
    complete = run.finish(1)
    assert (complete, run.state(1)) == ([1], "finished")
    assert run.release(1, complete) == [3]
    assert (run.state(1), run.active()) == ("released", True)
    assert run.done(3) == []
    assert not run.active()


def test_r3_an_empty_graph_is_never_active(twin: ModuleType) -> None:
    run = make(twin, lists([], []))
    assert not run.active()
    assert run.walk([]) == 0
    run.run([], [], [], print)


def test_an_external_operator_waits_for_its_input_and_from_outside(twin: ModuleType) -> None:
    edges = lists([[], [0]], [[0], [1]], external=[1])
    run = make(twin, edges)
    assert run.awaits()
    assert run.arrive(1) == []
    assert not run.awaits()
    assert run.done(0) == [1]
    run = make(twin, edges)
    assert run.done(0) == []
    assert run.arrive(1) == [1]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda t: t.finish(1), "'op1' cannot finish: it is waiting for 1 input edges"),
        (lambda t: t.done(3), "'op3' cannot finish: it is waiting for 3 input edges"),
        (lambda t: (t.finish(0), t.finish(0)), "'op0' cannot finish: it is finished"),
        (lambda t: (t.done(0), t.done(0)), "'op0' cannot finish: it is released"),
        (lambda t: t.release(0, []), "'op0' cannot be released: it is ready"),
        (lambda t: (t.done(0), t.release(0, [])), "'op0' cannot be released: it is released"),
        (lambda t: t.arrive(0), "'op0' awaits nothing from outside: it is ready"),
        (lambda t: t.walk([1]), "'op1' cannot finish: it is waiting for 1 input edges"),
        (lambda t: t.run([1], CALLS, [None], print), "'op1' cannot finish: it is waiting for 1 input edges"),
        (lambda t: t.run([0, 0], CALLS, [None], print), "'op0' cannot finish: it is released"),
    ],
)
def test_misuse_is_told_with_the_state_in_words(
    twin: ModuleType, misuse: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(RuntimeError, match=rf"^{re.escape(message)}$"):
        misuse(make(twin))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda t: t.finish(4),
        lambda t: t.done(4),
        lambda t: t.state(4),
        lambda t: t.release(4, []),
        lambda t: (t.finish(0), t.release(0, [4])),
        lambda t: t.walk([4]),
        lambda t: t.run([4], CALLS, [None], print),
        lambda t: t.run([0], [(print, 1, [], [])] * 4, [None], print),
    ],
)
def test_a_number_beyond_the_graph_is_an_index_error(twin: ModuleType, misuse: Callable[[Any], object]) -> None:
    message = r"list index out of range|(operator|blob) 4: expected 0 to 3|place 1: expected 0 to 0"
    with pytest.raises(IndexError, match=f"^({message})$"):
        misuse(make(twin))


# Whole runs ---------------------------------------------------------------------------------------------------------


def nothing(kernels: object, inputs: object, outputs: object) -> None:
    """An operator that does nothing."""


CALLS = [(nothing, 0, [], [])] * 4


def test_a_whole_run_calls_each_operator_with_its_arrays_and_its_place(twin: ModuleType) -> None:
    seen: list[object] = []

    def compute(kernels: object, inputs: object, outputs: object) -> None:
        seen.append((kernels, inputs, outputs))

    calls = [(compute, op % 2, f"in{op}", f"out{op}", "ignored") for op in range(3)] + [(None, 0, "", "")]
    run = make(twin)
    run.run([0], calls, ["even", "odd"], print)
    assert seen == [("even", "in0", "out0"), ("odd", "in1", "out1"), ("even", "in2", "out2")]
    assert (run.active(), run.current) == (False, 3)


def test_r4_blobs_of_several_producers_are_combined_when_the_last_has_delivered(twin: ModuleType) -> None:
    """Before any operator that reads them starts; blobs of one producer are not."""
    edges = lists([[], [], [0, 1, 2]], [[0, 1], [1, 2, 1], [3]])
    told: list[object] = []
    calls = [(lambda *_, op=op: told.append(f"op{op}"), 0, [], []) for op in range(3)]
    make(twin, edges).run([0, 1], calls, [None], lambda blob: told.append(blob))
    assert told == ["op0", "op1", 1, "op2"]


@pytest.mark.parametrize("where", ["compute", "combine"])
def test_r12_what_is_raised_comes_out_and_says_at_which_operator(twin: ModuleType, where: str) -> None:
    def fail(*_: object) -> None:
        raise ValueError("boom")

    told: list[int] = []
    edges = lists([[], [0], [0], [1]], [[0], [1, 1], [2], [3]])
    calls = [(lambda *_, op=op: told.append(op), 0, [], []) for op in range(4)]
    if where == "compute":
        calls[1] = (fail, 0, [], [])
    run = make(twin, edges)
    with pytest.raises(ValueError, match=r"^boom$"):
        run.run([0], calls, [None], fail if where == "combine" else print)
    assert (run.current, run.active()) == (1, True)
    assert told == ([0] if where == "compute" else [0, 1])
    assert run.state(1) == ("ready" if where == "compute" else "finished")


def test_a_run_that_is_halted_starts_nothing_more(twin: ModuleType) -> None:
    run = make(twin)

    def halt(*_: object) -> None:
        run.halted = True

    run.run([0], [CALLS[0], (halt, 0, [], []), *CALLS[2:]], [None], print)
    assert [run.state(op) for op in range(3)] == ["released", "released", "ready"]
    assert run.halted


def test_an_operator_may_ask_the_tracker_that_runs_it(twin: ModuleType) -> None:
    """Even to release what was finished before: the run's own queue is not disturbed."""
    edges = lists([[], [], [0], [1], [2, 3]], [[0], [1], [2], [3], [4]])
    run, told = make(twin, edges), []

    def ask(*_: object) -> None:
        told.append((run.current, run.state(2), run.done(0)))

    rest = [(lambda *_, op=op: told.append(op), 0, [], []) for op in (2, 3, 4)]
    calls = [(nothing, 0, [], []), (ask, 0, [], []), *rest]
    run.run([1], calls, [None], print)
    assert told == [(1, "waiting for 1 input edges", [2]), 3]


def test_a_tracker_keeps_nothing_alive_after_it(twin: ModuleType) -> None:
    class Kept:
        pass

    kept = Kept()
    ref = weakref.ref(kept)
    run = make(twin)
    run.run([0], [(lambda *_, kept=kept: None, 0, [], [])] * 4, [kept], lambda blob, kept=kept: None)
    del kept
    gc.collect()
    assert ref() is None
    assert not run.active()


# Edges --------------------------------------------------------------------------------------------------------------

MANY = range(LIMIT + 1)
"""More than int32 can count; a range takes no memory."""

REFUSED = [
    ({0: ["a"]}, "names: expected one for each of 4, got 1"),
    ({1: [0, 1, -1, 3]}, "waiting: expected 0 to 2147483647, got -1 to 3"),
    ({1: [0, 1, 1, LIMIT + 1]}, "waiting: expected 0 to 2147483647, got 0 to 2147483648"),
    ({1: MANY}, "waiting: expected at most 2147483647, which int32 can count, got 2147483648; use a smaller graph"),
    ({2: MANY}, "producers: expected at most 2147483647, which int32 can count, got 2147483648; use a smaller graph"),
    ({3: [[0], [1], [2]]}, "outputs: expected one for each of 4, got 3"),
    ({3: [[0], [1], [2], [4]]}, "outputs: expected 0 to 3, got 0 to 4"),
    ({3: [[0], [1], [2], MANY]}, "outputs: expected at most 2147483647, which int32 can count, got 2147483651; .*"),
    ({4: [[1, 2], [3], [3, -1], []]}, "consumers: expected 0 to 3, got -1 to 3"),
    ({4: [[], MANY, [], []]}, "consumers: expected at most 2147483647, which int32 can count, got 2147483648; .*"),
    ({4: [[1, 2]]}, "consumers: expected one for each of 4, got 1"),
    ({5: [4]}, "external: expected 0 to 3, got 4 to 4"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_edges_that_overflow_or_lead_nowhere_are_refused(
    twin: ModuleType, change: dict[int, Any], message: str
) -> None:
    arguments = [change.get(place, value) for place, value in enumerate(DIAMOND)]
    with pytest.raises(ValueError, match=f"^{message}$"):
        twin.Edges(*arguments)


def test_edges_are_not_the_lists_they_were_made_of(twin: ModuleType) -> None:
    edges = lists([[], [0]], [[0], [1]])
    whole = twin.Edges(*edges)
    edges[1][0] = edges[2][0] = 5
    assert twin.Tracker(whole).walk([0]) == 2


def test_compiled_edges_are_made_once() -> None:
    """Trackers point into them."""
    edges = compiled().Edges(*DIAMOND)
    with pytest.raises(RuntimeError, match=r"^edges are made once, "):
        edges.__init__(*DIAMOND)


# Twin against twin --------------------------------------------------------------------------------------------------


def test_twins_have_the_same_names_and_signatures() -> None:
    py, cy = plain(), compiled()
    for kind in ("Edges", "Tracker"):
        public = [name for name in vars(getattr(py, kind)) if not name.startswith("_")]
        for name in public:
            pair = [inspect.signature(getattr(getattr(module, kind), name)) for module in (py, cy)]
            assert list(pair[0].parameters) == list(pair[1].parameters), name
    assert tracker in (py, cy)


@given(seed=st.integers(0, 2**32 - 1))
def test_twins_agree_step_by_step(seed: int) -> None:
    """Any order of legal steps, and now and then an illegal one."""
    edges, rng = drawn(seed), np.random.default_rng(seed)
    pair = [make(plain(), edges), make(compiled(), edges)]
    ready, late, finished = first_of(edges), list(edges[5]), {}
    while ready or late or finished:
        kind = rng.choice(["take", "arrive", "release", "wrong"])
        if kind == "take" and ready:
            op = ready.pop(int(rng.integers(len(ready))))
            finished[op] = same(pair, "finish", op)
        elif kind == "arrive" and late:
            ready += same(pair, "arrive", late.pop(int(rng.integers(len(late)))))
        elif kind == "release" and finished:
            op = int(rng.choice(list(finished)))
            ready += same(pair, "release", op, finished.pop(op))
        elif kind == "wrong":
            same(pair, "finish", int(rng.integers(len(edges[0]))), refused=True)
        assert pair[0].active() == pair[1].active()
        assert len({tuple(run.state(op) for op in range(len(edges[0]))) for run in pair}) == 1
        assert pair[0].awaits() == pair[1].awaits() == bool(late)
    assert not pair[1].active()


def same(pair: Sequence[Any], method: str, *arguments: Any, refused: bool = False) -> Any:
    """What both twins give, or that both refuse in the same words; a step that is legal after all is not taken."""
    if refused and pair[0].state(arguments[0]) == "ready":
        return None
    results = []
    for run in pair:
        try:
            results.append(getattr(run, method)(*arguments))
        except RuntimeError as error:
            assert refused
            results.append(str(error))
    assert results[0] == results[1]
    return results[0]


@given(seed=st.integers(0, 2**32 - 1), stop=st.integers(0, 20))
def test_twins_agree_on_whole_runs(seed: int, stop: int) -> None:
    """The order of operators and additions, and where a failure leaves the counts; `walk` is a run of nothing."""
    edges = drawn(seed, external=False)
    told: list[list[object]] = []
    for module in (plain(), compiled()):
        events: list[object] = []
        run = make(module, edges)

        def tell(event: object, events: list[object] = events) -> None:
            if len(events) == stop:
                raise KeyError(stop)
            events.append(event)

        calls = [(lambda *_, op=op, tell=tell: tell(f"op{op}"), 0, [], []) for op in range(len(edges[0]))]
        try:
            run.run(first_of(edges), calls, [None], tell)
        except KeyError:
            events.append("failed")
        told.append([*events, run.current, run.active(), *(run.state(op) for op in range(len(edges[0])))])
        assert make(module, edges).walk(first_of(edges)) == len(edges[0])
    assert told[0] == told[1]
