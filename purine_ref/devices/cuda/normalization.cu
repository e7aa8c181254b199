// Normalisation across channels, and the sums over neighbouring channels. Twin: `_fast/normalization.py`.
//
// All arrays have one shape (N, C, H, W). `reach` is the number of neighbours on either side. Powers other than 0.75
// have kernels of their own, since those are of a mathematical library, whose last bits are its own.
#include "common.cuh"

// The sum from 0, by rising channel, of what lies around an element of `x`; of the squares if `squared`.
template <bool squared>
__device__ __forceinline__ real around(const real* x, Axes steps, Axes at, long long channels, long long reach) {
    long long from = at.c > reach ? at.c - reach : 0, to = at.c + reach < channels ? at.c + reach + 1 : channels;
    const real* pixel = x + at.n * steps.n + at.h * steps.h + at.w * steps.w;
    real total = 0;
    for (long long c = from; c < to; c++) {
        real value = pixel[c * steps.c];
        total = total + (squared ? value * value : value);
    }
    return total;
}

// scale = k + alpha/n times the sum of the squares.
struct Settings {
    real ratio, offset, beta;
};

template <bool power> __device__ __forceinline__ real normalised(real value, real scale, real beta);

template <> __device__ __forceinline__ real normalised<false>(real value, real scale, real) {
    real root = sqrt(scale);
    return value / (root * sqrt(root));
}

template <> __device__ __forceinline__ real normalised<true>(real value, real scale, real beta) {
    return value * pow(scale, -beta);
}

extern "C" __global__ void window_sum(
    const real* x, Axes steps, real* y, Axes to_y, Axes shape, long long reach, long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        y[offset(at, to_y)] = around<false>(x, steps, at, shape.c, reach);
    }
}

template <bool power>
__device__ __forceinline__ void normalise(
    const real* x, Axes steps, real* y, Axes to_y, Axes shape, long long reach, Settings settings, long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real scale = settings.offset + settings.ratio * around<true>(x, steps, at, shape.c, reach);
        y[offset(at, to_y)] = normalised<power>(x[offset(at, steps)], scale, settings.beta);
    }
}

extern "C" __global__ void lrn(
    const real* x, Axes steps, real* y, Axes to_y, Axes shape, long long reach, Settings settings, long long pixels
) {
    normalise<false>(x, steps, y, to_y, shape, reach, settings, pixels);
}

extern "C" __global__ void lrn_power(
    const real* x, Axes steps, real* y, Axes to_y, Axes shape, long long reach, Settings settings, long long pixels
) {
    normalise<true>(x, steps, y, to_y, shape, reach, settings, pixels);
}

// What the gradient adds up: `own` is dy normalised, `terms` is own x / scale.
template <bool power>
__device__ __forceinline__ void prepare(
    const real* dy, Axes to_dy, const real* x, Axes steps, real* own, Axes to_own, real* terms, Axes to_terms,
    Axes shape, long long reach, Settings settings, long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real scale = settings.offset + settings.ratio * around<true>(x, steps, at, shape.c, reach);
        real value = normalised<power>(dy[offset(at, to_dy)], scale, settings.beta);
        own[offset(at, to_own)] = value;
        terms[offset(at, to_terms)] = value * x[offset(at, steps)] / scale;
    }
}

extern "C" __global__ void lrn_terms(
    const real* dy, Axes to_dy, const real* x, Axes steps, real* own, Axes to_own, real* terms, Axes to_terms,
    Axes shape, long long reach, Settings settings, long long pixels
) {
    prepare<false>(dy, to_dy, x, steps, own, to_own, terms, to_terms, shape, reach, settings, pixels);
}

extern "C" __global__ void lrn_power_terms(
    const real* dy, Axes to_dy, const real* x, Axes steps, real* own, Axes to_own, real* terms, Axes to_terms,
    Axes shape, long long reach, Settings settings, long long pixels
) {
    prepare<true>(dy, to_dy, x, steps, own, to_own, terms, to_terms, shape, reach, settings, pixels);
}

// dx = own - factor x times the sum of the terms around it.
extern "C" __global__ void lrn_gradient(
    const real* x, Axes steps, const real* own, Axes to_own, const real* terms, Axes to_terms, real* dx, Axes to_dx,
    Axes shape, long long reach, real factor, long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real neighbours = around<false>(terms, to_terms, at, shape.c, reach);
        dx[offset(at, to_dx)] = own[offset(at, to_own)] - factor * x[offset(at, steps)] * neighbours;
    }
}
