"""Rule R8 over many iterations: whatever the scheme, and wherever it runs, pieces of one box hold the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from purine_ref.conformance import Session, parse_scheme, training_workload

ITERATIONS = 50


@pytest.mark.parametrize("place", ["virtual", "ranks"])
@pytest.mark.parametrize(
    ("scheme", "held"),
    [
        ("data:3,server", 3),
        ("data:3,ring", 3),
        ("hybrid:2x2", 2),
        ("data:2,tree/pipeline:2x2", 2),
        ("data:2/pipeline:2x2/model:2", 2),
    ],
)
def test_r8_replicas_hold_the_same_bits_after_50_iterations_of_any_scheme(scheme: str, held: int, place: str) -> None:
    workload = training_workload("mlp-digits", "float32", 11, ITERATIONS, 3)
    session = parse_scheme(f"{scheme}@{place}").open(workload.graph, 3)
    assert isinstance(session, Session)
    with session:
        before = {blob.name: [a.copy() for _, a in session.pieces(blob.name)] for blob in workload.graph.parameters}
        for step in range(ITERATIONS):
            session.feed(workload.feeds(step))
            session.run()
        assert session.faults() == []
        for name, began in before.items():
            boxes: dict[object, list[bytes]] = {}
            for piece, array in session.pieces(name):
                assert np.isfinite(array).all()
                boxes.setdefault(piece.box, []).append(array.tobytes())
            assert all(len(bits) >= held and len(set(bits)) == 1 for bits in boxes.values()), name
            after = [array for _, array in session.pieces(name)]
            assert any((one != other).any() for one, other in zip(began, after, strict=True)), name
