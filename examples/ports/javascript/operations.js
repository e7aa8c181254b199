// The operations, in C order. Numbers of this language are float64; storing a result rounds it to its dtype.
//
// Each function takes the attributes, the inputs and the outputs (shape, dtype, size and, for inputs, values) and
// returns the elements of each output. OPERATIONS has them by their names in cases.
"use strict";

const npy = require("./npy.js");
const windows = require("./windows.js");

// y[n, o] = sum over i of x[n, i] weight[o, i].
function linear(attributes, [x, weight], [y]) {
  const [out, features] = weight.shape;
  return [fill(y, (at) => {
    const [n, o] = [Math.floor(at / out), at % out];
    return sum(features, (i) => x.values[n * features + i] * weight.values[o * features + i]);
  })];
}

// dx[n, i] = sum over o of dy[n, o] weight[o, i].
function linearDataGradient(attributes, [dy, weight], [dx]) {
  const [out, features] = weight.shape;
  return [fill(dx, (at) => {
    const [n, i] = [Math.floor(at / features), at % features];
    return sum(out, (o) => dy.values[n * out + o] * weight.values[o * features + i]);
  })];
}

// dweight[o, i] = sum over n of dy[n, o] x[n, i].
function linearWeightGradient(attributes, [dy, x], [dweight]) {
  const [out, features] = dweight.shape;
  return [fill(dweight, (at) => {
    const [o, i] = [Math.floor(at / features), at % features];
    return sum(dy.shape[0], (n) => dy.values[n * out + o] * x.values[n * features + i]);
  })];
}

function sum(count, term) {
  let total = 0;
  for (let i = 0; i < count; i++) total += term(i);
  return total;
}

// The elements of an output, each from its place; rounded to its dtype.
function fill(output, element) {
  const values = npy.cells(output.dtype, output.size);
  for (let i = 0; i < values.length; i++) values[i] = element(i);
  return values;
}

// The index along an axis of the element at a place.
function along(shape, axis) {
  const own = axis < 0 ? axis + shape.length : axis;
  const inner = npy.count(shape.slice(own + 1));
  return (at) => Math.floor(at / inner) % shape[own];
}

function bias(attributes, [x, b], [y]) {
  const index = along(x.shape, attributes.axis);
  return [fill(y, (at) => x.values[at] + b.values[index(at)])];
}

function biasGradient(attributes, [dy], [dbias]) {
  const index = along(dy.shape, attributes.axis);
  const sums = new Float64Array(dbias.size);
  for (let at = 0; at < dy.size; at++) sums[index(at)] += dy.values[at];
  return [sums];
}

const passes = (value) => value > 0 || Number.isNaN(value);

function relu(attributes, [x], [y]) {
  return [fill(y, (at) => (passes(x.values[at]) ? x.values[at] : 0))];
}

function reluGradient(attributes, [dy, y], [dx]) {
  return [fill(dx, (at) => (passes(y.values[at]) ? dy.values[at] : 0))];
}

// The sum of the inputs, added in their order and rounded after each addition.
function total(attributes, inputs, [y]) {
  const values = fill(y, (at) => inputs[0].values[at]);
  for (const x of inputs.slice(1)) for (let at = 0; at < y.size; at++) values[at] += x.values[at];
  return [values];
}

function multiply(attributes, [a, b], [y]) {
  return [fill(y, (at) => a.values[at] * b.values[at])];
}

function scale(attributes, [x], [y]) {
  return [fill(y, (at) => x.values[at] * attributes.factor)];
}

function constant(attributes, inputs, [y]) {
  const value = y.dtype === "int64" ? BigInt(attributes.value) : Number(attributes.value);
  return [fill(y, () => value)];
}

function identity(attributes, [x]) {
  return [x.values];
}

// What a loss divides by: the samples of the whole batch for a mean, else 1.
function divisor(attributes, x) {
  if (attributes.reduction === "sum") return 1;
  return Math.max(attributes.samples === null ? x.shape[0] : attributes.samples, 1);
}

function squaredError(attributes, [x, target]) {
  const squares = sum(x.size, (i) => (x.values[i] - target.values[i]) ** 2);
  return [[squares / 2 / divisor(attributes, x)]];
}

function squaredErrorGradient(attributes, [dloss, x, target], [dx]) {
  const factor = (attributes.sign * dloss.values[0]) / divisor(attributes, x);
  return [fill(dx, (at) => factor * (x.values[at] - target.values[at]))];
}

// history' = momentum history + lr (gradient + decay weight); weight' = weight - history'.
function sgd(attributes, [weight, gradient, history, rate], [updated, moved]) {
  const lr = rate.values[0] * attributes.multiplier;
  const { momentum, decay } = attributes;
  const after = fill(moved, (at) => {
    return momentum * history.values[at] + lr * (gradient.values[at] + decay * weight.values[at]);
  });
  return [fill(updated, (at) => weight.values[at] - after[at]), after];
}

// Copy rows of elements from one tensor's axis to another's: `length` of them, from index `from` to index `to`.
function copyAlong(axis, source, from, target, to, length) {
  const own = axis < 0 ? axis + source.shape.length : axis;
  const inner = npy.count(source.shape.slice(own + 1));
  for (let n = 0; n < npy.count(source.shape.slice(0, own)); n++)
    for (let i = 0; i < length * inner; i++) {
      const place = (n * target.shape[own] + to) * inner + i;
      target.values[place] = source.values[(n * source.shape[own] + from) * inner + i];
    }
}

const lengthAlong = (tensor, axis) => tensor.shape[axis < 0 ? axis + tensor.shape.length : axis];

function concat(attributes, inputs, [y]) {
  const target = { ...y, values: npy.cells(y.dtype, y.size) };
  let to = 0;
  for (const x of inputs) {
    copyAlong(attributes.axis, x, 0, target, to, lengthAlong(x, attributes.axis));
    to += lengthAlong(x, attributes.axis);
  }
  return [target.values];
}

function split(attributes, [x], outputs) {
  let from = 0;
  return outputs.map((y, number) => {
    const target = { ...y, values: npy.cells(y.dtype, y.size) };
    copyAlong(attributes.axis, x, from, target, 0, attributes.sizes[number]);
    from += attributes.sizes[number];
    return target.values;
  });
}

function slice(attributes, [x], [y]) {
  const target = { ...y, values: npy.cells(y.dtype, y.size) };
  copyAlong(attributes.axis, x, attributes.start, target, 0, attributes.stop - attributes.start);
  return [target.values];
}

function padSlice(attributes, [x], [y]) {
  const target = { ...y, values: npy.cells(y.dtype, y.size) };
  copyAlong(attributes.axis, x, 0, target, attributes.start, lengthAlong(x, attributes.axis));
  return [target.values];
}

const OPERATIONS = new Map(Object.entries({
  Bias: bias,
  BiasGradient: biasGradient,
  Concat: concat,
  Constant: constant,
  Conv2d: windows.convolve,
  Conv2dDataGradient: windows.convolveData,
  Conv2dWeightGradient: windows.convolveWeight,
  Copy: identity,
  Identity: identity,
  Linear: linear,
  LinearDataGradient: linearDataGradient,
  LinearWeightGradient: linearWeightGradient,
  MaxPool2d: windows.poolMaximum,
  MaxPool2dGradient: windows.scatterMaximum,
  Mul: multiply,
  PadSlice: padSlice,
  ReLU: relu,
  ReLUGradient: reluGradient,
  Reshape: identity,
  SGD: sgd,
  Scale: scale,
  Slice: slice,
  Split: split,
  SquaredError: squaredError,
  SquaredErrorGradient: squaredErrorGradient,
  Sum: total,
}));

module.exports = { OPERATIONS };
