"""Suites by contract: subclass one, say how to make your implementation, and pytest runs it like the package's own."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("suites.executors", "suites.operation_calls", "suites.operations", "suites.transports")
