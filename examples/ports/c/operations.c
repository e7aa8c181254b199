/* The operations, in C order. Sums are taken in double, in a fixed order, and rounded to the dtype when they are stored. */
#include "port.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results
#define UNUSED (void)attributes, (void)inputs, (void)count, (void)outputs, (void)results

static const cJSON *attribute(const cJSON *attributes, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(attributes, name);
}

static double real_of(const cJSON *attributes, const char *name) {
    const cJSON *value = attribute(attributes, name);
    return cJSON_IsString(value) ? (value->valuestring[0] == '-' ? -INFINITY : INFINITY) : value->valuedouble;
}

long whole_of(const cJSON *attributes, const char *name) { return (long)real_of(attributes, name); }

void pair_of(const cJSON *attributes, const char *name, long pair[2]) {
    for (int i = 0; i < 2; i++) pair[i] = (long)cJSON_GetArrayItem(attribute(attributes, name), i)->valuedouble;
}

void begins_of(const cJSON *attributes, long begins[2]) {
    for (int i = 0; i < 2; i++) {
        const cJSON *sides = cJSON_GetArrayItem(attribute(attributes, "pads"), i);
        begins[i] = (long)cJSON_GetArrayItem(sides, 0)->valuedouble;
    }
}

/* The axis that an attribute names; negative ones count from the last. */
static int axis_of(const cJSON *attributes, const Tensor *tensor) {
    int axis = (int)whole_of(attributes, "axis");
    return axis < 0 ? axis + tensor->axes : axis;
}

/* The sum of `terms` products, taken from two arrays at regular steps. */
static double dot(const Cell *a, long a_step, const Cell *b, long b_step, long terms) {
    double sum = 0;
    for (long i = 0; i < terms; i++) sum += a[i * a_step].real * b[i * b_step].real;
    return sum;
}

/* y[n, o] = sum over i of x[n, i] weight[o, i] */
static void linear(ARGUMENTS) {
    UNUSED;
    long out = inputs[1].shape[0], features = inputs[1].shape[1];
    for (long at = 0; at < outputs->size; at++)
        store(outputs, at, dot(inputs[0].cells + at / out * features, 1, inputs[1].cells + at % out * features, 1, features));
}

/* dx[n, i] = sum over o of dy[n, o] weight[o, i] */
static void linear_data_gradient(ARGUMENTS) {
    UNUSED;
    long out = inputs[1].shape[0], features = inputs[1].shape[1];
    for (long at = 0; at < outputs->size; at++)
        store(outputs, at, dot(inputs[0].cells + at / features * out, 1, inputs[1].cells + at % features, features, out));
}

/* dweight[o, i] = sum over n of dy[n, o] x[n, i] */
static void linear_weight_gradient(ARGUMENTS) {
    UNUSED;
    long out = outputs->shape[0], features = outputs->shape[1], batch = inputs[0].shape[0];
    for (long at = 0; at < outputs->size; at++)
        store(outputs, at, dot(inputs[0].cells + at / features, out, inputs[1].cells + at % features, features, batch));
}

/* The index along an axis of the element at a place. */
static long along(const Tensor *tensor, int axis, long at) {
    return at / product(tensor->shape, axis + 1, tensor->axes) % tensor->shape[axis];
}

static void bias(ARGUMENTS) {
    UNUSED;
    int axis = axis_of(attributes, inputs);
    for (long at = 0; at < outputs->size; at++)
        store(outputs, at, inputs[0].cells[at].real + inputs[1].cells[along(inputs, axis, at)].real);
}

static void bias_gradient(ARGUMENTS) {
    UNUSED;
    int axis = axis_of(attributes, inputs);
    for (long at = 0; at < inputs->size; at++) outputs->cells[along(inputs, axis, at)].real += inputs->cells[at].real;
    for (long at = 0; at < outputs->size; at++) store(outputs, at, outputs->cells[at].real);
}

static bool passes(double value) { return value > 0 || isnan(value); }

static void relu(ARGUMENTS) {
    UNUSED;
    for (long at = 0; at < outputs->size; at++) {
        double value = inputs->cells[at].real;
        store(outputs, at, passes(value) ? value : 0);
    }
}

static void relu_gradient(ARGUMENTS) {
    UNUSED;
    for (long at = 0; at < outputs->size; at++)
        store(outputs, at, passes(inputs[1].cells[at].real) ? inputs[0].cells[at].real : 0);
}

/* The inputs added in their order, rounded after each addition. */
static void sum(ARGUMENTS) {
    UNUSED;
    for (long at = 0; at < outputs->size; at++) {
        store(outputs, at, inputs[0].cells[at].real);
        for (int i = 1; i < count; i++) store(outputs, at, outputs->cells[at].real + inputs[i].cells[at].real);
    }
}

static void multiply(ARGUMENTS) {
    UNUSED;
    for (long at = 0; at < outputs->size; at++) store(outputs, at, inputs[0].cells[at].real * inputs[1].cells[at].real);
}

static void scale(ARGUMENTS) {
    UNUSED;
    double factor = real_of(attributes, "factor");
    for (long at = 0; at < outputs->size; at++) store(outputs, at, inputs->cells[at].real * factor);
}

static void constant(ARGUMENTS) {
    UNUSED;
    double value = real_of(attributes, "value");
    for (long at = 0; at < outputs->size; at++) {
        if (outputs->dtype == INT64)
            outputs->cells[at].whole = (int64_t)value;
        else
            store(outputs, at, value);
    }
}

/* The input as it is, perhaps in another shape or at another place. */
static void identity(ARGUMENTS) {
    UNUSED;
    memcpy(outputs->cells, inputs->cells, (size_t)outputs->size * sizeof(Cell));
}

/* What a loss divides by: the samples of the whole batch for a mean, else 1. */
static double divisor(const cJSON *attributes, const Tensor *x) {
    const cJSON *samples = attribute(attributes, "samples");
    if (strcmp(attribute(attributes, "reduction")->valuestring, "sum") == 0) return 1;
    double seen = cJSON_IsNull(samples) ? (double)x->shape[0] : samples->valuedouble;
    return seen > 1 ? seen : 1;
}

static void squared_error(ARGUMENTS) {
    UNUSED;
    double squares = 0;
    for (long at = 0; at < inputs->size; at++) {
        double difference = inputs[0].cells[at].real - inputs[1].cells[at].real;
        squares += difference * difference;
    }
    store(outputs, 0, squares / 2 / divisor(attributes, inputs));
}

static void squared_error_gradient(ARGUMENTS) {
    UNUSED;
    double factor = real_of(attributes, "sign") * inputs[0].cells[0].real / divisor(attributes, &inputs[1]);
    for (long at = 0; at < outputs->size; at++)
        store(outputs, at, factor * (inputs[1].cells[at].real - inputs[2].cells[at].real));
}

/* history' = momentum history + lr (gradient + decay weight); weight' = weight - history' */
static void sgd(ARGUMENTS) {
    UNUSED;
    double lr = inputs[3].cells[0].real * real_of(attributes, "multiplier");
    double momentum = real_of(attributes, "momentum"), decay = real_of(attributes, "decay");
    for (long at = 0; at < outputs->size; at++) {
        double weight = inputs[0].cells[at].real, gradient = inputs[1].cells[at].real, history = inputs[2].cells[at].real;
        store(&outputs[1], at, momentum * history + lr * (gradient + decay * weight));
        store(&outputs[0], at, weight - outputs[1].cells[at].real);
    }
}

/* Copy `length` rows of an axis, from index `from` of `source` to index `to` of `target`. */
static void copy_along(int axis, const Tensor *source, long from, Tensor *target, long to, long length) {
    long inner = product(source->shape, axis + 1, source->axes), outer = product(source->shape, 0, axis);
    for (long n = 0; n < outer; n++)
        memcpy(target->cells + (n * target->shape[axis] + to) * inner,
               source->cells + (n * source->shape[axis] + from) * inner, (size_t)(length * inner) * sizeof(Cell));
}

static void concat(ARGUMENTS) {
    UNUSED;
    int axis = axis_of(attributes, outputs);
    for (long i = 0, to = 0; i < count; to += inputs[i++].shape[axis])
        copy_along(axis, &inputs[i], 0, outputs, to, inputs[i].shape[axis]);
}

static void split(ARGUMENTS) {
    UNUSED;
    int axis = axis_of(attributes, inputs);
    for (long i = 0, from = 0; i < results; from += outputs[i++].shape[axis])
        copy_along(axis, inputs, from, &outputs[i], 0, outputs[i].shape[axis]);
}

static void slice(ARGUMENTS) {
    UNUSED;
    int axis = axis_of(attributes, inputs);
    copy_along(axis, inputs, whole_of(attributes, "start"), outputs, 0, outputs->shape[axis]);
}

static void pad_slice(ARGUMENTS) {
    UNUSED;
    int axis = axis_of(attributes, inputs);
    copy_along(axis, inputs, 0, outputs, whole_of(attributes, "start"), inputs->shape[axis]);
}

const Operation OPERATIONS[] = {
    {"Bias", bias},
    {"BiasGradient", bias_gradient},
    {"Concat", concat},
    {"Constant", constant},
    {"Conv2d", convolve},
    {"Conv2dDataGradient", convolve_data},
    {"Conv2dWeightGradient", convolve_weight},
    {"Copy", identity},
    {"Identity", identity},
    {"Linear", linear},
    {"LinearDataGradient", linear_data_gradient},
    {"LinearWeightGradient", linear_weight_gradient},
    {"MaxPool2d", pool_maximum},
    {"MaxPool2dGradient", scatter_maximum},
    {"Mul", multiply},
    {"PadSlice", pad_slice},
    {"ReLU", relu},
    {"ReLUGradient", relu_gradient},
    {"Reshape", identity},
    {"SGD", sgd},
    {"Scale", scale},
    {"Slice", slice},
    {"Split", split},
    {"SquaredError", squared_error},
    {"SquaredErrorGradient", squared_error_gradient},
    {"Sum", sum},
    {NULL, NULL},
};
