// What the kernels of every family share: the element type, images with strides, windows, and loops over items.
//
// A family is compiled once for each element type, with -D REAL=float or -D REAL=double, and with -fmad=false: products
// and sums are rounded one by one, as the plain twins round them, so that bits are the same. For the same reason no
// kernel uses an atomic addition: whoever writes an element adds up all its terms, in the order that the twin states.
//
// Indices are 64 bits wide. Every kernel takes any grid of one dimension and any block of one dimension: its threads go
// over the items together, each in steps of the whole grid.

#pragma once

typedef REAL real;
typedef unsigned long long word;

// A number for each axis of (N, C, H, W): lengths, or strides in elements, which may be negative.
struct Axes {
    long long n, c, h, w;
};

// How windows lie on an image, and how many there are: an axis has `count` windows of `kernel` elements that are
// `dilation` apart; the first begins `pad` before the image, each other `stride` after the one before. `end` is the
// padding declared behind the image.
struct Line {
    long long count, kernel, stride, pad, end, dilation;
};

struct Windows {
    Line rows, columns;
};

__device__ __forceinline__ long long first_item() {
    return (long long)blockIdx.x * (long long)blockDim.x + (long long)threadIdx.x;
}

__device__ __forceinline__ long long item_step() {
    return (long long)gridDim.x * (long long)blockDim.x;
}

// `value` modulo `length`; `value` becomes the quotient. Neither is negative. A 64-bit division takes several times as
// long as one of 32 bits, which serves nearly always.
__device__ __forceinline__ long long cut(long long& value, long long length) {
    if (((value | length) >> 32) == 0) {
        unsigned int small = (unsigned int)value, by = (unsigned int)length;
        value = (long long)(small / by);
        return (long long)(small % by);
    }
    long long rest = value % length;
    value /= length;
    return rest;
}

// Item `i` of all elements of an image: counted with channels innermost where `pixels`, else in C order. It should be
// the order in which the output lies, since then neighbouring threads write neighbouring elements.
__device__ __forceinline__ Axes place(long long i, Axes shape, long long pixels) {
    Axes at;
    if (pixels) at.c = cut(i, shape.c);
    at.w = cut(i, shape.w);
    at.h = cut(i, shape.h);
    if (!pixels) at.c = cut(i, shape.c);
    at.n = i;
    return at;
}

__device__ __forceinline__ long long offset(Axes at, Axes strides) {
    return at.n * strides.n + at.c * strides.c + at.h * strides.h + at.w * strides.w;
}

__device__ __forceinline__ long long elements(Axes shape) {
    return shape.n * shape.c * shape.h * shape.w;
}

// The element of the axis, maybe outside the image, under position `p` of window `i`.
__device__ __forceinline__ long long under(Line line, long long i, long long p) {
    return i * line.stride + p * line.dilation - line.pad;
}

// The window whose position `p` lies on `element`, or -1 where there is none.
__device__ __forceinline__ long long over(Line line, long long element, long long p) {
    long long begin = element + line.pad - p * line.dilation;
    if (begin < 0) return -1;
    long long between = cut(begin, line.stride);
    return between == 0 && begin < line.count ? begin : -1;
}
