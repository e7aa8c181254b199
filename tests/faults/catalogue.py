"""All planted faults, by family."""

from __future__ import annotations

from faults import devices, dispatchers, geometry, graphs, hosts, moves, parallel, ranks, updates, values

ALL = [*dispatchers.ALL, *graphs.ALL, *geometry.ALL, *values.ALL, *updates.ALL]
"""Wrong operators, graphs, and dispatchers of one place."""

PARALLEL = [*parallel.ALL, *moves.ALL, *devices.ALL, *ranks.ALL, *hosts.ALL]
"""Wrong compositions, devices, ranks, transports and hosts."""
