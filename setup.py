"""The extension modules, and nothing else: all metadata is in `pyproject.toml`.

PURINE_REF_FAST=0 builds none of them. Otherwise they are built from Cython source, and a missing compiler is an error.
"""

from __future__ import annotations

import glob
import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

# The twins must agree to the bit: no fused multiply-add, no reordering, no flushing of small numbers to zero.
# A square root that leaves `errno` alone is one instruction, and rounds as it did.
GCC = ["-O3", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno"]
FLAGS = ["/O2", "/fp:strict"] if sys.platform == "win32" else GCC


class BuildLoops(build_ext):
    """`build_ext` that keeps the generated C out of the source tree, and says what to do when compiling fails."""

    def initialize_options(self) -> None:
        """Have Cython write beside the object files."""
        super().initialize_options()
        self.cython_c_in_temp = True

    def build_extension(self, ext: Extension) -> None:
        """Compile and link. Raises PlatformError, naming the two ways out, when the compiler is missing or fails."""
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError, OSError) as error:
            raise PlatformError(
                f"{ext.name} could not be compiled ({error}); install a C compiler, "
                "or set PURINE_REF_FAST=0 to build without compiled loops and run the plain ones"
            ) from error


def extensions() -> list[Extension]:
    """What to compile. Raises SystemExit for a PURINE_REF_FAST other than auto, 1 or 0."""
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    if setting not in ("auto", "1", "0"):
        raise SystemExit(f"PURINE_REF_FAST: expected auto, 1 or 0, got {setting!r}; unset it for auto")
    if setting == "0":
        return []
    return [
        Extension(
            f"purine_ref._fast.{name}",
            [f"purine_ref/_fast/{name}.pyx"],
            depends=sorted(glob.glob("purine_ref/_fast/*.pxi")) if name == "_tracker" else [],
            extra_compile_args=FLAGS,
        )
        for name in ("_loops", "_tracker", "_judge", "_lines")
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildLoops})
