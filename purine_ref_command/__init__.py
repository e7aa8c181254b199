"""Where the command `purine-ref` starts: outside the package, whose import refuses a wrong PURINE_REF_FAST.

`import purine_ref` raises then, as it should in a program; a command has to say it in one line, and to exit with the
code for wrong usage, or for what could not run.
"""

from __future__ import annotations

import sys

USAGE, UNKNOWN = 64, 2
SETTING = "PURINE_REF_FAST"


def main() -> None:
    """The entry point. Exits with the command's code; 64 for a wrong PURINE_REF_FAST, 2 for loops that cannot load."""
    try:
        from purine_ref.cli import main as command
    except (ImportError, ValueError) as error:
        if SETTING not in str(error):  # nothing that we know how to explain
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, ValueError) else UNKNOWN)
    command()
