// The ReLU, its gradient, and the updates of parameters. Twin: `_fast/elements.py`.
//
// All arrays of a call have one shape; an output may be one of the inputs, since a thread reads an element before it
// writes it and no other thread needs it.
#include "common.cuh"

// out = 0 where `by` <= 0, x elsewhere: the ReLU where `by` is x, its gradient where that is the output.
extern "C" __global__ void relu_gradient(
    const real* x, Axes steps, const real* by, Axes to_by, real* out, Axes to_out, Axes shape, long long pixels
) {
    long long count = elements(shape);
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        out[offset(at, to_out)] = by[offset(at, to_by)] <= 0 ? (real)0 : x[offset(at, steps)];
    }
}

// The numbers of an update, but the rate, which lies in the GPU's memory, since it is an array that the host need not
// wait for; `carry` is the momentum, or AdaGrad's epsilon. The state is the history, or the squares.
struct Numbers {
    real carry, decay;
};

// Caffe's rule: the rate is inside the history.
extern "C" __global__ void momentum_update(
    const real* weight, Axes w, const real* gradient, Axes g, const real* state, Axes s,
    real* new_weight, Axes nw, real* new_state, Axes ns, Axes shape, const real* rate,
    Numbers numbers, long long pixels
) {
    long long count = elements(shape);
    const real lr = *rate;
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real old = weight[offset(at, w)];
        real slope = gradient[offset(at, g)] + old * numbers.decay;
        real moved = state[offset(at, s)] * numbers.carry + slope * lr;
        new_weight[offset(at, nw)] = old - moved;
        new_state[offset(at, ns)] = moved;
    }
}

// torch's rule: the rate is outside the history.
extern "C" __global__ void torch_update(
    const real* weight, Axes w, const real* gradient, Axes g, const real* state, Axes s,
    real* new_weight, Axes nw, real* new_state, Axes ns, Axes shape, const real* rate,
    Numbers numbers, long long pixels
) {
    long long count = elements(shape);
    const real lr = *rate;
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real old = weight[offset(at, w)];
        real slope = gradient[offset(at, g)] + old * numbers.decay;
        real moved = state[offset(at, s)] * numbers.carry + slope;
        new_weight[offset(at, nw)] = old - moved * lr;
        new_state[offset(at, ns)] = moved;
    }
}

// AdaGrad.
extern "C" __global__ void adagrad_update(
    const real* weight, Axes w, const real* gradient, Axes g, const real* state, Axes s,
    real* new_weight, Axes nw, real* new_state, Axes ns, Axes shape, const real* rate,
    Numbers numbers, long long pixels
) {
    long long count = elements(shape);
    const real lr = *rate;
    for (long long item = first_item(); item < count; item += item_step()) {
        Axes at = place(item, shape, pixels);
        real old = weight[offset(at, w)];
        real slope = gradient[offset(at, g)] + old * numbers.decay;
        real grown = state[offset(at, s)] + slope * slope;
        new_weight[offset(at, nw)] = old - slope * lr / (sqrt(grown) + numbers.carry);
        new_state[offset(at, ns)] = grown;
    }
}
