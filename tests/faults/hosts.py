"""Wrong runs on hosts: what ranks that are processes must agree on, and where divisions go."""

from __future__ import annotations

from typing import Any

from faults.fault import Fault, around, replaced
from purine_ref.conformance import places
from purine_ref.executors import hosts
from purine_ref.graph import Blob
from purine_ref.tensor import Location
from purine_ref.transports import local


def on_hosts(name: str) -> str:
    """A check of ranks that are threads here, each with an executor of its own."""
    return f"test_hosts: {name}"


def whatever_comes(self: hosts.Hosts, blob: Blob) -> Any:
    """Receive an array, whosever it is."""
    self._receive(blob, self._routes.heading, hosts.HEADING)
    return self._receive(blob, self._routes.array(blob), blob.tensor)


def only_by_rank_0(right: Any, self: Any, blob: Blob, array: Any) -> None:
    if self._rank == 0:
        right(self, blob, array)


def over_the_same_again(right: Any, self: hosts.Hosts, run: Any) -> None:
    """A run goes over the session of the one before, whatever its iteration."""
    self._last, self._sound = -1, True
    right(self, run)


ALL = [
    Fault(
        "hosts: any graph will do",
        "Ranks that open different graphs are not refused.",
        replaced(local, "difference", lambda openings: None),
        (on_hosts("test_another_graph_on_one_rank_is_refused_on_all"), on_hosts("test_ranks_that_differ_are_refused")),
    ),
    Fault(
        "hosts: seeds are not compared",
        "The fingerprint is that of the graph alone.",
        around(hosts, "fingerprint", lambda right, graph, *more: right(graph)),
        (
            on_hosts("test_ranks_that_differ_are_refused"),
            "test_hosts_failures: test_ranks_of_which_one_has_counted_a_run_more_are_refused",
        ),
    ),
    Fault(
        "hosts: whatever comes is what was asked for",
        "A rank that fetches does not look which blob comes.",
        replaced(hosts.Hosts, "_get", whatever_comes),
        (on_hosts("test_ranks_that_do_not_fetch_the_same_are_told"),),
    ),
    Fault(
        "hosts: fed at rank 0",
        "What is fed goes nowhere but to rank 0.",
        around(hosts._HereBinding, "write", only_by_rank_0),
        (
            on_hosts("test_dp_07_four_ranks_add_up_in_the_order_of_the_edges"),
            "test_hosts_schemes: test_r8_every_piece_has_the_bits_of_in_process_ranks",
        ),
    ),
    Fault(
        "hosts: one session for all runs",
        "After iterations that do not rise the same session is used on.",
        around(hosts.Hosts, "_start", over_the_same_again),
        (on_hosts("test_iterations_may_be_set_as_for_any_executor"),),
    ),
    Fault(
        "hosts: divisions in turn",
        "Divisions are dealt out to the ranks one by one, not in runs of neighbours.",
        replaced(places, "_spread", lambda width, ranks: [Location(number % ranks) for number in range(width)]),
        ("test_hosts_schemes: test_neighbours_share_a_rank",),
    ),
]
