"""The oracle: schemes by name, and the comparison of each with the serial run, tensor by tensor.

Importable by others: `parse_scheme` and `register` for schemes, `verify` for the comparison, `differing_elements` for
two arrays.
"""

from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.exact import Certificate, certify
from purine_ref.conformance.schemes import Scheme, parse_scheme, register, scheme_forms
from purine_ref.conformance.verify import Comparison, Workload, verify

__all__ = [
    "Certificate",
    "Comparison",
    "Scheme",
    "Workload",
    "certify",
    "differing_elements",
    "parse_scheme",
    "register",
    "scheme_forms",
    "verify",
]
