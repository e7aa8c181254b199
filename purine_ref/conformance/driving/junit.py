"""The results of a check as a JUnit file, which continuous integration servers read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from purine_ref.conformance.driving.results import Result


def junit(results: Sequence[Result], port: str) -> str:
    """One test suite for each check, one test case for each result; what did not run is skipped, with the reason."""
    root = ET.Element("testsuites", name=_legal(f"purine-ref check {port}"))
    for check in dict.fromkeys(result.check for result in results):
        own = [result for result in results if result.check == check]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=check,
            tests=str(len(own)),
            failures=str(sum(result.outcome == "fail" for result in own)),
            errors="0",
            skipped=str(sum(not result.executed for result in own)),
            time=f"{sum(result.seconds for result in own):.3f}",
        )
        for result in own:
            _add(suite, result)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ET.Element, result: Result) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"purine_ref.check.{result.check}", name=_legal(result.name),
                         time=f"{result.seconds:.3f}")  # fmt: skip
    if result.outcome == "fail":
        failure = ET.SubElement(case, "failure", type=result.kind, message=_legal(result.reason))
        if result.smaller is not None:
            failure.text = _legal(f"smallest case: {result.smaller.fault.reason}")
    elif not result.executed:
        ET.SubElement(case, "skipped", message=_legal(f"{result.outcome}: {result.reason}"))


def _legal(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?"
                   for c in text)  # fmt: skip
