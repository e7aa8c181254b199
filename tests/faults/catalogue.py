"""All planted faults, by family."""

from __future__ import annotations

from faults import dispatchers, geometry, graphs, updates, values

ALL = [*dispatchers.ALL, *graphs.ALL, *geometry.ALL, *values.ALL, *updates.ALL]
