"""The oracle: schemes by name, the comparison of all tensors, and the certificate of exactness (rules R8, R10)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from purine_ref import layers, models, optim
from purine_ref.conformance import (
    Comparison,
    Scheme,
    Workload,
    certify,
    differing_elements,
    parse_scheme,
    register,
    scheme_forms,
    schemes,
    verify,
)
from purine_ref.conformance.exact import exact_feeds, exponent_of
from purine_ref.conformance.session import Session
from purine_ref.conformance.verify import comparable
from purine_ref.devices import CpuDevice
from purine_ref.devices.cpu import CpuKernels
from purine_ref.errors import GraphError, OperatorError, ShapeError
from purine_ref.executors import Executor, Serial, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.operation import RunKey
from purine_ref.ops import Linear, Mean, Scale, Sum
from purine_ref.schedule import Schedule

# Two arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "want", "count"),
    [
        (np.array([0.0, 1.0, -0.0]), np.array([-0.0, 1.0, -0.0]), 1),
        (np.array([np.nan, 2.0], "float32"), np.array([np.nan, 2.0], "float32"), 0),
        (np.array([np.nan]), -np.array([np.nan]), 1),
        (np.array([1.0]), np.nextafter(np.array([1.0]), 2), 1),
        (np.array([3, 4, 5]), np.array([3, 5, 4]), 2),
        (np.float64(3.5), np.array(3.5), 0),
        (np.array(3.5), np.array(4.5), 1),
        (np.zeros((2, 3)), np.zeros((3, 2)), 6),
        (np.zeros(2), np.zeros(5), 5),
        (np.zeros((0, 3)), np.zeros((0, 4)), 1),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0),
        (np.zeros(4, "float32"), np.zeros(4, "float64"), 4),
        (np.zeros(4, "int64"), np.zeros(4, "float64"), 4),
    ],
)
def test_elements_that_differ_in_a_bit_are_counted(got: Any, want: Any, count: int) -> None:
    assert differing_elements(got, want) == count
    assert differing_elements(want, got) == count


@given(st.integers(0, 2**32), st.sampled_from(["float32", "float64", "int64"]))
def test_as_many_elements_differ_as_were_changed(seed: int, dtype: str) -> None:
    """By one in the last place each, in strided arrays."""
    rng = np.random.default_rng(seed)
    want = rng.integers(-9, 9, (4, 10, 3)).astype(dtype)[:, ::2]
    got = want.copy()
    changed = rng.random(got.shape) < rng.random()
    bits = got.view("uint32" if dtype == "float32" else "uint64")
    bits[changed] ^= 1
    assert differing_elements(got, want) == changed.sum()


# Schemes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the registered schemes, that the test may add to."""
    monkeypatch.setattr(schemes, "_registered", dict(schemes._registered))


def small_graph() -> Graph:
    """Training of a small network of float64: two linear layers and a squared error, made in another order than run."""
    graph = Graph("small")
    late = graph.blob("late", (4, 2), "float64")
    x = graph.blob("x", (4, 3), "float64")
    h = layers.linear(x, 5, activation="relu", name="early")
    weight = layers.linear(h, 2, name="middle").graph["middle/bias_added"]
    graph.connect([weight], Scale(2.0), [late])
    loss = layers.squared_error(late, graph.blob("target", (4, 2), "float64"))
    optim.sgd(backward(loss))
    return graph


def small_workload(steps: int = 3) -> Workload:
    def feeds(step: int) -> dict[str, Any]:
        rng = np.random.default_rng(step)
        drawn = {"x": rng.standard_normal((4, 3)), "target": rng.standard_normal((4, 2))}
        return {**drawn, "rate": np.array(0.1)}

    return Workload("small", "float64", small_graph(), feeds, steps)


def test_schemes_are_written_as_a_name_and_a_number() -> None:
    assert scheme_forms()[:2] == ("serial", "threads:N")
    with parse_scheme("serial").open(small_graph(), 3) as serial:
        assert isinstance(serial, Session)
        assert isinstance(serial.executor, Serial)
        assert serial.executor.seed == 3
    with parse_scheme("threads:3").open(small_graph(), 4) as threaded:
        assert isinstance(threaded, Session)
        assert isinstance(threaded.executor, Threaded)
        assert threaded.executor.seed == 4
        assert len(threaded.executor._workers) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread:2", "no scheme 'thread:2'; there are {forms}"),
        ("", "no scheme ''; there are {forms}"),
        ("serial:1", "scheme 'serial:1' must be like 'serial': it takes no argument, got '1'"),
        *(
            (f"threads:{n}", f"scheme 'threads:{n}' must be like 'threads:N': {whole}, got {n!r}")
            for n in ("", "0", "1025", "-1", "2x", "1.5", "²", "٣", " 2")
            for whole in ("N must be an integer from 1 to 1024",)
        ),
    ],
)  # fmt: skip
def test_what_is_no_scheme_is_refused_with_what_is(text: str, message: str) -> None:
    expected = message.format(forms=", ".join(scheme_forms()))
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        parse_scheme(text)


@pytest.mark.usefixtures("registry")
def test_a_new_scheme_is_one_registration() -> None:
    @register("order:WORD")
    def _order(argument: str) -> Callable[[Graph, int], Executor]:
        if argument != "last":
            raise ValueError(f"WORD must be last, got {argument!r}")
        return lambda graph, seed: Serial(graph, seed=seed, order=last_ready_first(graph))

    assert scheme_forms()[-1] == "order:WORD"
    (result,) = verify(small_workload(), [parse_scheme("order:last")], seed=1)
    assert (result.scheme, result.verdict) == ("order:last", "pass")
    with pytest.raises(ValueError, match=r"^scheme 'order:up' must be like 'order:WORD': WORD must be last, got 'up'$"):
        parse_scheme("order:up")


def last_ready_first(graph: Graph) -> list[str]:
    """An order of all operators in which the one that became ready last runs first."""
    with Serial(graph) as executor:
        plan = executor.plan
    schedule = Schedule(plan)
    ready, order = list(schedule.ready()), []
    while ready:
        op = ready.pop()
        order.append(graph.ops[op].name)
        ready += schedule.done(op)
    return order


@pytest.mark.usefixtures("registry")
def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"^scheme 'threads' is registered already, as 'threads:N'$"):
        register("threads:M")(lambda argument: lambda graph, seed: Serial(graph))
    assert scheme_forms().count("threads:N") == 1


# Verify --------------------------------------------------------------------------------------------------------------


def test_equal_schemes_pass_and_are_counted() -> None:
    workload = small_workload(steps=4)
    seen: list[tuple[str, int]] = []
    results = verify(
        workload, [parse_scheme("threads:2"), parse_scheme("serial")], 7, lambda r: seen.append((r.scheme, r.steps))
    )
    with Serial(workload.graph) as serial:
        names = list(comparable(serial))
    for result in results:
        assert (result.model, result.dtype, result.steps) == ("small", "float64", 4)
        assert result.operators == 4 * len(workload.graph.ops)
        assert result.compared == 4 * len(names)
        assert (result.differing, result.first, result.verdict) == (0, None, "pass")
        assert result.max_error_over_bound == 0.0
        assert result.seconds > 0
    assert seen == [(scheme, step) for step in range(1, 5) for scheme in ("threads:2", "serial")]


def test_everything_that_holds_its_value_is_compared() -> None:
    """Parameters for the next step, histories, gradients, activations; not what the swap left behind (R6)."""
    graph = small_graph()
    with Serial(graph) as serial:
        names = list(comparable(serial))
    assert len(names) == len(set(names))
    assert set(graph._blob_names) - set(names) == {following.name for _, following in graph.pairs}
    assert names.index("early/relu") < names.index("middle/linear") < names.index("late") < names.index("loss")
    assert names.index("late/grad") < names.index("early/weight/grad") < names.index("early/weight")
    assert names.index("x") < names.index("early/linear")


def test_what_was_overwritten_in_place_is_not_compared() -> None:
    graph = Graph("in-place")
    h = layers.linear(graph.blob("x", (4, 3)), 5, name="fc")
    layers.activation(h, "relu", in_place=True, name="act")
    with Serial(graph) as serial:
        names = set(comparable(serial))
    assert "act/relu" in names
    assert "fc/bias_added" not in names


def nudged(method: str) -> Callable[[Graph, int], Executor]:
    """A scheme's `open`, on a device whose loop or function `method` is off by one in the last place."""

    class Functions:
        def __getattr__(self, name: str) -> Any:
            function = getattr(np, name)
            if name != method:
                return function

            def wrong(*arrays: Any, out: Any = None, **keywords: Any) -> Any:
                return np.nextafter(function(*arrays, **keywords), np.inf, out=out)

            return wrong

    class Kernels(CpuKernels):
        xp = Functions()

    class Device(CpuDevice):
        def kernels(self, key: RunKey) -> CpuKernels:
            return Kernels(key)

    return lambda graph, seed: Serial(graph, seed=seed, devices=lambda _: Device())


def test_a_wrong_executor_is_found_and_its_first_difference_named() -> None:
    """The product of the first layer differs, and all after it. `late` was made before it, but is computed after it."""
    workload = small_workload()
    wrong = Scheme("wrong", nudged("matmul"))
    result, right = verify(workload, [wrong, parse_scheme("threads:2")], 7)
    assert result.verdict == "fail"
    assert (result.first or "").startswith("early/linear at step 1: 20 of 20 elements differ, at [")
    assert result.differing > 20
    assert result.max_error_over_bound is None
    assert (result.operators, result.compared) == (right.operators, right.compared)
    assert right.verdict == "pass"


def test_a_difference_in_one_element_of_a_later_step_is_found() -> None:
    class Slips(Serial):
        """The second time, one update is applied to the gradient of the step before."""

        def feed(self, arrays: Any = None, /, **more: Any) -> None:
            if self.iteration == 1:
                arrays = {**arrays, "x": np.where(np.arange(12).reshape(4, 3) == 5, 0.5, arrays["x"])}
            super().feed(arrays, **more)

    (result,) = verify(small_workload(), [Scheme("slips", lambda graph, seed: Slips(graph, seed=seed))], 7)
    assert (result.first or "").startswith("x at step 2: 1 of 12 elements differ, at [1, 2] ")


def test_another_seed_is_found_in_what_the_initial_weights_make() -> None:
    (result,) = verify(small_workload(1), [Scheme("seed", lambda graph, seed: Serial(graph, seed=seed + 1))], 7)
    assert (result.first or "").startswith("early/linear at step 1: 20 of 20 elements differ, at [")


def test_nothing_compared_is_unknown() -> None:
    (nothing,) = verify(small_workload(steps=0), [parse_scheme("serial")], 1)
    assert (nothing.verdict, nothing.max_error_over_bound) == ("unknown", None)
    empty = Workload("empty", "float64", Graph("empty"), lambda _: {}, 2)
    (nothing,) = verify(empty, [parse_scheme("threads:2")], 1)
    assert (nothing.compared, nothing.verdict) == (0, "unknown")
    assert verify(small_workload(), [], 1) == []


@pytest.mark.parametrize(
    ("counts", "verdict", "ratio"),
    [
        ({}, "unknown", None),
        ({"compared": 5}, "unknown", 0.0),
        ({"operators": 5}, "unknown", None),
        ({"operators": 5, "compared": 5}, "pass", 0.0),
        ({"operators": 5, "compared": 5, "differing": 1}, "fail", None),
    ],
)
def test_the_verdict_of_a_comparison(counts: dict[str, int], verdict: str, ratio: float | None) -> None:
    result = Comparison("serial", "small", "float64", **counts)
    assert (result.verdict, result.max_error_over_bound) == (verdict, ratio)


def test_executors_are_closed_when_a_scheme_cannot_open() -> None:
    opened: list[Executor] = []

    def open_one(graph: Graph, seed: int) -> Executor:
        opened.append(Threaded(graph, threads=2, seed=seed))
        return opened[-1]

    def refuse(graph: Graph, seed: int) -> Executor:
        raise GraphError("no such place")

    with pytest.raises(GraphError, match=r"^no such place$"):
        verify(small_workload(), [Scheme("one", open_one), Scheme("none", refuse)], 1)
    with pytest.raises(RuntimeError, match=r"^executor of graph 'small' is closed and cannot run: make a new one$"):
        opened[0].run()


def test_an_operator_that_fails_ends_the_comparison() -> None:
    graph = models.training_graph("mlp-digits", 4, "float64")
    feeds = {"x": np.zeros((4, 1, 8, 8)), "label": np.full(4, 10), "rate": np.array(0.1)}
    with pytest.raises(OperatorError, match=r"(?s)^SoftmaxCrossEntropy: .*$"):
        verify(Workload("mlp", "float64", graph, lambda _: feeds, 1), [parse_scheme("serial")], 1)


# Exact mode ----------------------------------------------------------------------------------------------------------


def exact_net(dtype: str, channels: int, size: tuple[int, int], hidden: int, batch: int = 4) -> Graph:
    """Convolution, ReLU, max pool, average pool, two linear layers and a squared error, with gradients and updates."""
    graph = Graph("exact")
    x = graph.blob("x", (batch, channels, *size), dtype)
    h = layers.conv(x, channels + 2, kernel=3, pad=1, activation="relu", name="conv")
    h = layers.max_pool(h, kernel=3, stride=2, name="max")
    h = layers.average_pool(h, kernel=2, stride=1, name="average")
    h = layers.linear(h, hidden, activation="relu", name="fc1")
    h = layers.linear(h, 3, name="fc2")
    loss = layers.squared_error(h, graph.blob("target", (batch, 3), dtype))
    gradients = backward(loss, [x, *graph.parameters])
    optim.sgd({blob: gradients[blob] for blob in graph.parameters}, momentum=0.5, decay=0.25)
    return graph


def ran(graph: Graph, feeds: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor after one run."""
    with Serial(graph) as executor:
        executor.feed(feeds)
        executor.run()
        for name in comparable(executor):
            yield name, executor.fetch(name)


sizes = st.tuples(st.integers(2, 4), st.tuples(st.integers(5, 9), st.integers(6, 10)), st.integers(5, 20))


@given(sizes, st.integers(0, 2**32))
def test_r10_a_certified_run_has_the_same_values_in_both_dtypes(
    size: tuple[int, tuple[int, int], int], seed: int
) -> None:
    """Where float32 rounds nothing, its values are those of float64; x with its gradient and all updates included."""
    single, double = exact_net("float32", *size), exact_net("float64", *size)
    feeds = exact_feeds(single, seed=seed, largest=2, links=2)
    certificate = certify(single, feeds)
    assume(certificate.exact)
    assert max(certificate.bits.values()) < 24
    want = dict(ran(double, {name: array.astype("float64") if array.dtype == "float32" else array
                             for name, array in feeds.items()}))  # fmt: skip
    for name, got in ran(single, feeds):
        np.testing.assert_array_equal(got, want[name], err_msg=name)


@given(sizes, st.integers(0, 2**32))
def test_r10_no_value_depends_on_the_order_of_additions(size: tuple[int, tuple[int, int], int], seed: int) -> None:
    """Images and input channels in another order: sums over them are added in another order, and are the same."""
    rng = np.random.default_rng(seed)
    graph = exact_net("float32", *size)
    feeds = exact_feeds(graph, seed=seed, largest=2, links=2)
    assume(certify(graph, feeds).exact)
    images, channels = rng.permutation(4), rng.permutation(size[0])
    shuffled = {
        **feeds,
        "x": feeds["x"][images][:, channels],
        "conv/weight": feeds["conv/weight"][:, channels],
        "target": feeds["target"][images],
    }
    want, got = dict(ran(graph, feeds)), dict(ran(graph, shuffled))
    np.testing.assert_array_equal(got["conv/conv"], want["conv/conv"][images])
    np.testing.assert_array_equal(got["fc2/bias_added"], want["fc2/bias_added"][images])
    np.testing.assert_array_equal(got["conv/weight"], want["conv/weight"][:, channels])
    np.testing.assert_array_equal(got["x/grad"], want["x/grad"][images][:, channels])
    for name in ("loss", "conv/bias/grad", "fc1/weight/grad", "fc1/bias/grad", "fc2/weight/grad", "fc2/weight"):
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@given(st.integers(0, 2**32))
def test_r10_the_limit_covers_every_partial_sum(seed: int) -> None:
    """Sums of drawn products in random orders, by hand: certified if and only if no partial sum leaves the bits."""
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-(2**11), 2**11, (1, 7)).astype("float32") for _ in range(2))
    graph, feeds = product(x, w)
    certificate = certify(graph, feeds)
    quanta = np.abs(x.astype("float64") * w).sum() / 2.0 ** (exponent_of(x) + exponent_of(w))
    assert certificate.bits["y"] == pytest.approx(np.log2(quanta), abs=1e-9)
    assert certificate.exact == (quanta < 2**24)
    if certificate.exact:
        for _ in range(5):
            total = np.float32(0)
            for i in rng.permutation(7):
                total += x[0, i] * w[0, i]
            assert total == (x.astype("float64") * w).sum()


def product(x: np.ndarray, w: np.ndarray) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph of x w' and what to feed it."""
    graph = Graph("product")
    blobs = [graph.blob(name, a.shape, a.dtype.name) for name, a in (("x", x), ("w", w))]
    graph.apply(Linear(), blobs, "y")
    return graph, {"x": x, "w": w}


@pytest.mark.parametrize(
    ("x", "w", "single", "double"),
    [
        ([2.0**20, 3.0], [8.0, 1.0], True, True),
        ([2.0**12, 1.0], [2.0**12, 1.0], False, True),
        ([2.0**24, 1.0], [1.0, -1.0], False, True),
        ([2.0**12 + 1, 0.0], [2.0**12 + 1, 0.0], False, True),
        ([1.0, 2.0**-30], [1.0, 1.0], False, True),
        ([2.0**60, 2.0**59], [2.0**60, 2.0**59], True, True),
        ([2.0**100, 0.0], [2.0**100, 0.0], False, True),
        ([2.0**-100, 0.0], [2.0**-100, 0.0], False, True),
        ([2.0**27, 1.0], [2.0**26, 1.0], False, False),
        ([2.0**-120, 0.0], [2.0**-120, 0.0], False, True),
        ([0.0, 0.0], [1.0, 1.0], True, True),
    ],
)
def test_r10_magnitudes_beyond_a_dtype_are_refused_in_it(
    x: list[float], w: list[float], single: bool, double: bool
) -> None:
    """2^24 for float32, 2^53 for float64; and what overflows or vanishes, though it needs few bits."""
    for dtype, exact in (("float32", single), ("float64", double)):
        certificate = certify(*product(np.array([x], dtype), np.array([w], dtype)))
        assert certificate.exact == exact, (dtype, certificate)
        for problem in certificate.problems:
            complaint = rf"(needs \d+\.\d bits, {dtype} is exact below \d+|leaves the range of {dtype})"
            assert re.fullmatch(f"blob '[xwy]' {complaint}", problem)


def test_r10_cancellation_does_not_hide_what_was_added() -> None:
    """2^24 + 1 - 2^24 is 1, or 0 in another order: the result is small, the partial sums are not."""
    terms = np.array([[2.0**24, 1.0, -(2.0**24)]], "float32")
    assert (terms[0, 0] + terms[0, 1]) + terms[0, 2] != (terms[0, 0] + terms[0, 2]) + terms[0, 1]
    assert not certify(*product(terms, np.ones((1, 3), "float32"))).exact


def test_r10_several_producers_add_their_limits() -> None:
    """R4: 2^23 and -2^23 into one blob, by two edges, count as 2^24."""
    graph = Graph("fan-in")
    x, y = graph.blob("x", (3,)), graph.blob("y", (3,))
    for factor in (1.0, -1.0):
        graph.connect([x], Scale(factor), [y])
    for largest, exact in ((2.0**23 - 1, True), (2.0**23, False)):
        certificate = certify(graph, {"x": np.array([largest, 1, 3], "float32")})
        assert certificate.exact == exact
        assert certificate.bits["y"] == pytest.approx(24, abs=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.softmax(x, name="y"), r"operator 'y': Softmax\(axis=1\) is not exact"),
        (lambda x: layers.activation(x, "tanh", name="y"), r"operator 'y/tanh': Tanh\(\) is not exact"),
        (lambda x: layers.lrn(x, n=3, name="y"), r"operator 'y': LRN\(.*\) is not exact"),
        (lambda x: x.graph.apply(Scale(0.3), [x], "y")[0], r"operator 'y': Scale\(factor=0.3\) is not exact"),
        (lambda x: layers.squared_error(x, x), r"operator 'loss': SquaredError is exact only where its .* 3\.0; .*"),
        (lambda x: layers.average_pool(x, kernel=3, name="y"), r"operator 'y': .*"),
    ],
)
def test_r10_operations_that_round_are_refused_by_name(build: Callable[[Any], Any], message: str) -> None:
    x = Graph("rounds").blob("x", (3, 2, 5, 6), "float64")
    build(x)
    certificate = certify(x.graph, exact_feeds(x.graph))
    assert not certificate.exact
    assert re.fullmatch(message, certificate.problems[0])
    assert certificate.problems[1:] == ()


def test_r10_a_network_with_a_softmax_loss_is_refused_and_one_with_a_squared_error_is_not() -> None:
    graph = models.training_graph("lenet-digits", 4, "float32", momentum=0.5, decay=0.0)
    (problem,) = certify(graph, exact_feeds(graph)).problems
    assert re.fullmatch(r"operator 'loss': SoftmaxCrossEntropy\(.*\) is not exact", problem)
    graph = exact_net("float32", 3, (8, 7), 10)
    assert certify(graph, exact_feeds(graph)).exact
    optim_rounds = Graph("rounds")
    w = optim_rounds.blob("w", (3,), persistent=True)
    optim.sgd({w: optim_rounds.blob("g", (3,))}, momentum=0.9)
    (problem,) = certify(optim_rounds, exact_feeds(optim_rounds)).problems
    assert re.fullmatch(r"operator 'w/update': SGD\(momentum=0.9, .*\) is not exact", problem)


def test_a_certificate_needs_every_source_as_it_is() -> None:
    x = np.array([[1.0, 2.0]])
    graph, feeds = product(x, x)
    for change, kind, message in (
        ({"x": x}, GraphError, r"a certificate needs the values of every source blob; 'w' float64\[1, 2\] is missing"),
        ({**feeds, "w": x.astype("float32")}, ShapeError, r"blob 'w' takes float64\[1, 2\], got float32\[1, 2\]"),
        ({**feeds, "w": x.T}, ShapeError, r"blob 'w' takes float64\[1, 2\], got float64\[2, 1\]"),
        ({**feeds, "w": x * np.inf}, GraphError, r"a certificate needs finite values; 'w' has others"),
        ({**feeds, "w": x * np.nan}, GraphError, r"a certificate needs finite values; 'w' has others"),
    ):
        with pytest.raises(kind, match=f"^{message}$"):
            certify(graph, change)


@given(st.integers(-1000, 900), st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=5))
def test_the_exponent_of_an_array_is_the_power_of_two_that_divides_it(power: int, integers: list[int]) -> None:
    """Against the lowest bit set of the integers themselves."""
    low = min((n & -n for n in integers if n), default=0)
    want = low.bit_length() - 1 + power if low else 0
    assert exponent_of(np.array([float(n) for n in integers]) * 2.0**power) == want


def test_feeds_for_exact_mode_are_small_and_fit() -> None:
    graph = exact_net("float32", 3, (8, 7), 10)
    feeds = exact_feeds(graph, seed=3, largest=2, links=2)
    sources = [blob for blob in graph.blobs if not blob.producers]
    assert list(feeds) == [blob.name for blob in sources]
    for blob in sources:
        assert (feeds[blob.name].shape, feeds[blob.name].dtype.name) == (blob.shape, blob.dtype)
    assert set(np.unique(feeds["x"])) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert set(np.unique(feeds["fc1/weight"])) == {-1.0, 0.0, 1.0}
    assert not feeds["fc1/weight/history"].any()
    assert feeds["rate"] == 0.125
    again, other = exact_feeds(graph, seed=3, largest=2, links=2), exact_feeds(graph, seed=4)
    assert all(feeds[name].tobytes() == again[name].tobytes() for name in feeds)
    assert feeds["x"].tobytes() != other["x"].tobytes()


def test_a_sum_of_integers_is_exact_with_integer_blobs_beside_it() -> None:
    """Labels and indices have no limit of their own."""
    graph = Graph("sum")
    x, y = graph.blob("x", (3,)), graph.blob("y", (3,))
    graph.blob("label", (5,), "int64")
    graph.apply(Sum(), [x, y, x], "total")
    feeds = {"x": np.full(3, 2, "float32"), "y": np.full(3, -4, "float32"), "label": np.full(5, 2**40)}
    certificate = certify(graph, feeds)
    assert certificate.exact
    assert set(certificate.bits) == {"x", "y", "total"}
    assert certificate.bits["total"] == 2.0


def test_the_first_difference_names_both_values_the_bound_and_the_operators_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum of partial gradients that is a mean instead: the first wrong tensor is where it was added up."""
    monkeypatch.setattr("purine_ref.parallel.reduce.Sum", Mean)
    (result,) = verify(small_workload(1), [parse_scheme("data:2@ranks")], 1)
    assert result.verdict == "fail"
    number = r"-?[\d.e+-]+"
    assert re.match(
        rf"^'loss'\[\] at cpu: got {number}, want {number}; they may differ by {number}, at step 1; "
        r"made by loss\[[^]]+\], .*loss@r1~>r0, loss~/mean$",
        result.first or "",
    ), result.first
