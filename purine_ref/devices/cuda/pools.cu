// Pooling windows: the maximum and the average of each, and their gradients. Twin: `_fast/pools.py`.
#include "common.cuh"

// The shape of what has one element for each window.
__device__ __forceinline__ Axes pooled(Axes shape, Windows windows) {
    Axes result = {shape.n, shape.c, windows.rows.count, windows.columns.count};
    return result;
}

// Of the window that begins at `start`, the elements before `stop` that lie in the image: from `from` to `to`.
__device__ __forceinline__ void inside(Line line, long long window, long long length, long long& from, long long& to) {
    from = under(line, window, 0);
    to = from + line.kernel < length ? from + line.kernel : length;
    from = from > 0 ? from : 0;
}

// Only a NaN differs from itself.
__device__ __forceinline__ bool is_nan(real value) {
    return value != value;
}

// x (N, C, H, W) -> y and the winners' places in their planes, both (N, C, oh, ow).
extern "C" __global__ void max_pool(
    const real* x, Axes steps, real* y, Axes to_y, long long* index, Axes to_index, Axes shape, Windows windows,
    long long pixels
) {
    Axes size = pooled(shape, windows);
    long long count = elements(size);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, size, pixels);
        long long top, bottom, left, right;
        inside(windows.rows, at.h, shape.h, top, bottom);
        inside(windows.columns, at.w, shape.w, left, right);
        const real* plane = x + at.n * steps.n + at.c * steps.c;
        real best = plane[top * steps.h + left * steps.w];
        long long winner = top * shape.w + left;
        for (long long h = top; h < bottom; h++) {
            for (long long w = left; w < right; w++) {
                real value = plane[h * steps.h + w * steps.w];
                if (value > best || (is_nan(value) && !is_nan(best))) {
                    best = value;
                    winner = h * shape.w + w;
                }
            }
        }
        y[offset(at, to_y)] = best;
        index[offset(at, to_index)] = winner;
    }
}

// dy and index (N, C, oh, ow) -> dx (N, C, H, W), for any index. One thread adds up a whole plane, window by window, so
// the order is that of the windows; what points out of the plane is left out.
extern "C" __global__ void max_pool_scatter(
    const real* dy, Axes steps, const long long* index, Axes to_index, real* dx, Axes to_dx, Axes shape, Axes size
) {
    long long planes = shape.n * shape.c, area = shape.h * shape.w;
    for (long long item = first_item(); item < planes; item += item_step()) {
        long long n = item;
        long long c = cut(n, shape.c);  // neighbours are channels, which lie together where images are channels-last
        real* plane = dx + n * to_dx.n + c * to_dx.c;
        for (long long h = 0; h < shape.h; h++) {
            for (long long w = 0; w < shape.w; w++) plane[h * to_dx.h + w * to_dx.w] = 0;
        }
        for (long long i = 0; i < size.h; i++) {
            for (long long j = 0; j < size.w; j++) {
                Axes at = {n, c, i, j};
                long long h = index[offset(at, to_index)];
                if (h < 0 || h >= area) continue;
                long long w = cut(h, shape.w);
                real* target = plane + h * to_dx.h + w * to_dx.w;
                *target = *target + dy[offset(at, steps)];
            }
        }
    }
}

// The same where each index lies in its window, as `max_pool` gives it: each element of dx gathers the gradients of the
// windows over it that it won.
extern "C" __global__ void max_pool_gather(
    const real* dy, Axes steps, const long long* index, Axes to_index, real* dx, Axes to_dx, Axes shape,
    Windows windows, long long pixels
) {
    Line rows = windows.rows, columns = windows.columns;
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        long long own = at.h * shape.w + at.w;
        real total = 0;
        for (long long p = rows.kernel - 1; p >= 0; p--) {  // the last position has the first window over it
            long long i = over(rows, at.h, p);
            if (i < 0) continue;
            for (long long q = columns.kernel - 1; q >= 0; q--) {
                long long j = over(columns, at.w, q);
                if (j < 0) continue;
                Axes window = {at.n, at.c, i, j};
                if (index[offset(window, to_index)] == own) total = total + dy[offset(window, steps)];
            }
        }
        dx[offset(at, to_dx)] = total;
    }
}

// How many elements of a window count: those in the image, and if `padded` in its declared padding.
__device__ __forceinline__ long long counted(Line line, long long window, long long length, long long padded) {
    long long from = under(line, window, 0), to = from + line.kernel;
    long long low = padded ? -line.pad : 0, high = padded ? length + line.end : length;
    return (to < high ? to : high) - (from > low ? from : low);
}

__device__ __forceinline__ real divisor(Windows windows, long long i, long long j, Axes shape, long long padded) {
    return (real)(counted(windows.rows, i, shape.h, padded) * counted(windows.columns, j, shape.w, padded));
}

// x (N, C, H, W) -> y (N, C, oh, ow).
extern "C" __global__ void average_pool(
    const real* x, Axes steps, real* y, Axes to_y, Axes shape, Windows windows, long long padded, long long pixels
) {
    Axes size = pooled(shape, windows);
    long long count = elements(size);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, size, pixels);
        long long top, bottom, left, right;
        inside(windows.rows, at.h, shape.h, top, bottom);
        inside(windows.columns, at.w, shape.w, left, right);
        const real* plane = x + at.n * steps.n + at.c * steps.c;
        real total = 0;
        for (long long h = top; h < bottom; h++) {
            for (long long w = left; w < right; w++) total = total + plane[h * steps.h + w * steps.w];
        }
        y[offset(at, to_y)] = total / divisor(windows, at.h, at.w, shape, padded);
    }
}

// dy (N, C, oh, ow) -> dx (N, C, H, W): each element of dx gathers its share of the windows over it.
extern "C" __global__ void average_pool_scatter(
    const real* dy, Axes steps, real* dx, Axes to_dx, Axes shape, Windows windows, long long padded, long long pixels
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
                Axes window = {at.n, at.c, i, j};
                total = total + dy[offset(window, steps)] / divisor(windows, i, j, shape, padded);
            }
        }
        dx[offset(at, to_dx)] = total;
    }
}
