"""What one operator must satisfy to be connected: its place, and its outputs. Functions of descriptions; no state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from purine_ref.errors import GraphError, ShapeError
from purine_ref.operation import Operation
from purine_ref.tensor import Location, Tensor

_HERE = Location()


class Joined(Protocol):
    """What is asked of a blob."""

    name: str
    tensor: Tensor


def common_place(
    name: str,
    operation: Operation,
    inputs: Sequence[Joined],
    outputs: Sequence[Joined],
    location: Location | None,
) -> Location:
    """An operator shares its blobs' place; only a copy (an operation with `to`) joins two, and is at either."""
    here = inputs[0].tensor.location if inputs else outputs[0].tensor.location if outputs else _HERE
    place = location or here
    before = after = place
    if hasattr(operation, "to") and place in (here, operation.to or here):
        before, after = here, operation.to or here
    for blob in inputs:
        if blob.tensor.location is not before and blob.tensor.location != before:  # mostly one object; != takes long
            _refuse_place(name, operation, place, blob)
    for blob in outputs:
        if blob.tensor.location is not after and blob.tensor.location != after:
            _refuse_place(name, operation, place, blob)
    return place


def _refuse_place(name: str, operation: Operation, place: Location, blob: Joined) -> None:
    raise GraphError(
        f"operator {name!r} ({operation.name}) at {place} cannot use blob {blob.name!r} at "
        f"{blob.tensor.location}: put a Copy between them"
    )


def infer(name: str, operation: Operation, inputs: Sequence[Joined]) -> tuple[Tensor, ...]:
    """What the operation makes of the inputs. Raises ShapeError, naming the operator, when it refuses them."""
    try:
        return operation.infer([blob.tensor for blob in inputs])
    except ShapeError as error:
        fed = ", ".join(f"{b.name} {b.tensor}" for b in inputs) or "none"
        raise ShapeError(f"operator {name!r}: {error} (inputs: {fed})") from None


def check_outputs(name: str, operation: Operation, inputs: Sequence[Joined], outputs: Sequence[Joined]) -> None:
    """Raises ShapeError unless the outputs are what the operation infers."""
    inferred = infer(name, operation, inputs)
    if len(inferred) != len(outputs):
        counts = f"has {len(inferred)} outputs, got {len(outputs)} blobs"
        raise ShapeError(f"operator {name!r}: {operation.name} {counts}")
    for slot, tensor in enumerate(inferred):
        made = outputs[slot].tensor
        if made.shape != tensor.shape or made.dtype != tensor.dtype:
            wrong = f"must be {tensor}, but the blob is {made}"
            raise ShapeError(f"operator {name!r}: output {outputs[slot].name!r} {wrong}")
