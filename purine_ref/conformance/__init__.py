"""The oracle: schemes by name, and the comparison of each with the serial run, tensor by tensor.

Importable by others: `parse_scheme` and `register` for schemes, `verify` for the comparison, `differing_elements` for
two arrays. `PortSuite` for the tests of a port that lives in Python.
"""

from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.driving import Port, PortFault, Unsupported, open_port
from purine_ref.conformance.exact import Certificate, certify
from purine_ref.conformance.places import Driven, place_names, register_place
from purine_ref.conformance.port_suite import FunctionPort, PortSuite
from purine_ref.conformance.recording import Recorded, Recording, is_recording, replayed
from purine_ref.conformance.recording import load as load_recording
from purine_ref.conformance.recording import to_text as recording_text
from purine_ref.conformance.schemes import Scheme, parse_scheme, register, scheme_forms
from purine_ref.conformance.session import Session
from purine_ref.conformance.shrink import replay as replay_failure
from purine_ref.conformance.verify import Comparison, Workload, verify
from purine_ref.conformance.workloads import exact_workload, training_workload

__all__ = [
    "Certificate",
    "Comparison",
    "Driven",
    "FunctionPort",
    "Port",
    "PortFault",
    "PortSuite",
    "Recorded",
    "Recording",
    "Scheme",
    "Session",
    "Unsupported",
    "Workload",
    "certify",
    "differing_elements",
    "exact_workload",
    "is_recording",
    "load_recording",
    "open_port",
    "parse_scheme",
    "place_names",
    "recording_text",
    "register",
    "register_place",
    "replay_failure",
    "replayed",
    "scheme_forms",
    "training_workload",
    "verify",
]
