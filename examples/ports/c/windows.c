/* Convolution and max pooling, in C order: images (N, C, H, W), weights (K, C/groups, kh, kw). */
#include "port.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    long stride[2], dilation[2], begin[2], groups;
} Window;

static Window window_of(const cJSON *attributes) {
    Window window;
    pair_of(attributes, "stride", window.stride);
    pair_of(attributes, "dilation", window.dilation);
    begins_of(attributes, window.begin);
    window.groups = whole_of(attributes, "groups");
    return window;
}

/* Where a product goes: the places of its three factors. `sums` are the elements that are added to. */
typedef void Visit(const Tensor *a, const Tensor *b, double *sums, long x, long weight, long y);

/* Visit every product of a convolution. The kernel is not flipped. */
static void products(Window window, const Tensor *x, const Tensor *weight, const Tensor *y, Visit *visit,
                     const Tensor *a, const Tensor *b, double *sums) {
    long depth = weight->shape[1], per_group = y->shape[1] / window.groups;
    for (long n = 0; n < y->shape[0]; n++)
        for (long k = 0; k < y->shape[1]; k++)
            for (long i = 0; i < y->shape[2]; i++)
                for (long j = 0; j < y->shape[3]; j++)
                    for (long c = 0; c < depth; c++)
                        for (long p = 0; p < weight->shape[2]; p++)
                            for (long q = 0; q < weight->shape[3]; q++) {
                                long row = i * window.stride[0] + p * window.dilation[0] - window.begin[0];
                                long column = j * window.stride[1] + q * window.dilation[1] - window.begin[1];
                                if (row < 0 || row >= x->shape[2] || column < 0 || column >= x->shape[3]) continue;
                                long channel = k / per_group * depth + c;
                                visit(a, b, sums,
                                      ((n * x->shape[1] + channel) * x->shape[2] + row) * x->shape[3] + column,
                                      ((k * depth + c) * weight->shape[2] + p) * weight->shape[3] + q,
                                      ((n * y->shape[1] + k) * y->shape[2] + i) * y->shape[3] + j);
                            }
}

static void to_y(const Tensor *x, const Tensor *weight, double *sums, long at_x, long at_weight, long at_y) {
    sums[at_y] += x->cells[at_x].real * weight->cells[at_weight].real;
}

static void to_x(const Tensor *dy, const Tensor *weight, double *sums, long at_x, long at_weight, long at_y) {
    sums[at_x] += dy->cells[at_y].real * weight->cells[at_weight].real;
}

static void to_weight(const Tensor *dy, const Tensor *x, double *sums, long at_x, long at_weight, long at_y) {
    sums[at_weight] += dy->cells[at_y].real * x->cells[at_x].real;
}

static double *new_sums(const Tensor *output) {
    double *sums = calloc(output->size > 0 ? (size_t)output->size : 1, sizeof *sums);
    if (sums == NULL) abort();
    return sums;
}

/* Round the sums, which were taken in double, to the output's dtype. */
static void finish(Tensor *output, double *sums) {
    for (long i = 0; i < output->size; i++) store(output, i, sums[i]);
    free(sums);
}

void convolve(const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results) {
    (void)count, (void)results;
    double *sums = new_sums(outputs);
    products(window_of(attributes), &inputs[0], &inputs[1], outputs, to_y, &inputs[0], &inputs[1], sums);
    finish(outputs, sums);
}

void convolve_data(const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results) {
    (void)count, (void)results;
    double *sums = new_sums(outputs);
    products(window_of(attributes), outputs, &inputs[1], &inputs[0], to_x, &inputs[0], &inputs[1], sums);
    finish(outputs, sums);
}

void convolve_weight(const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results) {
    (void)count, (void)results;
    double *sums = new_sums(outputs);
    products(window_of(attributes), &inputs[1], outputs, &inputs[0], to_weight, &inputs[0], &inputs[1], sums);
    finish(outputs, sums);
}

/* The winner of a window, a place in the plane: ties go to the first, NaN wins, padding never does. */
static long winner(const Cell *plane, const Tensor *x, const long begin[2], const long kernel[2]) {
    long best = -1;
    for (long row = begin[0]; row < begin[0] + kernel[0]; row++)
        for (long column = begin[1]; column < begin[1] + kernel[1]; column++) {
            if (row < 0 || row >= x->shape[2] || column < 0 || column >= x->shape[3]) continue;
            long place = row * x->shape[3] + column;
            double value = plane[place].real;
            if (best < 0 || value > plane[best].real || (isnan(value) && !isnan(plane[best].real))) best = place;
        }
    return best;
}

void pool_maximum(const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results) {
    (void)count, (void)results;
    const Tensor *x = inputs;
    Tensor *y = &outputs[0], *index = &outputs[1];
    long kernel[2], stride[2], pads[2], area = x->shape[2] * x->shape[3];
    pair_of(attributes, "kernel", kernel);
    pair_of(attributes, "stride", stride);
    begins_of(attributes, pads);
    for (long at = 0; at < y->size; at++) {
        long j = at % y->shape[3], i = at / y->shape[3] % y->shape[2], plane = at / (y->shape[3] * y->shape[2]);
        long begin[2] = {i * stride[0] - pads[0], j * stride[1] - pads[1]};
        long place = winner(x->cells + plane * area, x, begin, kernel);
        y->cells[at] = x->cells[plane * area + place];
        index->cells[at].whole = place;
    }
}

void scatter_maximum(const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results) {
    (void)attributes, (void)count, (void)results;
    const Tensor *dy = &inputs[0], *index = &inputs[1];
    long area = outputs->shape[2] * outputs->shape[3], windows = dy->shape[2] * dy->shape[3];
    double *sums = new_sums(outputs);
    for (long i = 0; i < dy->size; i++) sums[i / windows * area + index->cells[i].whole] += dy->cells[i].real;
    finish(outputs, sums);
}
