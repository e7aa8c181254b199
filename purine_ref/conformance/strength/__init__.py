"""How strong the checks are: wrong operators and dispatchers, planted into a port, and which check finds which."""

from purine_ref.conformance.strength.dispatchers import DISPATCHERS
from purine_ref.conformance.strength.faults import Fault, port_folder
from purine_ref.conformance.strength.measuring import COLUMNS, EXAMPLES, MOST_OPERATORS, Measure, Score
from purine_ref.conformance.strength.operators import OPERATORS

__all__ = [
    "COLUMNS",
    "DISPATCHERS",
    "EXAMPLES",
    "MOST_OPERATORS",
    "OPERATORS",
    "Fault",
    "Measure",
    "Score",
    "port_folder",
]
