"""The oneDNN library itself: where it is, whether it is one that we can call, and its functions.

Its interface is plain C, so it is called without a build step. oneDNN shares the work of a call among threads of its
own, by OpenMP; here every call keeps to its thread (`alone`), since kernels share work themselves and the bits of a sum
may depend on who computes it (rule R8).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from purine_ref.errors import GraphError

PACKAGE = "onednn-cpu-gomp"
"""The distribution on PyPI that has the library."""

REMEDY = 'install it: pip install "purine_ref[onednn]"'
MAJOR = 3
"""The major version whose interface this is; from one to the next it changes."""

SEQUENTIAL, OPENMP = 1, 2
"""The ways of sharing a call among threads (`cpu_runtime`) that can be held to one."""

DIMS = c_int64 * 12
"""oneDNN's arrays of dimensions, strides and padding: always of this length."""

STATUS = (
    "success", "out of memory", "invalid arguments", "unimplemented", "last implementation reached", "runtime error",
    "not required",
)  # fmt: skip


class Argument(ctypes.Structure):
    """`dnnl_exec_arg_t`: which argument of a primitive a memory object is."""

    _fields_ = (("arg", c_int), ("memory", c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p), ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )  # fmt: skip


_OUT, _DIMS = POINTER(c_void_p), POINTER(c_int64)
_WINDOW = [_DIMS] * 4  # strides, dilations, padding at the begin and at the end
_MATRIX = [c_void_p, c_int64]  # where it lies, and the elements from one row to the next
_SGEMM = [c_char, c_char, *[c_int64] * 3, c_float, *_MATRIX, *_MATRIX, c_float, *_MATRIX]

SIGNATURES: dict[str, list[Any]] = {
    "engine_create": [_OUT, c_int, c_size_t],
    "stream_create": [_OUT, c_void_p, c_uint],
    "stream_wait": [c_void_p],
    "stream_destroy": [c_void_p],
    "memory_desc_create_with_strides": [_OUT, c_int, _DIMS, c_int, _DIMS],
    "memory_desc_create_with_tag": [_OUT, c_int, _DIMS, c_int, c_int],
    "memory_desc_destroy": [c_void_p],
    "memory_create": [_OUT, c_void_p, c_void_p, c_void_p],
    "memory_set_data_handle": [c_void_p, c_void_p],
    "memory_destroy": [c_void_p],
    "primitive_attr_create": [_OUT],
    "primitive_attr_set_scratchpad_mode": [c_void_p, c_int],
    "primitive_attr_set_fpmath_mode": [c_void_p, c_int],
    "primitive_desc_query": [c_void_p, c_int, c_int, c_void_p],
    "primitive_desc_destroy": [c_void_p],
    "primitive_create": [_OUT, c_void_p],
    "primitive_destroy": [c_void_p],
    "reorder_primitive_desc_create": [_OUT, *[c_void_p] * 5],
    "convolution_forward_primitive_desc_create": [_OUT, c_void_p, c_int, c_int, *[c_void_p] * 4, *_WINDOW, c_void_p],
    "convolution_backward_data_primitive_desc_create": [
        _OUT, c_void_p, c_int, *[c_void_p] * 3, *_WINDOW, *[c_void_p] * 2,
    ],
    "convolution_backward_weights_primitive_desc_create": [
        _OUT, c_void_p, c_int, *[c_void_p] * 4, *_WINDOW, *[c_void_p] * 2,
    ],
}  # fmt: skip
"""The functions that return a status, without their prefix `dnnl_`, and the types of their parameters."""


class Library:
    """oneDNN, loaded. The functions of `SIGNATURES` are attributes, and raise where their status is not success.

    Those keep the interpreter's lock, as they take less than a microsecond and giving it up would cost more;
    `primitive_execute` and `sgemm` let other threads run.
    """

    def __init__(self, path: str) -> None:
        try:
            quick = ctypes.PyDLL(path)
            self._version = _version(quick)
        except (OSError, AttributeError) as error:
            raise GraphError(f"oneDNN at {path} cannot be loaded ({error}); {REMEDY}") from error
        self.path = path
        self.version = f"{self._version.major}.{self._version.minor}.{self._version.patch}"
        if self._version.major != MAJOR:
            raise GraphError(f"oneDNN at {path} is version {self.version}, but {MAJOR}.x is needed; {REMEDY}")
        self._threads, self._set_threads = _thread_limit(quick, self._version.cpu_runtime, path)
        for name, parameters in SIGNATURES.items():
            setattr(self, name, _checked(quick, f"dnnl_{name}", parameters))
        execute = [c_void_p, c_void_p, c_int, POINTER(Argument)]
        self.primitive_execute = _checked(ctypes.CDLL(path), "dnnl_primitive_execute", execute)
        self.sgemm = _checked(ctypes.CDLL(path), "dnnl_sgemm", _SGEMM)
        self.memory_desc_get_size = quick.dnnl_memory_desc_get_size
        self.memory_desc_get_size.argtypes, self.memory_desc_get_size.restype = [c_void_p], c_size_t

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"oneDNN's dnnl_{name} is not declared here")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within this context oneDNN uses no thread but the caller's. The limit is OpenMP's, for this thread only.

        Others in the process may use the same OpenMP, so theirs is put back.
        """
        before = self._threads()
        if before == 1:
            yield
            return
        self._set_threads(1)
        try:
            yield
        finally:
            self._set_threads(before)


@cache
def library() -> Library:
    """oneDNN, loaded when it is first asked for. Raises GraphError, saying what to install, where there is none."""
    path = find()
    if path is None:
        raise GraphError(f"kernel set 'onednn' needs the oneDNN library (libdnnl, {MAJOR}.x); {REMEDY}")
    return Library(path)


def find() -> str | None:
    """Where the library is: of the Python package, else of the system; None when it is nowhere."""
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name.startswith(("libdnnl.so", "libdnnl.dylib")) and file.locate().is_file():  # type: ignore[attr-defined]
            return str(Path(str(file.locate())).resolve())
    return ctypes.util.find_library("dnnl")


def _version(quick: ctypes.PyDLL) -> _Version:
    quick.dnnl_version.argtypes, quick.dnnl_version.restype = [], POINTER(_Version)
    found: _Version = quick.dnnl_version().contents
    return found


def _thread_limit(quick: ctypes.PyDLL, runtime: int, path: str) -> tuple[Any, Any]:
    """The functions that read and set how many threads a call of this thread uses."""
    if runtime == SEQUENTIAL:
        return lambda: 1, None
    if runtime != OPENMP:
        raise GraphError(f"oneDNN at {path} shares work by neither OpenMP nor nothing (runtime {runtime}); {REMEDY}")
    # The OpenMP that oneDNN is linked with: the loader finds it through the library.
    quick.omp_get_max_threads.argtypes, quick.omp_get_max_threads.restype = [], c_int
    quick.omp_set_num_threads.argtypes, quick.omp_set_num_threads.restype = [c_int], None
    return quick.omp_get_max_threads, quick.omp_set_num_threads


def _checked(where: ctypes.CDLL, name: str, parameters: list[Any]) -> Any:
    """A function that raises MemoryError or RuntimeError unless its status is success."""
    function = getattr(where, name)
    function.argtypes, function.restype = parameters, c_int

    def check(status: int, _: object, __: object) -> None:
        """Complain about a status."""
        if status:
            meaning = STATUS[status] if status < len(STATUS) else f"status {status}"
            raise (MemoryError if status == 1 else RuntimeError)(f"oneDNN's {name}: {meaning}")

    function.errcheck = check
    return function


def made(create: Any, *arguments: object) -> c_void_p:
    """What a creating function writes into its first parameter."""
    handle = c_void_p()
    create(byref(handle), *arguments)
    return handle
