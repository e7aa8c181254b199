"""All planted faults, by family."""

from __future__ import annotations

from faults import geometry

ALL = [*geometry.ALL]
