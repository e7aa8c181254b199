"""`purine-ref keygen`: make the keys with which ranks on several hosts know each other."""

from __future__ import annotations

import time

import click

from purine_ref.cli.report import CODES, json_option, output, seed_option, write_json
from purine_ref.transports.keys import NAME, make_keys

EPILOG = """\b
Examples:
  purine-ref keygen keys
  purine-ref keygen keys --name rank0

With one pair, copy DIR to every host, over a channel that you trust, and give --keys DIR everywhere. With a pair for
each host, call the one where rank 0 runs rank0, and copy every .key file, and no .key_secret, to all.
"""


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--name", default=NAME, show_default=True, metavar="NAME", help="What to call the pair.")
@seed_option
@json_option
def keygen(folder: str, name: str, seed: int, json_file: str | None) -> int:
    """Make a pair of keys in DIR: NAME.key to hand out, and NAME.key_secret, which only you can read.

    Keys come from the system's source of randomness: no --seed makes the same ones again.
    """
    start = time.perf_counter()
    try:
        public_file, private_file = make_keys(folder, name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    console = output(json_file)
    console.print(f"public key:  {public_file}", markup=False, soft_wrap=True)
    console.print(f"private key: {private_file} (keep it secret)", markup=False, soft_wrap=True)
    counts = {"executed": 1, "skipped": 0, "seconds": time.perf_counter() - start, "seed": seed}
    write_json(json_file, "keygen", "pass", {**counts, "public": str(public_file), "private": str(private_file)})
    return CODES["pass"]
