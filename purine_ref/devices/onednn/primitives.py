"""oneDNN's primitives: a computation for fixed shapes and memory layouts, made once and called many times.

A primitive belongs to the process; each thread that calls it has memory objects of its own, which are little more than
the addresses of the arrays of the call. Everything is float32, with all sums and products in float32.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from ctypes import byref, c_char_p, c_void_p
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from purine_ref.devices.onednn.library import DIMS, Argument, library, made
from purine_ref.operation import Array, Window

Kind = Literal["forward", "data", "weight"]
Shape = tuple[int, ...]

F32, ANY = 3, 1  # dnnl_f32, dnnl_format_tag_any: the primitive chooses
CPU, IN_ORDER = 1, 1
USER_SCRATCH, STRICT = 1, 0  # scratch memory is the caller's; no less precision than float32
TRAINING, DIRECT, WINOGRAD, AUTO = 64, 1, 2, 3  # dnnl_prop_kind_t and dnnl_alg_kind_t
QUERY_NAME, QUERY_SCRATCH = 8, 136  # of a primitive descriptor, as are the queries in `ROLES`

SCRATCH = 80
"""The argument (`DNNL_ARG_...`) that is scratch memory."""

ROLES: dict[Kind, tuple[tuple[int, int], ...]] = {
    "forward": ((1, 129), (33, 131), (17, 133)),
    "data": ((145, 134), (33, 131), (129, 130)),
    "weight": ((145, 134), (1, 129), (161, 132)),
}
"""Of each array, in the order of the kernels' parameters: which argument it is, and the query for its descriptor."""

WEIGHTS: dict[Kind, int] = {"forward": 1, "data": 1, "weight": 2}
"""Which of them are the weights, or their gradient."""


class Layout(NamedTuple):
    """Shape and strides, in elements, of an array that a primitive takes; no strides: as the primitive likes."""

    shape: Shape
    strides: Shape | None


class Primitive:
    """A computation on `arguments`: (argument, memory descriptor) of each array, in the order that `run` takes them in.

    `sizes` are their bytes, `implementation` is oneDNN's name for the code that it chose, and `weights` says which one
    has a convolution's weights. The description is kept, and with it the memory descriptors, which belong to it.
    """

    def __init__(self, description: c_void_p, arguments: tuple[tuple[int, c_void_p], ...], weights: int = 0) -> None:
        lib = library()
        self._kept = _Handle(description, lib.primitive_desc_destroy)
        self._primitive = _Handle(made(lib.primitive_create, description), lib.primitive_destroy)
        self._arguments = (*arguments, (SCRATCH, _queried(description, QUERY_SCRATCH)))
        self._local = threading.local()
        self.weights = weights
        self.layouts = [layout for _, layout in arguments]
        *self.sizes, self._scratch_bytes = [lib.memory_desc_get_size(layout) for _, layout in self._arguments]
        name = c_char_p()
        lib.primitive_desc_query(description, QUERY_NAME, 0, byref(name))
        self.implementation = (name.value or b"").decode()

    def run(self, scratch: Callable[..., Array], *arrays: Array) -> None:
        """Compute, on this thread alone, with `scratch` as `Kernels` has it. Arrays must have the layouts described."""
        lib, local = library(), self._local
        if not hasattr(local, "stream"):
            self._prepare(local)
        work = scratch("onednn", (self._scratch_bytes,), "uint8")
        for memory, array in zip(local.memories, (*arrays, work), strict=True):
            lib.memory_set_data_handle(memory.value, array.__array_interface__["data"][0])
        with lib.alone():
            lib.primitive_execute(self._primitive.value, local.stream.value, len(local.list), local.list)
            lib.stream_wait(local.stream.value)

    def _prepare(self, local: Any) -> None:
        """This thread's stream and memory objects."""
        lib = library()
        local.memories = [
            _Handle(made(lib.memory_create, layout, engine(), None), lib.memory_destroy)
            for _, layout in self._arguments
        ]
        pairs = zip(self._arguments, local.memories, strict=True)
        given = [Argument(argument, memory.value) for (argument, _), memory in pairs]
        local.list = (Argument * len(given))(*given)
        local.stream = _Handle(made(lib.stream_create, engine(), IN_ORDER), lib.stream_destroy)


def convolution(
    kind: Kind, x: Layout, weight: Layout | Primitive, y: Layout, window: Window, algorithm: int = DIRECT
) -> Primitive:
    """A convolution or one of its gradients, whose arrays `run` takes in the order of the kernels' parameters.

    Weights have shape (groups, K/groups, C/groups, kh, kw), and may lie as those of another convolution do. Raises
    RuntimeError where oneDNN has no implementation.
    """
    lib = library()
    layouts = [_described(layout) for layout in (x, weight, y)]
    a, b, c = (layout.value for layout in layouts)
    begin, end = zip(*window.pads, strict=True)
    numbers = window.stride, tuple(step - 1 for step in window.dilation), begin, end
    rest = *(DIMS(*values) for values in numbers), _attributes().value
    with lib.alone():  # oneDNN cuts work by the threads that there are when a primitive is made
        create = lib.convolution_forward_primitive_desc_create
        found = made(create, engine(), TRAINING, algorithm, a, b, None, c, *rest)
        if kind != "forward":
            forward, (*shape, attributes) = _Handle(found, lib.primitive_desc_destroy), rest
            data = kind == "data"
            create = getattr(lib, f"convolution_backward_{'data' if data else 'weights'}_primitive_desc_create")
            middle = (a, b, c) if data else (a, b, None, c)
            found = made(create, engine(), algorithm, *middle, *shape, forward.value, attributes)
        arguments = tuple((argument, _queried(found, query)) for argument, query in ROLES[kind])
        return Primitive(found, arguments, WEIGHTS[kind])


def reorder(source: Layout | Primitive, target: Layout | Primitive) -> Primitive:
    """What copies an array of one layout into one of another; a primitive stands for the layout of its weights."""
    lib = library()
    given, wanted = _described(source), _described(target)
    with lib.alone():
        create = lib.reorder_primitive_desc_create
        found = made(create, given.value, engine(), wanted.value, engine(), _attributes().value)
        return Primitive(found, ((1, _queried(found, 129)), (17, _queried(found, 133))))


@lru_cache(maxsize=1)
def engine() -> c_void_p:
    """The CPU. It lives as long as the process."""
    return made(library().engine_create, CPU, 0)


class _Handle:
    """An object of oneDNN's, destroyed with this one."""

    def __init__(self, value: c_void_p, destroy: Any) -> None:
        self.value = value
        weakref.finalize(self, destroy, value).atexit = False


@lru_cache(maxsize=1)
def _attributes() -> _Handle:
    """What all primitives have in common."""
    lib = library()
    attributes = made(lib.primitive_attr_create)
    lib.primitive_attr_set_scratchpad_mode(attributes, USER_SCRATCH)
    lib.primitive_attr_set_fpmath_mode(attributes, STRICT)
    return _Handle(attributes, lambda _: None)


def _described(layout: Layout | Primitive) -> _Handle:
    """A memory descriptor; that of its weights for a primitive."""
    if isinstance(layout, Primitive):
        return _Handle(layout.layouts[layout.weights], lambda _: None)
    lib, count, shape = library(), len(layout.shape), DIMS(*layout.shape)
    if layout.strides is None:
        found = made(lib.memory_desc_create_with_tag, count, shape, F32, ANY)
    else:
        found = made(lib.memory_desc_create_with_strides, count, shape, F32, DIMS(*layout.strides))
    return _Handle(found, lib.memory_desc_destroy)


def _queried(description: c_void_p, query: int) -> c_void_p:
    """A memory descriptor of a primitive descriptor, to which it belongs."""
    found = c_void_p()
    library().primitive_desc_query(description, query, 0, byref(found))
    return found
