"""The extension modules, and nothing else: all metadata is in `pyproject.toml`.

PURINE_REF_FAST=0 builds none of them, and needs neither compiler nor Cython's time. Otherwise every `.pyx` beside its
plain twin is built, several at a time, and a missing compiler is an error.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

SOURCES = Path("purine_ref", "_fast")

# The twins must agree to the bit: no fused multiply-add, no reordering, no flushing of small numbers to zero.
# A square root that leaves `errno` alone is one instruction, and rounds as it did.
# Short loops that copy or clear stay loops: they are vectors, where a call of memcpy or memset would take longer.
GCC = ["-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-tree-loop-distribute-patterns"]
if "CFLAGS" not in os.environ:  # who sets them decides how far to optimise, and whether to be able to debug
    GCC += ["-O3", "-g0"]
FLAGS = ["/O2", "/fp:strict"] if sys.platform == "win32" else GCC

REMEDY = (
    "install a C compiler and Python's headers (on Debian: apt-get install gcc python3-dev), "
    "or set PURINE_REF_FAST=0 to build without compiled loops and run the plain ones"
)


class BuildLoops(build_ext):
    """`build_ext` that works on several extensions at once, and says what to do when compiling fails.

    The generated C is kept out of the source tree, beside the object files.
    """

    def finalize_options(self) -> None:
        """Compile as many extensions at once as there are processors, unless `--parallel` says otherwise."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def build_extensions(self) -> None:
        """Translate and compile. Raises PlatformError, naming the two ways out, when a compiler is missing."""
        self._try_compiler()
        try:
            from Cython.Build import cythonize
        except ImportError as error:
            raise PlatformError(f"Cython is missing ({error}); install it with pip, or {REMEDY}") from error
        workers = int(self.parallel)
        translated = cythonize(
            self.extensions, nthreads=workers if workers > 1 else 0, build_dir=self.build_temp, force=self.force
        )
        sources = {made.name: made.sources for made in translated}
        for ext in self.extensions:  # the objects stay: setuptools has noted more in them
            ext.sources = sources[ext.name]
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile and link. Raises PlatformError, naming the two ways out."""
        with explained(ext.name):
            super().build_extension(ext)

    def _try_compiler(self) -> None:
        """Compile three words first: Cython takes seconds before a compiler is asked for anything."""
        with tempfile.TemporaryDirectory() as folder, explained("a file that only includes Python.h"):
            trial = Path(folder, "trial.c")
            trial.write_text("#include <Python.h>\n", "utf-8")
            self.compiler.compile([str(trial)], output_dir=folder)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of the compiler, and that there is none, become a PlatformError that names the two ways out."""
    try:
        yield
    except (CCompilerError, ExecError, PlatformError, OSError) as error:
        raise PlatformError(f"{what} could not be compiled ({error}); {REMEDY}") from error


def extensions() -> list[Extension]:
    """What to compile. Raises SystemExit for a PURINE_REF_FAST other than auto, 1 or 0."""
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    if setting not in ("auto", "1", "0"):
        raise SystemExit(f"PURINE_REF_FAST: expected auto, 1 or 0, got {setting!r}; unset it for auto")
    if setting == "0":
        return []
    return [
        Extension(
            f"purine_ref._fast.{source.stem}",
            [str(source)],
            depends=["setup.py", *included(source)],
            include_dirs=[np.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=FLAGS,
        )
        for source in sorted(SOURCES.glob("*.pyx"))
    ]


def included(source: Path) -> list[str]:
    """The files that a source includes: when one of them changes, it is built again."""
    names = re.findall(r'^include "(.+)"$', source.read_text("utf-8"), re.MULTILINE)
    return [str(source.with_name(name)) for name in names]


if __name__ == "__main__":  # Cython's processes may import this file
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildLoops})
