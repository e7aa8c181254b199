"""Cases as plain files, `purine-case/1`: what a port of the paradigm is checked with. See `docs/porting/cases.md`.

`read_case` and `write_case` for folders, `make_case` for a case of a graph, `run_case` on this package's executors,
`compare` for results; `write_golden` and `read_manifest` for a folder of many.
"""

from purine_ref.conformance.cases.attributes import OPERATIONS
from purine_ref.conformance.cases.case import CASE_FILE, FORMAT, Case, Expected, Makers, Results
from purine_ref.conformance.cases.comparing import Finding, compare, find, in_order, largest_ratio
from purine_ref.conformance.cases.golden import (
    MANIFEST,
    SUITES,
    changed_files,
    golden_cases,
    golden_makers,
    read_manifest,
    write_golden,
)
from purine_ref.conformance.cases.making import make_case
from purine_ref.conformance.cases.reading import read_case
from purine_ref.conformance.cases.running import EXECUTORS, read_results, run_case, write_results
from purine_ref.conformance.cases.writing import case_files, write_case

__all__ = [
    "CASE_FILE",
    "EXECUTORS",
    "FORMAT",
    "MANIFEST",
    "OPERATIONS",
    "SUITES",
    "Case",
    "Expected",
    "Finding",
    "Makers",
    "Results",
    "case_files",
    "changed_files",
    "compare",
    "find",
    "golden_cases",
    "golden_makers",
    "in_order",
    "largest_ratio",
    "make_case",
    "read_case",
    "read_manifest",
    "read_results",
    "run_case",
    "write_case",
    "write_golden",
    "write_results",
]
