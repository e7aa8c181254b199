"""All planted faults, by family."""

from __future__ import annotations

from faults import dispatchers, geometry, graphs, parallel, places, updates, values

ALL = [*dispatchers.ALL, *graphs.ALL, *geometry.ALL, *values.ALL, *updates.ALL]
"""Wrong operators, graphs, and dispatchers of one place."""

PARALLEL = [*parallel.ALL, *places.ALL]
"""Wrong compositions, devices, ranks and transports."""
