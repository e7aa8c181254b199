"""The reference as a port, with one wrong operation: its ReLU gives the absolute value."""

from __future__ import annotations

import sys
from typing import Any

from purine_ref.conformance.driving import reference
from purine_ref.ops import ReLU


def wrong(operation: ReLU, kernels: Any, inputs: Any, outputs: Any) -> None:
    outputs[0][...] = abs(inputs[0])


if __name__ == "__main__":
    ReLU.compute = wrong  # type: ignore[method-assign]
    sys.exit(reference.main())
