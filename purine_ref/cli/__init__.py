"""The command `purine-ref`. Each subcommand is a module of its own; `main` turns what they raise into exit codes.

Exit codes: 0 pass, 1 fail, 2 unknown or could not run, 64 wrong usage, 130 interrupted. Results go to the standard
output, errors to the standard error, progress to whichever is a terminal.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from purine_ref.cli.bench import bench
from purine_ref.cli.case_run import diff
from purine_ref.cli.case_run import run as run_cases
from purine_ref.cli.check import check
from purine_ref.cli.golden import golden
from purine_ref.cli.info import info
from purine_ref.cli.keygen import keygen
from purine_ref.cli.launch import launch
from purine_ref.cli.show import show
from purine_ref.cli.trace import trace
from purine_ref.cli.train import train
from purine_ref.cli.verify import verify
from purine_ref.cli.worker import worker
from purine_ref.errors import PurineError

PASS, FAIL, UNKNOWN, USAGE, INTERRUPTED = 0, 1, 2, 64, 130

EPILOG = """\b
Examples:
  purine-ref verify
  purine-ref train --model lenet-digits --save lenet.npz
  purine-ref show --model lenet-digits --format svg > lenet.svg
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="purine_ref")
def group() -> None:
    """The readable reference of bi-graph deep learning."""


for command in (verify, train, show, bench, info, trace, golden, run_cases, diff, check, keygen, launch, worker):
    group.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. `arguments` are by default those of the process."""
    try:
        return int(group.main(args=None if arguments is None else list(arguments), standalone_mode=False) or PASS)
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return UNKNOWN
    except (click.Abort, KeyboardInterrupt) as stop:
        if isinstance(stop.__cause__, EOFError):  # click takes one for Ctrl-D at a prompt, and there are none
            traceback.print_exception(stop.__cause__)
            return UNKNOWN
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except (PurineError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return UNKNOWN
    except SystemExit:  # click and rich end so when the reader of a pipe has gone, with a code that would say "fail"
        return UNKNOWN
    except Exception:  # Python would exit with 1, which says that results differ
        traceback.print_exc()
        return UNKNOWN


def main() -> None:
    """The entry point of the command."""
    sys.exit(run())
