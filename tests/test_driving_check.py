"""What `check_port` finds, and how small it comes back: planted faults in a small dispatcher and in operations."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mini_port import MiniPort, Wrong
from purine_ref.conformance.cases import Case, make_case, read_case
from purine_ref.conformance.driving import (
    Hello,
    Options,
    Played,
    Result,
    Trial,
    check_port,
    counts,
    never_run,
    scratch,
    verdict,
)
from purine_ref.conformance.driving.checking import replay_case
from purine_ref.conformance.driving.junit import junit
from purine_ref.conformance.driving.keeping import TEXT, keep
from purine_ref.conformance.driving.trying import trace_judge
from purine_ref.graph import Graph
from purine_ref.operation import Array, Operation
from purine_ref.ops import Identity, Sigmoid, Sum
from purine_ref.plan import prepare
from purine_ref.schedule import order_ranks

MOST = 4
"""Operators of a failure that was made smaller."""


def check(port: MiniPort, golden: Sequence[Case] = (), **options: object) -> list[Result]:
    """The results of a check."""
    named = [(case.name, lambda case=case: case) for case in golden]
    return list(check_port(trial(port), named, Options(**options)))  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def work() -> Iterator[Path]:
    """A folder in memory: the checks write thousands of small files."""
    with scratch() as folder:
        WORK.append(Path(folder))
        yield WORK[0]
        WORK.clear()


WORK: list[Path] = []


def trial(port: MiniPort) -> Trial:
    """Cases on a port, in that folder."""
    return Trial(port, WORK[0])


def test_a_sound_port_passes_every_check(tmp_path: Path) -> None:
    results = check(MiniPort(), examples=40)
    assert [r.reason for r in results if r.outcome == "fail"] == []
    assert verdict(results, 1) == "pass"
    assert {result.check for result in results} == {"random", "schedules", "repeat"}
    assert never_run(results, MiniPort().operations) == []


def test_a_port_of_all_operations_passes_the_random_check(tmp_path: Path) -> None:
    results = check(MiniPort(operations=frozenset({"all"})), examples=60, only=("random",))
    assert [r.reason for r in results if r.outcome == "fail"] == []
    assert len(never_run(results, MiniPort(operations=frozenset({"all"})).hello.operations)) < 10


def test_cases_are_functions_of_the_seed(tmp_path: Path) -> None:
    ports = [Recording(), Recording(), Recording()]
    for port, seed in zip(ports, (0, 0, 1), strict=True):
        check(port, examples=8, seed=seed)
    assert ports[0].seen == ports[1].seen
    assert ports[0].seen != ports[2].seen


def test_orders_are_legal_and_mostly_not_that_of_the_making() -> None:
    port = Recording()
    check(port, examples=20, only=("schedules",))
    changed = 0
    for case in port.cases:
        assert case.schedule is not None
        order_ranks(prepare(case.graph), case.schedule)  # raises for one that is not topological, or not whole
        changed += list(case.schedule) != [op.name for op in case.graph.ops]
    assert len(port.cases) == 30
    assert changed > 20


def test_a_port_without_schedules_is_asked_for_none() -> None:
    class Plain(MiniPort):
        @property
        def hello(self) -> Hello:
            return replace(super().hello, schedules=False)

    results = check(Plain(), examples=2)
    assert [(r.name, r.outcome) for r in results if r.check == "schedules"] == [("all", "unsupported")]
    assert verdict(results, 1) == "pass"


class Recording(MiniPort):
    """A port that remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.cases: list[Case] = []

    def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> object:  # type: ignore[override]
        self.cases.append(case)
        facts = [(op.name, op.operation, op.stream) for op in case.graph.ops]
        self.seen.append(f"{facts} {case.schedule} {[f['s0'].sum() for f in case.feeds if 's0' in f]}")
        return super().play(folder, case, out, trace)


# Faults of the dispatcher ---------------------------------------------------------------------------------------------

DISPATCHERS = {
    "nodes": {"differs"},
    "reverse": {"differs"},
    "lost": {"differs"},
    "overwrite": {"differs"},
    "mean": {"differs"},
    "double": {"differs"},
    "pairs": {"differs"},
    "stale": {"differs"},
    "schedule": {"crashed"},
    "deadlock": {"hung"},
}
"""Planted faults of the dispatcher, and how each shows."""


@pytest.mark.parametrize("fault", DISPATCHERS)
def test_a_wrong_dispatcher_is_found_and_made_small(fault: str) -> None:
    results = check(MiniPort(fault), examples=200, first=True)
    failed = [result for result in results if result.outcome == "fail"]
    assert len(failed) == 1
    assert failed[0].kind in DISPATCHERS[fault]
    smaller = failed[0].smaller
    assert smaller is not None
    assert len(smaller.case.graph.ops) <= MOST, [op.describe() for op in smaller.case.graph.ops]
    assert trial(MiniPort(fault)).fault(smaller.case) is not None
    assert trial(MiniPort()).fault(smaller.case) is None


@pytest.mark.parametrize("fault", ["reverse", "lost", "deadlock"])
def test_a_fault_of_one_run_in_a_hundred_is_found(fault: str, tmp_path: Path) -> None:
    port = MiniPort(fault, every=97)
    results = check(port, examples=200, only=("repeat",), first=True)
    failed = [result for result in results if result.outcome == "fail"]
    assert len(failed) == 1
    assert failed[0].smaller is not None
    assert len(failed[0].smaller.case.graph.ops) <= MOST


def test_bits_that_change_from_run_to_run_are_unsteady(tmp_path: Path) -> None:
    def noise(operation: Operation, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = np.nextafter(outputs[0], port.runs % 2 * 9.0)

    port = MiniPort(wrong={"Sigmoid": noise})
    graph = Graph("one")
    graph.connect([graph.blob("x", (3,))], Sigmoid(), [graph.blob("y", (3,))])
    case = make_case(graph, name="one", about="", feeds=[{"x": np.ones(3, "float32")}])
    fault = trial(port).fault(case, 2)
    assert fault is not None
    assert fault.kind == "unsteady"
    assert "run 2" in fault.reason


def test_an_illegal_trace_is_a_fault_though_all_values_are_right() -> None:
    lines = {
        "early": ['{"seq": 0, "event": "begin", "iteration": 0}', '{"seq": 1, "event": "finish", "iteration": 0}'],
        "none": ["hello"],
        "cut": ['{"seq": 0, "event": "begin", "iteration": 0}'],
    }

    class Traced(MiniPort):
        def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> Played:
            head = '{"format": "purine-trace/1"}'
            (out / "trace.jsonl").write_text("\n".join([head, *lines[self.fault], ""]))
            return Played(MiniPort().play(folder, case, out).results, out / "trace.jsonl")

    words = {"early": "finish", "none": "refused", "cut": "without 'stop'"}
    for fault, word in words.items():
        found = Trial(Traced(fault), WORK[0], trace_judge).fault(some_cases()[0])
        assert found is not None
        assert (found.kind, word in found.reason) == ("trace", True), found
        assert trial(Traced(fault)).fault(some_cases()[0]) is None


# Faults of operations -------------------------------------------------------------------------------------------------


def set_first(change: object) -> Wrong:
    """A fault that replaces the first output by a function of the operation, the inputs, and it."""

    def wrong(operation: Operation, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = change(operation, inputs, outputs[0])  # type: ignore[operator]

    return wrong


OPERATORS = {
    "ReLU": lambda op, x, y: np.abs(x[0]),
    "ReLUGradient": lambda op, x, y: x[0] * (x[1] >= 0),
    "Bias": lambda op, x, y: y + (x[1].sum() if op.axis == 0 else 0),
    "Linear": lambda op, x, y: y * (1 if len(y) < 3 else [[1]] * 2 + [[2]] * (len(y) - 2)),
    "Conv2d": lambda op, x, y: y * (op.dilation[0] == op.dilation[1]),
    "Conv2dDataGradient": lambda op, x, y: y * (op.groups == 1),
    "Conv2dWeightGradient": lambda op, x, y: y * (op.pads[0][0] == op.pads[0][1]),
    "MaxPool2d": lambda op, x, y: np.maximum(y, 0),
    "Concat": lambda op, x, y: np.concatenate(x[::-1], op.axis) if len({a.shape for a in x}) == 1 else y,
    "Sum": lambda op, x, y: y / len(x),
    "Mul": lambda op, x, y: x[0] * x[0],
    "SGD": lambda op, x, y: x[0] - op.multiplier * x[3] * (op.momentum * x[2] + x[1] + op.decay * x[0]),
    "SquaredError": lambda op, x, y: 2 * y,
    "SquaredErrorGradient": lambda op, x, y: y * op.sign,
    "Slice": lambda op, x, y: np.flip(y, op.axis),
}
"""Planted faults of operations: what the first output is in place of what it should be."""


def found_with(name: str) -> Result:
    """The first failure of a port with that wrong operation."""
    port = MiniPort(wrong={name: set_first(OPERATORS[name])})
    with np.errstate(all="ignore"):
        results = check(port, examples=200, only=("random",), first=True)
    failed = [result for result in results if result.outcome == "fail"]
    assert len(failed) == 1, name
    return failed[0]


def test_wrong_operations_are_found_and_come_back_as_a_few_operators(tmp_path: Path) -> None:
    sizes = {}
    for name in OPERATORS:
        result = found_with(name)
        assert result.kind == "differs"
        assert result.smaller is not None
        assert name in result.smaller.case.operations
        sizes[name] = len(result.smaller.case.graph.ops)
    assert statistics.median(sizes.values()) == 1
    assert max(sizes.values()) <= MOST


def test_a_failure_is_kept_as_a_case_that_fails_again(tmp_path: Path) -> None:
    result = found_with("Conv2d")
    assert result.smaller is not None
    kept = [keep(result, result.smaller, tmp_path / "keep", ["--port", "./my port"]) for _ in range(2)]
    assert [each.folder.name for each in kept] == ["random-1", "random-2"]
    text = (kept[0].folder / TEXT).read_text("utf-8")
    finding = result.smaller.fault.finding
    assert finding is not None
    for part in (repr(finding.got), repr(finding.want), "Conv2d", kept[0].port, kept[0].reference, "must be equal"):
        assert part in text
    assert kept[0].port == f"purine-ref check --port './my port' --case {kept[0].folder}"
    case = read_case(kept[0].folder)
    wrong = MiniPort(wrong={"Conv2d": set_first(OPERATORS["Conv2d"])})
    outcomes = []
    for port in (wrong, MiniPort(), MiniPort(operations=frozenset({"ReLU"})), MiniPort("unsupported")):
        outcomes.append(replay_case(trial(port), "again", case, kept[0].folder).outcome)
    assert outcomes == ["fail", "pass", "unsupported", "unsupported"]


# Golden cases, counts and verdicts ------------------------------------------------------------------------------------


def some_cases() -> list[Case]:
    """A case of Identity, and one of Sum, which several operations make."""
    cases = []
    for name, operation in (("a/Identity/0", Identity()), ("b/Sum/0", Sum())):
        graph = Graph("one")
        graph.connect([graph.blob("x", (3, 2))], operation, [graph.blob("y", (3, 2))])
        cases.append(make_case(graph, name=name, about="", feeds=[{"x": np.ones((3, 2), "float32")}]))
    return cases


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (("golden",), ["a/Identity/0", "b/Sum/0"]),
        (("b/*",), ["b/Sum/0"]),
        (("*/0", "golden"), ["a/Identity/0", "b/Sum/0"]),
        (("c/*",), []),
    ],
)
def test_only_what_is_named_is_run(only: tuple[str, ...], names: list[str]) -> None:
    results = check(MiniPort(), some_cases(), only=only)
    assert [result.name for result in results] == names
    assert verdict(results, 1) == ("pass" if names else "unknown")


def test_what_a_port_has_not_is_unsupported(tmp_path: Path) -> None:
    port = MiniPort(operations=frozenset({"Identity"}))
    results = check(port, some_cases(), only=("golden",))
    assert counts(results) == {"pass": 1, "fail": 0, "unsupported": 1, "skipped": 0}
    assert results[1].reason == "operations Sum"
    assert [verdict(results, floor) for floor in (0, 1, 2)] == ["pass", "pass", "unknown"]


def test_a_port_that_does_nothing_does_not_pass(tmp_path: Path) -> None:
    for port in (MiniPort("unsupported"), MiniPort(operations=frozenset())):
        results = check(port, some_cases(), examples=5)
        assert sum(result.executed for result in results) == 0
        assert verdict(results, 0) == "unknown"


def test_no_case_is_begun_when_time_is_over(tmp_path: Path) -> None:
    results = check(MiniPort(), some_cases(), seconds=1e-9)
    assert {result.outcome for result in results} == {"skipped"}
    assert verdict(results, 1) == "unknown"


def test_a_check_ends_when_three_cases_have_hung(tmp_path: Path) -> None:
    results = check(MiniPort("deadlock"), examples=200, only=("random",), shrinking=0)
    assert counts(results)["fail"] == 3
    assert "have hung" in results[-1].reason


def test_the_junit_file_has_a_suite_for_each_check(tmp_path: Path) -> None:
    results = [
        Result("golden", "a/<b>&\x00", "pass", seconds=0.5),
        Result("golden", "c", "fail", "differs", 'got "1", \x1b want 2'),
        Result("random", "0/1", "unsupported", reason="views"),
    ]
    text = junit(results, "port")
    assert text.count("<testsuite ") == 2
    assert 'name="a/&lt;b&gt;&amp;?"' in text
    assert '<failure type="differs" message="got &quot;1&quot;, ? want 2"' in text
    assert '<skipped message="unsupported: views"' in text
