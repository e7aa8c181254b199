// Changes of layout: the same elements in another order of memory.
#include "common.cuh"

// x -> y, both (N, C, H, W), for any strides of either.
extern "C" __global__ void change_layout(
    const real* x, Axes steps, real* y, Axes to_y, Axes shape, long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        y[offset(at, to_y)] = x[offset(at, steps)];
    }
}
