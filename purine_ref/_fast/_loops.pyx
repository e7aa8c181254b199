# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twins of `loops.py`: the same names, signatures, errors, and bits, hence the same order of additions.

Each public function checks, finds the memory to read and write, and hands it to an inner loop that runs without the
interpreter's lock. `loops.py` and the files that it names document what each one computes; here, the same files end in
`.pxi`, and are parts of this one module. Built by `setup.py`, which forbids the compiler to fuse or reorder
floating-point operations; `__init__.py` decides whether this module is used.

Most loops have two spellings, by the order of memory: *by planes*, where the elements of an image's row are adjacent
(C order), and *by pixels*, where a pixel's channels are (channels-last). The innermost loop runs over what is adjacent,
and the first output decides. An array that has neither order, or another than the output, is copied first.
"""

from cython cimport view
from libc.math cimport INFINITY, NAN, sqrt, sqrtf
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp
import numpy as np

from purine_ref._fast.geometry import (
    FLOATS,
    convolved_size,
    divisors,
    philox_key,
    philox_range,
    require_alike,
    require_array,
    require_bias,
    require_channels,
    require_flat,
    require_index,
    require_out,
    require_places,
    require_rows,
    require_samples,
    require_shape,
    require_windows,
)

cnp.import_array()

# What this module was built for. `__init__.py` has the number that it must be: raise both together, whenever the
# signature or the meaning of a loop changes.
ABI = 6

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    #define purine_high_word(a, b) __umulh((a), (b))
    #else
    #define purine_high_word(a, b) ((uint64_t)(((unsigned __int128)(a) * (b)) >> 64))
    #endif

    /* A function of this type is compiled for vectors of 16 and of 32 bytes, and for those with masks, and the loader
       takes what the processor has. All give the same bits: no operation is fused or reordered, there are only more at
       a time. */
    #if !defined(__GNUC__) || defined(__clang__) || !defined(__x86_64__) || !defined(__GLIBC__)
    #define purine_vectorised void
    #elif __GNUC__ >= 12
    #define purine_vectorised __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"))) void
    #else
    #define purine_vectorised __attribute__((target_clones("avx2", "default"))) void
    #endif

    #if defined(__GNUC__)
    #define purine_prefetch(address) __builtin_prefetch(address)
    /* A function that is left out of line is compiled for vectors of 16 bytes alone, whoever calls it. */
    #define purine_inlined __attribute__((always_inline)) void
    #else
    #define purine_inlined void
    #define purine_prefetch(address) ((void)(address))
    #endif
    """
    uint64_t purine_high_word(uint64_t a, uint64_t b) nogil
    void purine_prefetch(const void* address) nogil
    ctypedef void vectorised "purine_vectorised"
    ctypedef void inlined "purine_inlined"

ctypedef fused real:
    float
    double

DEF FRAME = 4096  # elements of an image with its padding that is small enough to be copied before it is unfolded
DEF LANES = 16  # elements of a short loop of constant length, which is a few vectors
DEF BLOCK = 64  # elements at a time whose intermediate results stay in registers or the nearest cache
DEF AHEAD = 8  # pixels from one that is computed to one that is fetched into a cache

cdef struct Axis:
    # One spatial axis: the image's length, and how windows lie on it.
    Py_ssize_t length
    Py_ssize_t kernel
    Py_ssize_t stride
    Py_ssize_t pad
    Py_ssize_t dilation
    Py_ssize_t size

cdef struct Range:
    # Of windows or of kernel positions, those first <= i < stop. What `offset` is, the function says.
    Py_ssize_t first
    Py_ssize_t stop
    Py_ssize_t offset


cdef Axis _axis(int which, shape, kernel, stride, pads, dilation, size) except *:
    cdef Axis axis
    axis.length = shape[which + 2]
    axis.kernel = kernel[which]
    axis.stride = stride[which]
    axis.pad = pads[which][0]
    axis.dilation = dilation[which]
    axis.size = size[which]
    return axis


cdef inline Range _meet(Axis axis, Py_ssize_t position) noexcept nogil:
    # The windows whose kernel position lies on the image, 0 <= i stride + offset < length; window 0 touches `offset`.
    cdef Range found
    found.offset = position * axis.dilation - axis.pad
    found.first = 0 if found.offset >= 0 else (-found.offset - 1) // axis.stride + 1
    found.stop = 0 if found.offset >= axis.length else (axis.length - found.offset - 1) // axis.stride + 1
    found.stop = max(found.first, min(found.stop, axis.size))
    return found


cdef inline Range _inside(Axis axis, Py_ssize_t window) noexcept nogil:
    # The kernel positions of a window that lie on the image, 0 <= p dilation + offset < length. None of a window that
    # lies in the padding: then both bounds are still positions, or one beyond the last.
    cdef Range found
    found.offset = window * axis.stride - axis.pad
    found.first, found.stop = max(0, -found.offset), axis.length - found.offset
    if axis.dilation != 1:  # dividing takes a while
        found.first = (found.first + axis.dilation - 1) // axis.dilation
        found.stop = 0 if found.stop <= 0 else (found.stop - 1) // axis.dilation + 1
    found.first = min(found.first, axis.kernel)
    found.stop = max(found.first, min(found.stop, axis.kernel))
    return found


# How arrays are seen. An array in loop order has its adjacent elements on the last axis.


cdef bint _by_pixels(array) except -1:
    # Whether the channels of (N, C, ...) are adjacent.
    cdef cnp.ndarray known = array
    return cnp.PyArray_DIMS(known)[1] > 1 and cnp.PyArray_STRIDES(known)[1] == cnp.PyArray_ITEMSIZE(known)


cdef _image(array, bint pixels):
    # (N, C, H, W) in loop order: (N, H, W, C) or (N, C, H, W).
    return array.transpose(0, 2, 3, 1) if pixels else array


cdef _sheet(array, bint pixels):
    # (N, C, ...) in loop order with the image's elements on one axis: (N, M, C) or (N, C, M). May be a copy.
    if array.ndim == 4 and pixels:
        shape = array.shape
        return array.transpose(0, 2, 3, 1).reshape(shape[0], shape[2] * shape[3], shape[1])
    if array.ndim == 2:
        return array[:, None, :] if pixels else array[:, :, None]
    if pixels:
        array = array.transpose(0, *range(2, array.ndim), 1)
        return array.reshape(array.shape[0], _count(array.shape[1 : array.ndim - 1]), array.shape[array.ndim - 1])
    return array.reshape(array.shape[0], array.shape[1], _count(array.shape[2:]))


cdef Py_ssize_t _count(shape) except -1:
    cdef Py_ssize_t count = 1
    for length in shape:
        count *= length
    return count


cdef bint _adjacent(array) except -1:
    cdef Py_ssize_t last = array.ndim - 1
    return array.shape[last] <= 1 or array.strides[last] == array.itemsize


cdef _source(array):
    # To read: the array, or a copy, with adjacent elements on its last axis.
    return array if _adjacent(array) else np.ascontiguousarray(array)


cdef bint _is_view(array, out) except -1:
    # Whether an array that was made from `out` is a view of it, and not a copy: numpy names the owner of the memory.
    base = array.base
    return array is out or (base is not None and (base is out or base is out.base))


cdef _target(array, out):
    # To write, with adjacent elements on the last axis: the array if it is a view of `out`, else memory of its own,
    # from which `_settle` brings the result.
    if _adjacent(array) and _is_view(array, out):
        return array
    return np.empty(array.shape, array.dtype)


cdef int _settle(out, bint pixels, target) except -1:
    # Put into `out` what was written to `target`, unless it is there.
    if not _is_view(target, out):
        moved = out.transpose(0, *range(2, out.ndim), 1) if pixels else out
        moved[...] = target.reshape(moved.shape)
    return 0


cdef int _require_alike(dict arrays, dict outputs) except -1:
    # `require_alike`, but that nothing is called where all is well: small arrays are handled in little time.
    first = None
    for array in arrays.values():
        if first is None:
            first = array
            right = first.dtype in FLOATS
        right = right and array.shape == first.shape and array.dtype is first.dtype
    for array in outputs.values():
        right = right and array.shape == first.shape and array.dtype is first.dtype and array.flags.writeable
    if not right:
        require_alike(arrays, outputs)
    return 0


include "_arrays.pxi"
include "_patches.pxi"
include "_pools.pxi"
include "_channels.pxi"
include "_normalization.pxi"
include "_elements.pxi"
include "_draws.pxi"
include "_losses.pxi"
