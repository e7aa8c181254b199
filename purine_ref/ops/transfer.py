"""Operations that carry an array from one rank to another: a `Send` on one, a `Receive` on the other, paired by tag.

They stand in the graph of one rank where the whole graph has a `Copy` between two (see `parallel.ranks`), after all
gradients were made, so they have none themselves. Both use the transport that the executor gave to its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.errors import OperatorError
from purine_ref.operation import Array, Cost, Kernels, Operation, traffic
from purine_ref.ops.attributes import assign, integer
from purine_ref.tensor import Tensor, as_shape


class _Transfer(Operation):
    """One end of a transfer: exact, and without a FLOP."""

    peer: int
    tag: int

    @property
    def exact(self) -> bool:
        """Exact: nothing is computed."""
        return True

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """No FLOP; what is read or written."""
        return Cost(0, traffic(inputs, outputs))

    def _check(self) -> None:
        assign(self, peer=integer(self.peer, f"{self.name} peer", 0), tag=integer(self.tag, f"{self.name} tag", 0))

    def _transport(self, kernels: Kernels) -> Any:
        if kernels.transport is None:
            raise OperatorError(
                f"{self.name}: there is no transport to rank {self.peer}: give the executor one, or run the whole "
                "graph with Ranks"
            )
        return kernels.transport


@dataclass(frozen=True)
class Send(_Transfer):
    """{ x } >> Send >> { }

    x, of any shape and dtype, goes to rank `peer` as the message `tag` of this iteration.
    """

    peer: int
    tag: int

    def __post_init__(self) -> None:
        self._check()

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """No output. Raises ShapeError unless x is the one input."""
        self.require_inputs(inputs, "x")
        return ()

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Send x. Raises OperatorError without a transport, else what `Transport.send` raises."""
        self._transport(kernels).send(self.peer, self.tag, kernels.key.iteration, inputs[0])


@dataclass(frozen=True)
class Receive(_Transfer):
    """{ } >> Receive >> { y }

    y, of `shape` and `dtype`, is what rank `peer` sent as the message `tag` of this iteration. It starts when that is
    there.
    """

    peer: int
    tag: int
    shape: tuple[int, ...]
    dtype: str = "float32"

    external = True

    def __post_init__(self) -> None:
        self._check()
        assign(self, shape=as_shape(self.shape))

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`shape` and `dtype`. Raises ShapeError when there is an input."""
        self.require(not inputs, "no inputs", len(inputs))
        return (Tensor(self.shape, self.dtype),)

    def expect(self, kernels: Kernels, outputs: Sequence[Array], arrived: Callable[[], None]) -> None:
        """Expect the message. Raises OperatorError without a transport, else what `Transport.expect` raises."""
        into = outputs[0] if outputs else None
        self._transport(kernels).expect(self.peer, self.tag, kernels.key.iteration, arrived, into)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write the message, which has arrived. Raises what `Transport.take` raises."""
        self._transport(kernels).take(self.peer, self.tag, kernels.key.iteration, outputs[0])
