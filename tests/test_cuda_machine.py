"""GPUs as a machine: streams, events, copies, recordings and failures, over a stand-in for CuPy (`fake_cupy.py`).

Graphs give the bits of the CUDA kernels run on the CPU, one after the other; and the race detector, which sees every
command that went into a stream, finds nothing. What the stand-in refuses, CuPy or CUDA would, or would be slow at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from cuda_shim import require_compiler
from fake_cupy import CUDARuntimeError, FakeArray, fake_cupy, raw
from operation_cases import ALL
from purine_ref import layers, optim
from purine_ref.conformance.session import Session
from purine_ref.devices import CpuDevice, cuda, device_for
from purine_ref.devices.cuda import CudaMachine, cuda_machine, gpu_facts
from purine_ref.devices.cuda.copies import lie_alike
from purine_ref.devices.cuda.streams import CudaStream
from purine_ref.devices.cuda.tape import TapeStream
from purine_ref.devices.kernels import KERNEL_SETS
from purine_ref.devices.kernels.rows import channels_last
from purine_ref.devices.streams import Host
from purine_ref.devices.work import Work
from purine_ref.errors import GraphError, OperatorError
from purine_ref.executors import Captured, Executor, Memory, Serial, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import Copy, Scale, Slice, Sum
from purine_ref.parallel import Data, Pipeline, Refiner, compose
from purine_ref.tensor import Location, Tensor
from suites.operation_calls import same_bits
from suites.operation_case import RUN, Case
from support import describe
from test_cuda_device import HostKernels

HOST, ONE, TWO = Location(), Location(0, 0), Location(0, 1)

Make = Callable[..., Executor]
Feeds = Mapping[str, Any]


@pytest.fixture(autouse=True)
def _shim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA kernels as a set of the CPU."""
    require_compiler()
    monkeypatch.setitem(KERNEL_SETS, HostKernels.name, HostKernels)


class WatchedHost(Host):
    """The CPU, which tells the stand-in what it touches."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def launch(self, work: Work) -> None:
        """Tell, and compute."""
        self._state.touched_by_host(work.name, work.reads, work.writes)
        super().launch(work)


class WatchedMachine(CudaMachine):
    """A machine whose CPU is watched too."""

    def _host(self) -> WatchedHost:
        return WatchedHost(self.cupy.state)


@contextmanager
def machine(gpus: int = 1, *, peers: bool = True, guards: bool = False, **more: Any) -> Iterator[WatchedMachine]:
    """A machine of a stand-in's GPUs, on which nothing raced."""
    with closing(WatchedMachine(fake_cupy(gpus, peers=peers, guards=guards), **more)) as made:
        yield made
        assert [str(race) for race in made.cupy.state.races] == []


# Graphs --------------------------------------------------------------------------------------------------------------


def small(dtype: str = "float32", batch: int = 8) -> Graph:
    """A network that is trained: convolution, pools, dropout, linear layers, a loss, gradients, updates."""
    graph = Graph("small")
    x, label = graph.blob("x", (batch, 3, 7, 6), dtype), graph.blob("label", (batch,), "int64")
    h = layers.conv(x, 5, kernel=3, pad=1, activation="relu", name="conv1")
    h = layers.max_pool(h, kernel=3, stride=2, name="pool1")
    h = layers.dropout(h, ratio=0.5, name="drop1")
    loss = layers.softmax_loss(layers.linear(h, 4, name="fc1"), label)
    optim.sgd(backward(loss), decay=0.001)
    return graph


def fed(graph: Graph, seed: int = 1) -> dict[str, Any]:
    """What a network is fed."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal(graph["x"].shape).astype(graph["x"].dtype),
        "label": rng.integers(0, 4, graph["label"].shape),
        optim.RATE: np.array(0.05 * seed, graph[optim.RATE].dtype),
    }


def trained(
    graph: Graph, refiner: Refiner, places: list[Location], devices: Any, make: Make = Serial, **more: Any
) -> dict[str, bytes]:
    """The bits of all blobs after four runs, with another rate and other images for the last two."""
    composed = compose(graph, [refiner], places)
    with Session(make(composed, seed=3, devices=devices, **more), graph) as session:
        for seed in (1, 2):
            session.feed(fed(graph, seed))
            session.run()
            session.run()
        executor = session.executor
        kept = [blob for blob in composed.blobs if blob not in executor.plan.lost]
        return {blob.name: executor.fetch(blob.name).tobytes() for blob in kept}


SCHEMES: dict[str, tuple[Refiner, int]] = {
    "serial": (Data(1), 1),
    "data:2": (Data(2), 2),
    "pipeline:2x2": (Pipeline(2, 2), 2),
}
EXECUTORS: dict[str, Make] = {"serial": Serial, "threads": partial(Threaded, threads=2), "captured": Captured}
BOXES = {"one GPU": (1, True), "two peers": (2, True), "two strangers": (2, False)}


def on_cpu(_: Location) -> CpuDevice:
    """The CUDA kernels, one after the other."""
    return CpuDevice(HostKernels.name)


FEW = {
    ("serial", "one GPU", "threads"),
    ("serial", "one GPU", "captured"),
    ("data:2", "one GPU", "serial"),
    ("data:2", "two peers", "threads"),
    ("data:2", "two strangers", "captured"),
    ("pipeline:2x2", "one GPU", "captured"),
    ("pipeline:2x2", "two peers", "serial"),
    ("pipeline:2x2", "two strangers", "threads"),
}
WAYS = [
    pytest.param(*way, marks=() if way in FEW else pytest.mark.long) for way in product(SCHEMES, BOXES, EXECUTORS)
]


@pytest.mark.parametrize(("scheme", "box", "executor"), WAYS)
def test_graphs_have_the_bits_of_the_cpu_and_nothing_races(scheme: str, box: str, executor: str) -> None:
    (refiner, width), (gpus, peers) = SCHEMES[scheme], BOXES[box]
    places = [Location(0, device) for device in range(width)]
    want = trained(small(), refiner, places, on_cpu)
    with machine(gpus, peers=peers) as made:
        assert trained(small(), refiner, places, made.device, EXECUTORS[executor]) == want


@pytest.mark.parametrize("executor", list(EXECUTORS))
def test_blobs_may_share_memory_one_after_the_other(executor: str) -> None:
    want = trained(small(), Data(2), [ONE, TWO], on_cpu)
    with machine(2) as made:
        got = trained(small(), Data(2), [ONE, TWO], made.device, EXECUTORS[executor], reuse=True)
        assert len(got) < len(want)
        assert got == {name: want[name] for name in got}


def at(graph: Graph, source: Any, place: Location) -> Any:
    """A blob at another place, by the streams that copies run in."""
    if source.location == place:
        return source
    stream, where = ("inbound", place) if source.location.is_cpu else ("outbound", source.location)
    copy = graph.blob(f"{source.name}@{place}", source.shape, source.dtype, location=place)
    graph.connect([source], Copy(place), [copy], location=where, stream=stream)
    return copy


def round_trip() -> Graph:
    """CPU and two GPUs in turn, with parts that are copied out of and into the middle of others."""
    graph = Graph("trip")
    x = graph.blob("x", (4, 6, 3, 2), location=HOST)
    (y,) = graph.apply(Scale(2.0), [x], "y", location=HOST)
    left, right = (at(graph, y, place) for place in (ONE, TWO))
    parts = []
    for blob, place in ((left, TWO), (right, ONE), (left, HOST)):
        (part,) = graph.apply(Slice(1, 1, 5), [blob], f"part{place}", location=blob.location)
        parts.append(at(graph, part, place))
    sums = [graph.apply(Sum(), [part, part], f"sum{part.location}", location=part.location)[0] for part in parts]
    back = [at(graph, one, HOST) for one in sums]
    graph.apply(Sum(), back, "all", location=HOST)
    return graph


@pytest.mark.parametrize("box", list(BOXES))
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_trip_over_all_places(executor: str, box: str) -> None:
    graph, (gpus, peers) = round_trip(), BOXES[box]
    feeds = {"x": np.random.default_rng(2).standard_normal((4, 6, 3, 2)).astype("float32")}

    def ran(devices: Any) -> list[bytes]:
        with EXECUTORS[executor](graph, devices=devices) as run:
            run.feed(feeds)
            run.run()
            run.run()
            return [run.fetch(blob.name).tobytes() for blob in graph.blobs]

    with machine(gpus, peers=peers) as made:
        assert ran(made.device) == ran(lambda _: CpuDevice())


def test_persistent_blobs_are_read_and_put_by_name() -> None:
    graph, memory = compose(small(), [Data(1)], [ONE]), Memory()
    with machine() as made, Serial(graph, memory=memory, devices=made.device) as executor:
        blob = next(blob for blob in graph.blobs if blob.persistent)
        held = memory.get(blob.name)
        assert type(held) is np.ndarray
        assert held.any()
        np.testing.assert_array_equal(held, executor.fetch(blob.name))
        other = Memory()
        other.put(blob.name, blob.tensor, held + 1)
        with Serial(graph, memory=other, devices=made.device) as second:
            np.testing.assert_array_equal(second.fetch(blob.name), held + 1)


# Copies --------------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "in C order": lambda flat: flat[:360].reshape(3, 5, 4, 6),
    "channels-last": lambda flat: channels_last(flat[:360], (3, 5, 4, 6)),
    "some channels": lambda flat: flat.reshape(3, 10, 4, 6)[:, 2:7],
    "some columns": lambda flat: flat.reshape(3, 5, 4, 12)[..., 1:7],
}


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("ends", [(HOST, ONE), (ONE, HOST), (ONE, ONE), (ONE, TWO), (TWO, ONE)])
def test_copies_go_from_any_memory_and_order_to_any_other(ends: tuple[Location, Location], peers: bool) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5, 4, 6))
    for layouts in [(one, other) for one in LAYOUTS.values() for other in LAYOUTS.values()]:
        with machine(2, peers=peers) as made:
            flats = [made.device(end).allocate(Tensor((720,), "float64")) for end in ends]
            source, target = (layout(flat) for layout, flat in zip(layouts, flats, strict=True))
            made.device(ends[0]).write(source, values)
            with made.current(ONE, "outbound") as stream:
                stream.copy(source, target)
                stream.cupy.synchronize()
            np.testing.assert_array_equal(made.device(ends[1]).read(target), values)
            left = 720 - np.count_nonzero(made.device(ends[1]).read(flats[1]) == 0)
            assert left == 360  # and nothing between


def test_bytes_move_where_both_sides_lie_alike_and_a_kernel_reaches_over_where_not() -> None:
    with machine(2) as made:
        like, other = (made.device(place).allocate(Tensor((3, 5, 4, 6))) for place in (ONE, TWO))
        turned = made.device(TWO).allocate(Tensor((3, 5, 4, 6)), row_major=True)
        state = made.cupy.state
        for target, command in ((other, "memcpy"), (turned, "setitem")):
            with made.current(ONE) as stream:
                stream.copy(like, target)
            assert state.log[-1][1].startswith(command)


def test_memory_that_is_not_page_locked_is_waited_for() -> None:
    values = np.arange(60.0).reshape(3, 4, 5)
    with machine() as made:
        there = made.device(ONE).allocate(Tensor((3, 4, 5), "float64"))
        out = np.zeros((5, 4, 3)).T
        with made.current(ONE, "inbound") as stream:
            stream.copy(values, there)
            stream.copy(there, out)
        np.testing.assert_array_equal(out, values)
        assert made.cupy.state.counts["host waits"] >= 3
        with pytest.raises(GraphError, match=r"that is not page-locked cannot be recorded"), made.record() as recording:
            recording.submit(Work("copy", ONE, "inbound", lambda: made.here().copy(values, there), [], []))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), True),
        (np.zeros((2, 3)), np.zeros((3, 2)).T, False),
        (np.zeros((3, 2)).T, np.zeros((3, 2)).T, True),
        (np.zeros((2, 4))[:, :3], np.zeros((2, 4))[:, :3], False),
        (np.zeros((2, 1, 3)), np.zeros((2, 3, 1)).transpose(0, 2, 1), True),
        (np.zeros(()), np.zeros(()), True),
    ],
)
def test_what_lies_alike(one: Any, other: Any, alike: bool) -> None:
    assert lie_alike(one, other) is alike


# Waiting, and what a step takes --------------------------------------------------------------------------------------


def on_gpu(state: Any, array: np.ndarray) -> FakeArray:
    """A copy on the GPU, in the same order of memory."""
    there = state.like(array)
    raw(there)[...] = array
    return there  # type: ignore[no-any-return]


ROWS = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}", marks=() if dtype == case.dtypes[0] else pytest.mark.long)
    for case in ALL
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), ROWS)
def test_no_operation_waits_for_the_gpu_and_all_give_the_bits_of_the_cpu(case: Case, dtype: str) -> None:
    """Each operation and each gradient is a case; the stand-in refuses what would make the host wait."""
    arrays = case.draw(dtype)
    shapes = case.operation.infer([describe(array) for array in arrays])
    want = [np.full(shape.shape, 7, shape.dtype) for shape in shapes]
    case.operation.compute(HostKernels(RUN), arrays, want)
    with machine(guards=True) as made, made.current(ONE) as stream:
        state = made.cupy.state
        kernels = made.device(ONE).kernels(RUN)
        inputs = [on_gpu(state, array) for array in arrays]
        outputs = [on_gpu(state, np.full(shape.shape, 7, shape.dtype)) for shape in shapes]
        case.operation.compute(kernels, inputs, outputs)
        assert "host waits" not in state.counts
        stream.cupy.synchronize()
        same_bits([raw(output) for output in outputs], want)


def test_a_step_allocates_nothing_lasting_and_makes_no_event_anew() -> None:
    graph = compose(small(), [Data(2)], [ONE, TWO])
    with machine() as made, Session(Serial(graph, devices=made.device), small()) as session:
        session.feed(fed(small()))
        seen = []
        for _ in range(4):
            before = dict(made.cupy.state.counts)
            session.run()
            after = made.cupy.state.counts
            seen.append({name: after[name] - before.get(name, 0) for name in ("event", "record", "pinned", "allocate")})
        first, *_, last = seen
        assert last["event"] == 0 < first["event"]
        assert last["record"] == first["record"]
        assert last["pinned"] == 2 < first["pinned"]  # a word for the iteration, of each place that draws
        assert last["allocate"] < first["allocate"]


def test_kernels_need_a_current_stream() -> None:
    with machine() as made, pytest.raises(RuntimeError, match=r"^no stream of a CUDA machine is current: .*"):
        made.device(ONE).kernels(RUN).scratch("x", (1,), "float32")


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", list(EXECUTORS))
def test_r12_what_is_refused_comes_out_of_the_run_with_the_operators_name(executor: str) -> None:
    graph = small()
    wrong = fed(graph) | {"label": np.array([0, 1, 2, 9, 0, 1, -1, 3])}
    with machine() as made:
        run = EXECUTORS[executor](compose(graph, [Data(1)], [ONE]), seed=3, devices=made.device)
        with Session(run, graph) as session:
            for feeds, fails in ((fed(graph), False), (wrong, True), (fed(graph), False), (wrong, True)):
                session.feed(feeds)
                if not fails:
                    session.run()
                    continue
                with pytest.raises((OperatorError, ExceptionGroup)) as caught:
                    session.run()
                errors = getattr(caught.value, "exceptions", [caught.value])
                assert {type(error) for error in errors} == {OperatorError}
                assert "expected labels from 0 to 3, got 9 at index [3]" in str(errors[0])
                assert "(SoftmaxCrossEntropy) at device0" in errors[0].__notes__[0]


def broken(state: Any, command: str) -> Callable[[], None]:
    """From now on that command fails; returns what mends it."""

    def fail(name: str) -> None:
        if name == command:
            raise CUDARuntimeError(700, "an illegal memory access was encountered")

    state.fail = fail

    def mend() -> None:
        state.fail = lambda name: None

    return mend


def test_r12_an_error_of_a_launch_skips_what_follows_and_the_next_run_is_clean() -> None:
    graph = small()
    want = trained(graph, Data(1), [ONE], on_cpu)
    with machine() as made:
        mend = broken(made.cupy.state, "max_pool")
        with Session(Serial(compose(graph, [Data(1)], [ONE]), devices=made.device), graph) as session:
            session.feed(fed(graph))
            with pytest.raises(CUDARuntimeError, match="illegal memory access") as caught:
                session.run()
            assert "'pool1" in caught.value.__notes__[0]
            assert "relu_gradient" in made.cupy.state.counts  # before it
            assert "exp" not in made.cupy.state.counts  # behind it
            mend()
            session.run()
        assert trained(graph, Data(1), [ONE], made.device) == want


def test_r12_what_another_stream_failed_at_is_not_gone_on_with() -> None:
    graph = round_trip()
    with machine() as made, Serial(graph, devices=made.device) as executor:
        executor.feed({"x": np.ones((4, 6, 3, 2), "float32")})
        mend = broken(made.cupy.state, "add")
        with pytest.raises((CUDARuntimeError, ExceptionGroup), match=r"illegal|failed"):
            executor.run()
        mend()
        executor.run()
        assert (executor.fetch("all") == 12).all()


def test_an_error_that_only_a_synchronisation_finds_says_between_which_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine() as made:
        device = made.device(ONE)
        stream: Any = made.stream(ONE, "main")
        for name in ("first", "second", "last"):
            device.submit(Work(name, ONE, "main", lambda: None, [], []))
        errors = iter([CUDARuntimeError(700, "an illegal memory access was encountered")])

        def synchronize() -> None:
            for error in errors:
                raise error

        monkeypatch.setattr(stream.cupy, "synchronize", synchronize)
        [error] = device.synchronise()
        assert error.__notes__ == ["on device0/main, in work from 'first' to 'last'"]
        assert device.synchronise() == []


def test_blocking_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(blocking=True) as made:
        stream: Any = made.stream(ONE, "main")

        def synchronize() -> None:
            raise CUDARuntimeError(700, "an illegal memory access was encountered")

        with monkeypatch.context() as patch:
            patch.setattr(stream.cupy, "synchronize", synchronize)
            made.device(ONE).submit(Work("culprit", ONE, "main", lambda: None, [], []))
        [error] = made.device(ONE).synchronise()
        assert error.__notes__ == ["culprit"]


def test_an_interrupt_is_not_kept() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with machine() as made:
        with pytest.raises(KeyboardInterrupt):
            made.device(ONE).submit(Work("slow", ONE, "main", interrupt, [], []))
        assert made.device(ONE).synchronise() == []


# Faults that must be found -------------------------------------------------------------------------------------------


def no_wait(self: CudaStream, mark: Any) -> None:
    """A stream that waits for nothing."""


def early_mark(right: Any) -> Any:
    def launch(self: CudaStream, work: Work) -> None:
        self.early = right_mark(self)  # type: ignore[attr-defined]
        right(self, work)

    right_mark = CudaStream.mark
    return launch


def test_a_stream_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaStream, "wait", no_wait)
    with closing(WatchedMachine(fake_cupy(2))) as made:
        trained(small(), Data(2), [ONE, TWO], made.device)
        assert made.cupy.state.races


def test_a_mark_that_is_made_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaStream, "launch", early_mark(CudaStream.launch))
    monkeypatch.setattr(CudaStream, "mark", lambda self: self.early)
    with closing(WatchedMachine(fake_cupy(2))) as made:
        trained(small(), Data(2), [ONE, TWO], made.device)
        assert made.cupy.state.races


def test_a_host_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "wait", lambda self, mark: None)
    with closing(WatchedMachine(fake_cupy(2))) as made, Serial(round_trip(), devices=made.device) as executor:
        executor.feed({"x": np.ones((4, 6, 3, 2), "float32")})
        executor.run()
        assert made.cupy.state.races


def test_a_bridge_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(WatchedMachine(fake_cupy(2, peers=False))) as made:
        monkeypatch.setattr(made.bridge(1).cupy, "wait_event", lambda event: None)
        trained(small(), Data(2), [ONE, TWO], made.device)
        assert made.cupy.state.races


def test_memory_of_the_default_pool_is_refused_in_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TapeStream, "current", CudaStream.current)
    with (
        closing(WatchedMachine(fake_cupy())) as made,
        pytest.raises(AssertionError, match="memory of the default pool was taken in a capture"),
    ):
        trained(small(), Data(1), [ONE], made.device, Captured)


def test_what_is_on_another_gpu_than_the_current_one_is_refused() -> None:
    with closing(WatchedMachine(fake_cupy(2))) as made:
        there = made.device(TWO).allocate(Tensor((3,)))
        with made.current(ONE), pytest.raises(AssertionError, match="an array of GPU 1, not of the current one"):
            there + 1


@pytest.mark.parametrize("wait", [bool, float, int, lambda x: x.item(), lambda x: x[x > 0]])
def test_what_makes_the_host_wait_is_refused(wait: Callable[[Any], Any]) -> None:
    with machine() as made, made.current(ONE), pytest.raises(AssertionError, match="the host would have to wait"):
        wait(on_gpu(made.cupy.state, np.ones(())))


# What is made of a machine -------------------------------------------------------------------------------------------


def test_places_are_gpus_modulo_how_many_there_are_with_streams_of_their_own() -> None:
    with machine(2) as made:
        assert [made.device(Location(0, place)).index for place in range(4)] == [0, 1, 0, 1]  # type: ignore[union-attr]
        streams: list[Any] = [made.stream(Location(0, place), "main") for place in (0, 2, 0)]
        assert streams[0] is streams[2] is not streams[1]
        assert streams[0].gpu == streams[1].gpu == 0
        assert made.device(ONE) is made.device(Location(0, 0))
        assert made.device(HOST) is made.device(Location(0, -1))


@pytest.mark.parametrize(("asked", "kind"), [({}, 1), ({"tf32": True}, 7)])
def test_products_have_all_their_bits_unless_tf32_is_asked_for(
    asked: dict[str, bool], kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    module = fake_cupy(3)
    with cuda_machine(module, **asked) as made:
        assert module.state.counts["compute type"] == kind
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert made.gpus == 3
        assert len(module.state.enabled) == 6
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_peers_that_are_enabled_already_are_well() -> None:
    module = fake_cupy(2)
    module.state.enabled.add((0, 1))
    with cuda_machine(module):
        assert module.state.enabled == {(0, 1), (1, 0)}


def test_facts_of_the_gpus() -> None:
    fact = {"name": "stand-in", "capability": "9.0", "memory": 1 << 30}
    assert gpu_facts(fake_cupy(2)) == [{"index": 0, **fact}, {"index": 1, **fact}]


def test_a_gpu_is_found_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(cuda, "_shared", None)
    graph = Graph("net")
    graph.apply(Scale(3.0), [graph.blob("x", (2, 3), location=ONE)], "y", location=ONE)
    (back,) = [at(graph, graph["y"], HOST)]
    assert device_for(ONE) is device_for(ONE)
    with closing(cuda.shared_machine()), Serial(graph) as executor:
        executor.feed(x=np.ones((2, 3), "float32"))
        executor.run()
        assert (executor.fetch(back.name) == 3).all()


def test_a_gpu_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(cuda, "_shared", None)
    with pytest.raises(GraphError, match=r"^no device at device1: no GPU 0: CuPy is not installed; install cupy-.*"):
        device_for(TWO)
