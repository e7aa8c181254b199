"""Suites by contract: subclass one, say how to make your implementation, and pytest runs it like the package's own."""

from __future__ import annotations

import pytest

SUITES = ("executors", "operation_calls", "operations", "transports", "worlds")

pytest.register_assert_rewrite(*(f"suites.{name}" for name in SUITES))
