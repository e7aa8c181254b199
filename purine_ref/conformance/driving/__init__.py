"""Driving a port: `purine-drive/1`, random cases of just its operations, and failures made smaller.

The protocol is `docs/porting/drive.md`. `open_port` gives a port in any form, `check_port` checks it, `shrink` makes a
failing case small. `reference` is this package as a port.
"""

from purine_ref.conformance.driving.checking import CHECKS, Options, check_port
from purine_ref.conformance.driving.faults import KINDS, PortFault, Unsupported
from purine_ref.conformance.driving.messages import PROTOCOL, Hello
from purine_ref.conformance.driving.ports import OneShotPort, Played, Port, SessionPort, open_port, scratch
from purine_ref.conformance.driving.results import Result, counts, never_run, verdict
from purine_ref.conformance.driving.session import LIMIT, DriveSession
from purine_ref.conformance.driving.shrinking import Smaller, shrink
from purine_ref.conformance.driving.trying import Judge, Trial, lacking

__all__ = [
    "CHECKS",
    "KINDS",
    "LIMIT",
    "PROTOCOL",
    "DriveSession",
    "Hello",
    "Judge",
    "OneShotPort",
    "Options",
    "Played",
    "Port",
    "PortFault",
    "Result",
    "SessionPort",
    "Smaller",
    "Trial",
    "Unsupported",
    "check_port",
    "counts",
    "lacking",
    "never_run",
    "open_port",
    "scratch",
    "shrink",
    "verdict",
]
