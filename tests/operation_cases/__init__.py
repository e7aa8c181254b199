"""Cases for the operations' suite, of every operation that `purine_ref.ops` exports, by family."""

from __future__ import annotations

from operation_cases import geometry, movement, sources, values

ALL = [*geometry.CASES, *movement.CASES, *sources.CASES, *values.CASES]
