"""The contract of an operator: what it maps, how it computes, its gradient rule, its cost, whether it is exact.

An `Operation` is a frozen dataclass of attributes and knows no graph: the same value can be wired many times. It is
written once, against the vocabulary in `Kernels`, for every device. Its gradient rule is stated as further
operations, never as arrays, on a `Wiring` that the graph supplies.

Subclasses override `infer` and `compute`, and where it applies `gradient`, `cost`, `exact`, `magnitude`,
`quantum`, and `bound` and `spread`, without which no result can be compared within a bound.
The first line of a subclass's docstring is its connection, such as `{ bottom, weight } >> Linear >> { top }`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from purine_ref.errors import GraphError, ShapeError
from purine_ref.rounding import uniform
from purine_ref.tensor import Tensor

Array = Any
"""A numpy or cupy array; the two share the interface that operations use."""

Box = tuple[tuple[int, int], ...]
"""A part of a tensor: start and stop per axis."""

End = tuple[int, int] | None
"""Where a dimension of an operation lies in one of its tensors: (axis, elements of that axis per index), or nowhere."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension along which an operation can be cut into parts, of `extent` indices.

    Index i of it is elements [i s, (i + 1) s) of axis a in the tensor whose end is (a, s). An input whose end is None
    is needed whole by every part. An output whose end is None is a sum over the dimension: each part gives a partial
    sum.
    """

    name: str
    extent: int
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one call: `flops` floating-point operations, and `bytes` read and written."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunKey:
    """What random operations are keyed by, beside their stream: the run's seed and iteration (rule R7)."""

    seed: int = 0
    iteration: int = 0


class Window(NamedTuple):
    """How a convolution's kernel lies: per axis steps, (begin, end) padding, dilation; and the groups of channels."""

    stride: Pair = (1, 1)
    pads: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)
    groups: int = 1


class Kernels(Protocol):
    """A device's vocabulary: `xp` (numpy or cupy), the loops that `xp` lacks, and the key of the current run.

    The loops are documented by their plain twins in `purine_ref/_fast/loops.py`, under the same names. `transport` is
    the rank's way to the others (`purine_ref.transports`), or None.

    `share(count, work)` calls work(i) for each i in range(count), on this thread and on others that are idle, and
    raises the error of the least i; items write disjoint memory. Where `whole`, a device shares work itself.
    `scratch(slot, shape, dtype)` is an array of any content, the thread's own until it asks for that slot again.
    `number(x)` is x of shape () as loops take it; `copy(source, target)` works between places too. `refuse(suspect,
    values, complain)` calls complain(values) and is True where any is suspect; False if an accelerator does so later.

    The convolutions write their last array: `convolution(x, weight, y, window)`, `convolution_data(dy, weight, dx,
    window)`, `convolution_weight(dy, x, dweight, window)`. `convolution_data_terms(weight.shape, groups)` says how many
    terms an element of dx adds in the dtype; `convolution_weight_terms(dy.shape)` how many products the last of them
    adds in the dtype, and how many such sums it then adds in float64.
    """

    xp: Any
    key: RunKey
    transport: Any
    share: Callable[[int, Callable[[int], object]], None]
    scratch: Callable[[str, tuple[int, ...], Any], Array]
    whole: bool
    number: Callable[[Array], Any]
    refuse: Callable[[Array, Array, Callable[[Array], None]], bool]
    copy: Callable[[Array, Array], None]
    convolution: Any
    convolution_data: Any
    convolution_weight: Any
    convolution_data_terms: Any
    convolution_weight_terms: Any
    im2col: Any
    col2im: Any
    unfold: Any
    fold: Any
    max_pool: Any
    max_pool_gather: Any
    average_pool: Any
    average_pool_scatter: Any
    window_sum: Any
    lrn: Any
    lrn_gradient: Any
    add_bias: Any
    bias_relu: Any
    relu_bias_gradient: Any
    bias_gradient: Any
    relu: Any
    relu_gradient: Any
    momentum_update: Any
    torch_update: Any
    adagrad_update: Any
    philox: Any


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation, for the rules of its rounding errors (rule R11).

    `inputs` and `outputs` are arrays, computed or exact; `unit` is the unit roundoff of the dtype that outputs are
    rounded to; `variances` are those of the inputs' errors, None for no error.
    """

    kernels: Kernels
    inputs: Sequence[Array]
    outputs: Sequence[Array]
    unit: float
    variances: Sequence[Array | None] = ()

    @property
    def xp(self) -> Any:
        """numpy or cupy."""
        return self.kernels.xp


@dataclass(frozen=True, slots=True)
class Kinks:
    """Decisions that lie within the spread of their inputs: how many, and for each output where it would jump.

    `jumps` has a boolean array for each output, or None where the output has no jump.
    """

    count: int
    jumps: tuple[Array | None, ...]


class BlobLike(Protocol):
    """What a gradient rule may ask of a blob: its description."""

    @property
    def tensor(self) -> Tensor:
        """Shape, dtype and location."""


class Wiring(Protocol):
    """What a gradient rule wires: the operator's own blobs, the gradients that arrived, and `add`.

    `inputs` and `outputs` are the operator's blobs. `wants[i]` says whether anyone needs the gradient of input i.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    wants: Sequence[bool]

    def gradient(self, output: int) -> Any:
        """The blob with the gradient of that output; a blob of zeros where no gradient arrived."""

    def has_gradient(self, output: int) -> bool:
        """Whether a gradient arrived at that output."""

    def add(self, operation: Operation, inputs: Sequence[Any], into: Sequence[int | None]) -> tuple[Any, ...]:
        """Add an operator whose output k becomes one more producer of the gradient of input `into[k]` (rule R4).

        Where `into[k]` is None, output k is a new blob for the rule's own use. Returns the outputs.
        """


class Operation:
    """The base of every operation; see the module's text for what to override.

    `loops` names the members of `Kernels`, beyond `xp`, that `compute` calls: a device without one of them is refused
    when the graph is prepared (rule R13). `selectors` are the inputs that only choose (a mask, a maximum's index, the
    sign of a ReLU's output): `magnitude` gets their actual values. `in_place` says that output 0 may be the same
    memory as input 0, since `compute` reads each element before it writes that element and no other needs it.
    `rearranges` is "split" where every output is a box of the one input, "join" where every input is a box of the one
    output, elements unchanged: `boxes` says which, and a graph may then make them views that move nothing (rule R5).
    `external` says that an operator of this kind has one more input edge, which something outside the graph satisfies,
    such as a message: `expect` says when, so that no executor starts it only to wait.
    """

    loops: ClassVar[frozenset[str]] = frozenset()
    selectors: ClassVar[frozenset[int]] = frozenset()
    in_place: ClassVar[bool] = False
    rearranges: ClassVar[str] = ""
    external: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The operation's name, which is its class's."""
        return type(self).__name__

    @property
    def exact(self) -> bool:
        """Whether results are exact whenever every partial sum is (rule R10). Unless overridden, they are not."""
        return False

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Shapes and dtypes of the outputs. The location of what is returned is of no account: the graph places it.

        Raises ShapeError, saying what was expected and what came, when the operation cannot take `inputs`.
        """
        raise NotImplementedError(f"{self.name} must define infer(inputs)")

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write every element of `outputs`; leave `inputs` as they are. Arrays may be strided views.

        Raises OperatorError for values that the operation cannot compute on.
        """
        raise NotImplementedError(f"{self.name} must define compute(kernels, inputs, outputs)")

    def expect(self, kernels: Kernels, outputs: Sequence[Array], arrived: Callable[[], None]) -> None:
        """Where `external`: called when a run starts, to have `arrived` called once `compute` would not wait.

        `outputs` are those of `compute`, to be written from now on if there are no inputs; or none, if only then.
        """
        raise NotImplementedError(f"{self.name} must define expect(kernels, outputs, arrived)")

    def gradient(self, wiring: Wiring) -> None:
        """Add the operators that carry gradients from the outputs to each input that `wiring.wants`.

        Raises GraphError when the operation has no gradient.
        """
        raise GraphError(f"{self.name} has no gradient rule, but a gradient was asked for through it")

    def differentiable(self, index: int) -> bool:
        """Whether input `index` can receive a gradient through this operation; floats can, unless overridden."""
        return True

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """FLOPs and bytes of one call; unless overridden, one FLOP per output element."""
        return Cost(sum(t.size for t in outputs), traffic(inputs, outputs))

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """The dimensions along which the operation can be cut; none, unless overridden."""
        return ()

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """The operation on indices `start` to `stop` of one of its `axes`; itself where no attribute depends on it."""
        return self

    def boxes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Box, ...]:
        """Where it `rearranges`: the box, start and stop per axis of the whole, that each part holds, in their order.

        A part may see its box in another shape (Reshape).
        """
        raise NotImplementedError(f"{self.name} rearranges nothing, so it has no boxes")

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """Write into `outputs` what no partial sum of `compute(inputs)` exceeds in absolute value (rule R10).

        `bounds` are such limits for the inputs themselves. Unless overridden: `compute` on the bounds, with actual
        values for the `selectors` and for integers, which is right for every operation without subtraction.
        """
        mixed = [inputs[i] if self.selects(i, inputs[i]) else bounds[i] for i in range(len(inputs))]
        wide = next((y.dtype for y in outputs if y.dtype.kind == "f"), None)
        alike = [x if wide is None or x.dtype.kind != "f" else x.astype(wide, copy=False) for x in mixed]
        self.compute(kernels, alike, outputs)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """For each output, the e for which every partial sum is a multiple of 2**e, given the same of the inputs.

        Unless overridden: the least of the inputs that are not selectors, right where inputs are only added.
        """
        valued = [e for i, e in enumerate(exponents) if i not in self.selectors and inputs[i].is_float]
        return (min(valued, default=0),) * len(outputs)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """For each output, what |computed - exact| cannot exceed in one call, to first order (rule R11).

        Exact is what the formula means for just these inputs. Results that are not rounded have zeros.
        """
        raise NotImplementedError(f"{self.name} must define bound(call) before its results can be compared within one")

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """For each output, the variance of the call's own rounding errors; None for no error at all.

        Unless overridden: errors lie anywhere within the bound.
        """
        return tuple(uniform(limit) for limit in self.bound(call))

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """For each output, the variance that it has from the errors of input `index` alone (rule R11).

        That is squared derivatives times `call.variances[index]`, as elements err independently. Where `index` is one
        of the `selectors`, the derivative is what the output changes by when an element selects otherwise.
        """
        raise NotImplementedError(f"{self.name} must define spread(call, index): errors cannot be followed through it")

    def kinks(self, call: Call) -> Kinks:
        """The decisions that errors of up to `KAPPA` standard deviations of the inputs could turn; none, by default."""
        return Kinks(0, (None,) * len(call.outputs))

    def selects(self, index: int, array: Array) -> bool:
        """Whether input `index` only selects: one of the `selectors`, or integers."""
        return index in self.selectors or array.dtype.kind == "i"

    def __rrshift__(self, inputs: object) -> Pending:
        """`[x, w] >> operation`: the first half of the sugar for `graph.connect`."""
        if not isinstance(inputs, (list, tuple)):
            came = f"got {type(inputs).__name__} on the left"
            raise GraphError(f"write [blob, ...] >> {self.name}(...) >> [blob, ...]; {came}")
        return Pending(tuple(inputs), self)

    def require(self, condition: bool, expected: str, came: object) -> None:
        """Raise ShapeError("Name: expected ..., got ...") unless `condition` holds."""
        if not condition:
            raise ShapeError(f"{self.name}: expected {expected}, got {came}")

    def require_inputs(self, inputs: Sequence[Tensor], names: str) -> None:
        """Raise ShapeError unless there are as many inputs as there are words in `names`."""
        words = names.split()
        self.require(len(inputs) == len(words), f"{len(words)} inputs ({', '.join(words)})", f"{len(inputs)}")

    def require_float(self, tensor: Tensor, name: str) -> None:
        """Raise ShapeError unless `tensor` is floating point."""
        self.require(tensor.is_float, f"{name} of float32 or float64", tensor.dtype)

    def require_same_dtype(self, inputs: Sequence[Tensor]) -> None:
        """Raise ShapeError unless all inputs are floating point and of one dtype."""
        for tensor in inputs:
            self.require_float(tensor, "inputs")
        dtypes = sorted({t.dtype for t in inputs})
        self.require(len(dtypes) <= 1, "inputs of one dtype", " and ".join(dtypes))

    def require_same(self, inputs: Sequence[Tensor]) -> None:
        """Raise ShapeError unless all inputs are floating point and agree in shape and dtype."""
        self.require_same_dtype(inputs)
        shapes = sorted({t.shape for t in inputs})
        self.require(len(shapes) <= 1, "inputs of one shape", " and ".join(map(str, shapes)))


@dataclass(frozen=True, slots=True)
class Pending:
    """`[x, w] >> operation`, waiting for `>> [y]`. Made by `>>` alone."""

    inputs: tuple[Any, ...]
    operation: Operation

    def __rshift__(self, outputs: object) -> Any:
        """Connect to the blobs in the list `outputs`; returns the operator. Raises GraphError for anything else."""
        if not isinstance(outputs, (list, tuple)):
            raise GraphError(f"write >> [blob, ...] after {self.operation.name}; got {type(outputs).__name__}")
        blobs = [*outputs, *self.inputs]
        if not blobs or not hasattr(blobs[0], "graph"):
            raise GraphError(f"{self.operation.name} must be wired to the blobs of a graph, got {blobs!r}")
        return blobs[0].graph.connect(self.inputs, self.operation, outputs)


class RandomOperation(Operation):
    """The base of operations that draw. A subclass is a frozen dataclass with fields `shape`, `stream`, and `window`.

    `stream` names the draw: with the run's seed and iteration it keys the generator (rule R7). The graph fills it in
    with the operator's name when it is empty; a replica keeps the name that the serial operator had. `window` is
    None, or (undivided shape, start per axis): where this draw lies in the undivided tensor.
    """

    stream: str
    shape: tuple[int, ...]
    window: tuple[tuple[int, ...], tuple[int, ...]] | None


def elementwise_axes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
    """The axes of an element-wise operation: every axis of output 0, in all tensors of its shape; others are whole."""
    shape = outputs[0].shape

    def ends(axis: int, tensors: Sequence[Tensor]) -> tuple[End, ...]:
        """Where the axis lies in each."""
        return tuple((axis, 1) if t.shape == shape else None for t in tensors)

    return tuple(Axis(f"axis{i}", extent, ends(i, inputs), ends(i, outputs)) for i, extent in enumerate(shape))


def traffic(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Bytes of all inputs and outputs: what a call reads and writes if nothing is cached."""
    return sum(t.nbytes for t in inputs) + sum(t.nbytes for t in outputs)
