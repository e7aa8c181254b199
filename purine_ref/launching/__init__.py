"""How ranks become processes: told by an environment, started here or over ssh, tied together, and ended together.

Nothing here knows graphs or transports. `environment` finds out which rank a process is; `processes` starts ranks,
passes on what they print, and ends them all when one dies; `lifeline` is the rank's side of that.
"""

from purine_ref.launching.environment import Place, find_place, without_ranks
from purine_ref.launching.exits import Ended, worst
from purine_ref.launching.lifeline import Terminated, terminable, tie
from purine_ref.launching.processes import Start, run_ranks
from purine_ref.launching.ssh import Host, over_ssh, read_hosts, spread

__all__ = [
    "Ended",
    "Host",
    "Place",
    "Start",
    "Terminated",
    "find_place",
    "over_ssh",
    "read_hosts",
    "run_ranks",
    "spread",
    "terminable",
    "tie",
    "without_ranks",
    "worst",
]
