// The patches that a convolution's kernel sees, as columns and as rows; there and back. Twin: `_fast/patches.py`.
#include "common.cuh"

// x (N, C, H, W) -> cols (N, C, kh, kw, oh, ow), in C order.
extern "C" __global__ void im2col(const real* x, Axes steps, real* cols, Axes shape, Windows windows) {
    Line rows = windows.rows, columns = windows.columns;
    long long count = shape.n * shape.c * rows.kernel * columns.kernel * rows.count * columns.count;
    for (long long item = first_item(); item < count; item += item_step()) {
        long long left = item;
        long long j = cut(left, columns.count), i = cut(left, rows.count);
        long long q = cut(left, columns.kernel), p = cut(left, rows.kernel), c = cut(left, shape.c);
        long long h = under(rows, i, p), w = under(columns, j, q);
        bool inside = h >= 0 && h < shape.h && w >= 0 && w < shape.w;
        cols[item] = inside ? x[left * steps.n + c * steps.c + h * steps.h + w * steps.w] : (real)0;
    }
}

// cols (N, C, kh, kw, oh, ow), in C order -> x (N, C, H, W): each element of x gathers what lies over it.
extern "C" __global__ void col2im(
    const real* cols, real* x, Axes steps, Axes shape, Windows windows, long long pixels
) {
    Line rows = windows.rows, columns = windows.columns;
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real total = 0;
        for (long long p = 0; p < rows.kernel; p++) {
            long long i = over(rows, at.h, p);
            if (i < 0) continue;
            for (long long q = 0; q < columns.kernel; q++) {
                long long j = over(columns, at.w, q);
                if (j < 0) continue;
                long long patch = ((at.n * shape.c + at.c) * rows.kernel + p) * columns.kernel + q;
                total = total + cols[(patch * rows.count + i) * columns.count + j];
            }
        }
        x[offset(at, steps)] = total;
    }
}

// x (N, C, H, W) -> `count` rows of patches from row `first` on, each (kh, kw, C), in C order.
extern "C" __global__ void unfold(
    const real* x, Axes steps, real* out, Axes shape, Windows windows, long long first, long long count
) {
    Line rows = windows.rows, columns = windows.columns;
    long long all = count * rows.kernel * columns.kernel * shape.c;
    for (long long item = first_item(); item < all; item += item_step()) {
        long long left = item;
        long long c = cut(left, shape.c), q = cut(left, columns.kernel), p = cut(left, rows.kernel);
        left += first;
        long long j = cut(left, columns.count), i = cut(left, rows.count);
        long long h = under(rows, i, p), w = under(columns, j, q);
        bool inside = h >= 0 && h < shape.h && w >= 0 && w < shape.w;
        out[item] = inside ? x[left * steps.n + c * steps.c + h * steps.h + w * steps.w] : (real)0;
    }
}

// All rows of patches, in C order -> dx (N, C, H, W): each element of dx gathers what lies over it.
extern "C" __global__ void fold(
    const real* patches, real* dx, Axes steps, Axes shape, Windows windows, long long pixels
) {
    Line rows = windows.rows, columns = windows.columns;
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real total = 0;
        for (long long p = 0; p < rows.kernel; p++) {
            long long i = over(rows, at.h, p);
            if (i < 0) continue;
            for (long long q = 0; q < columns.kernel; q++) {
                long long j = over(columns, at.w, q);
                if (j < 0) continue;
                long long row = (at.n * rows.count + i) * columns.count + j;
                total = total + patches[((row * rows.kernel + p) * columns.kernel + q) * shape.c + at.c];
            }
        }
        dx[offset(at, steps)] = total;
    }
}
