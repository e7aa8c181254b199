// Bias, bias with ReLU and its gradient, and the sums over each channel. Twin: `_fast/channels.py`.
//
// Images are (N, C, H, W). A channel's sum takes four elements of an image at a time, ((a + b) + (c + d)), and what is
// left at its end, all in float64. Those terms are made side by side, into (N, groups, C); then one thread for each
// channel adds its terms in their order.
#include "common.cuh"

// out may be x.
extern "C" __global__ void add_bias(
    const real* x, Axes steps, real* out, Axes to_out, Axes shape, const real* bias, long long bias_step,
    long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        out[offset(at, to_out)] = x[offset(at, steps)] + bias[at.c * bias_step];
    }
}

// out = v where v > 0 or v is a NaN, 0 elsewhere; out may be x.
extern "C" __global__ void bias_relu(
    const real* x, Axes steps, real* out, Axes to_out, Axes shape, const real* bias, long long bias_step,
    long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real value = x[offset(at, steps)] + bias[at.c * bias_step];
        out[offset(at, to_out)] = value <= 0 ? (real)0 : value;
    }
}

// Where the four elements of group `item` lie, in an image whose pixels count in row-major order: channels innermost.
struct Group {
    long long n, c, first, length;
};

__device__ __forceinline__ Group group(long long item, Axes shape) {
    long long area = shape.h * shape.w, groups = (area + 3) / 4;
    Group result;
    result.c = cut(item, shape.c);
    result.first = 4 * cut(item, groups);
    result.n = item;
    result.length = area - result.first < 4 ? area - result.first : 4;
    return result;
}

__device__ __forceinline__ Axes member(Group group, long long k, Axes shape) {
    long long h = group.first + k;
    long long w = cut(h, shape.w);
    Axes at = {group.n, group.c, h, w};
    return at;
}

__device__ __forceinline__ double term(const double* value, long long length) {
    if (length == 4) return (value[0] + value[1]) + (value[2] + value[3]);
    double total = value[0];
    for (long long k = 1; k < length; k++) total = total + value[k];
    return total;
}

extern "C" __global__ void bias_terms(const real* dy, Axes steps, double* terms, Axes shape) {
    long long count = shape.n * ((shape.h * shape.w + 3) / 4) * shape.c;
    for (long long item = first_item(); item < count; item += item_step()) {
        Group own = group(item, shape);
        double value[4];
        for (long long k = 0; k < own.length; k++) value[k] = (double)dy[offset(member(own, k, shape), steps)];
        terms[item] = term(value, own.length);
    }
}

// The same of dx = 0 where y <= 0, dy elsewhere, which is written too; dx may be dy or y.
extern "C" __global__ void relu_bias_terms(
    const real* dy, Axes steps, const real* y, Axes to_y, real* dx, Axes to_dx, double* terms, Axes shape
) {
    long long count = shape.n * ((shape.h * shape.w + 3) / 4) * shape.c;
    for (long long item = first_item(); item < count; item += item_step()) {
        Group own = group(item, shape);
        double value[4];
        for (long long k = 0; k < own.length; k++) {
            Axes at = member(own, k, shape);
            real kept = y[offset(at, to_y)] <= 0 ? (real)0 : dy[offset(at, steps)];
            dx[offset(at, to_dx)] = kept;
            value[k] = (double)kept;
        }
        terms[item] = term(value, own.length);
    }
}

// terms (rows, C) -> sums (C).
extern "C" __global__ void channel_sums(const double* terms, double* sums, long long rows, long long channels) {
    for (long long c = first_item(); c < channels; c += item_step()) {
        double total = 0;
        for (long long row = 0; row < rows; row++) total = total + terms[row * channels + c];
        sums[c] = total;
    }
}
