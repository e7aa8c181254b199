// Convolution and max pooling, in C order: images (N, C, H, W), weights (K, C/groups, kh, kw).
"use strict";

// Call `visit(x, weight, y)` with the places of the three factors of each product. The kernel is not flipped.
function products(attributes, xShape, weightShape, yShape, visit) {
  const [batch, channels, height, width] = xShape;
  const [, depth, kh, kw] = weightShape;
  const [, kernels, oh, ow] = yShape;
  const [sh, sw] = attributes.stride;
  const [dh, dw] = attributes.dilation;
  const [[top], [left]] = attributes.pads;
  const perGroup = kernels / attributes.groups;
  for (let n = 0; n < batch; n++)
    for (let k = 0; k < kernels; k++) {
      const first = Math.floor(k / perGroup) * depth; // the group's first input channel
      for (let i = 0; i < oh; i++)
        for (let j = 0; j < ow; j++)
          for (let c = 0; c < depth; c++)
            for (let p = 0; p < kh; p++) {
              const row = i * sh + p * dh - top;
              if (row < 0 || row >= height) continue;
              for (let q = 0; q < kw; q++) {
                const column = j * sw + q * dw - left;
                if (column < 0 || column >= width) continue;
                visit(
                  ((n * channels + first + c) * height + row) * width + column,
                  ((k * depth + c) * kh + p) * kw + q,
                  ((n * kernels + k) * oh + i) * ow + j,
                );
              }
            }
    }
}

function sums(length) {
  return new Float64Array(length);
}

// y gets x times weight.
function convolve(attributes, [x, weight], [y]) {
  const total = sums(y.size);
  products(attributes, x.shape, weight.shape, y.shape, (a, b, c) => (total[c] += x.values[a] * weight.values[b]));
  return [total];
}

// dx gets dy times weight; what no window touches stays 0.
function convolveData(attributes, [dy, weight], [dx]) {
  const total = sums(dx.size);
  products(attributes, dx.shape, weight.shape, dy.shape, (a, b, c) => (total[a] += dy.values[c] * weight.values[b]));
  return [total];
}

// dweight gets dy times x.
function convolveWeight(attributes, [dy, x], [dweight]) {
  const total = sums(dweight.size);
  products(attributes, x.shape, dweight.shape, dy.shape, (a, b, c) => (total[b] += dy.values[c] * x.values[a]));
  return [total];
}

// Each window's greatest element and its place in the plane. Ties go to the first, NaN wins, padding never does.
function poolMaximum(attributes, [x], [y]) {
  const [, , height, width] = x.shape;
  const [batch, channels, oh, ow] = y.shape;
  const [kh, kw] = attributes.kernel;
  const [sh, sw] = attributes.stride;
  const [[top], [left]] = attributes.pads;
  const values = sums(y.size);
  const places = new BigInt64Array(y.size);
  let window = 0;
  for (let plane = 0; plane < batch * channels; plane++)
    for (let i = 0; i < oh; i++)
      for (let j = 0; j < ow; j++, window++) {
        let best = -1;
        for (let row = Math.max(i * sh - top, 0); row < Math.min(i * sh - top + kh, height); row++)
          for (let column = Math.max(j * sw - left, 0); column < Math.min(j * sw - left + kw, width); column++) {
            const place = row * width + column;
            const value = x.values[plane * height * width + place];
            const most = best < 0 ? NaN : x.values[plane * height * width + best];
            if (best < 0 || value > most || (Number.isNaN(value) && !Number.isNaN(most))) best = place;
          }
        values[window] = x.values[plane * height * width + best];
        places[window] = BigInt(best);
      }
  return [values, places];
}

// Each dy goes to the element that won its window; windows that overlap add up.
function scatterMaximum(attributes, [dy, index], [dx]) {
  const [, , height, width] = dx.shape;
  const windows = dy.shape[2] * dy.shape[3];
  const total = sums(dx.size);
  for (let i = 0; i < dy.size; i++) total[Math.floor(i / windows) * height * width + Number(index.values[i])] += dy.values[i];
  return [total];
}

module.exports = { convolve, convolveData, convolveWeight, poolMaximum, scatterMaximum };
