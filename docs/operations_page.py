"""Writes `porting/operations.md`: every operation that a case may use, from its docstring and its attributes.

`python docs/operations_page.py` writes the page; a test compares it with what is there.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from purine_ref.conformance.cases import OPERATIONS

PAGE = Path(__file__).parent / "porting" / "operations.md"

FORMS = {
    "int": "integer",
    "int | None": "integer or null",
    "float": "number",
    "str": "string; where the text above names words in quotes, one of these (a `reduction` is `mean` or `sum`)",
    "bool": "true or false",
    "int | Pair": "[height, width]",
    "int | Pair | None": "[height, width], or null where it is not given",
    "int | Pair | Pads": "[[height begin, height end], [width begin, width end]]",
    "tuple[int, ...]": "list of integers",
    "tuple[int, ...] | None": "list of integers, or null",
    "tuple[float, ...]": "list of numbers",
    "Location | None": '{"rank": r, "device": d}, or null: where it is',
    "Window | None": "[undivided shape, start per axis], or null",
}
"""What is written in JSON for an attribute of each annotation."""

HEAD = """# Operations

Every operation that an operator of a [case](cases.md) may name. Under each: `{ inputs } >> Operation >> { outputs }`,
in the order of the operator's edges; shapes; the formula; what is refused; and the attributes, all of which are
written, in this one form. The [numerical conventions](../semantics.md) hold for all: what goes in comes out (a float32
input gives a float32 output), ties, NaN, padding, empty batches. The order in which a formula's sums are taken is free
unless it is stated: bounds allow for any. Negative axes count from the last.

Some words that stand for formulas:

- `convolved_size`: floor((size + pads - dilation * (kernel - 1) - 1) / stride) + 1, along each axis.
- `pooled_size`: (size + pads - kernel) / stride, rounded up (`"ceil"`) or down (`"floor"`), plus 1; one less where the
  last window would start at or beyond size + begin padding.
- `window_lengths`: of window i along an axis, which starts at s = i * stride - begin padding, the elements from
  max(s, low) to min(s + kernel, high), with low = -begin padding and high = size + end padding for `"padded"`, and
  0 and size for `"valid"`. The number of a window is the product of both axes' lengths.
- u24 and u53: see the [random generator](../semantics.md): a word shifted right by 40 times 2^-24, by 11 times 2^-53.
- `samples` (SampleMean): what a mean over samples divides by, where the operator sees only a part of them; null for as
  many as it sees (of those that count), and 1 where that is none, so a loss of nothing is 0.
- `stream` and `window` of draws: what keys them, and where in an undivided tensor the draw lies (rule R7).

"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(section(name, OPERATIONS[name]) for name in OPERATIONS)


def section(name: str, operation: Any) -> str:
    """One operation."""
    text = inspect.getdoc(operation) or ""
    first, _, rest = text.partition("\n")
    lines = [f"## {name}", "", f"`{first.strip()}`", ""]
    if rest.strip():
        lines += [escaped(rest.strip()), ""]
    rows = [(field.name, FORMS[str(field.type)]) for field in fields(operation)]
    if rows:
        lines += ["| attribute | in JSON |", "|---|---|"]
        lines += [f"| `{attribute}` | {form} |" for attribute, form in rows]
    else:
        lines.append("No attributes.")
    return "\n".join([*lines, ""])


def escaped(text: str) -> str:
    """Text in which no sign has a meaning for Markdown that it does not have in a docstring."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
