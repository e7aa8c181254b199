// Arrays in .npy files: version 1.0, little-endian, C order. Elements are in typed arrays, which round to the dtype.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const KINDS = {
  float32: { type: Float32Array, descr: "<f4", get: "getFloat32", set: "setFloat32" },
  float64: { type: Float64Array, descr: "<f8", get: "getFloat64", set: "setFloat64" },
  int64: { type: BigInt64Array, descr: "<i8", get: "getBigInt64", set: "setBigInt64" },
};
const HEADER = /^\{'descr': '([^']+)', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n$/;

function count(shape) {
  return shape.reduce((product, length) => product * length, 1);
}

// Memory for a number of elements, all 0.
function cells(dtype, length) {
  return new KINDS[dtype].type(length);
}

// The elements of an array whose dtype and shape are known. Throws for a file that is none.
function read(file, dtype, shape) {
  const data = fs.readFileSync(file);
  if (data.length < 10 || data.toString("latin1", 0, 8) !== "\x93NUMPY\x01\x00") {
    throw new Error(`${file}: not an array of version 1.0`);
  }
  const start = 10 + data.readUInt16LE(8);
  const header = HEADER.exec(data.toString("latin1", 10, start));
  if (header === null) throw new Error(`${file}: a header of another form`);
  const found = header[2].split(",").filter((word) => word.trim()).map(Number);
  const { descr, get, type } = KINDS[dtype];
  if (header[1] !== descr || found.join() !== shape.join()) {
    throw new Error(`${file}: expected ${dtype}[${shape}], got ${header[1]}[${found}]`);
  }
  const elements = cells(dtype, count(shape));
  const bytes = type.BYTES_PER_ELEMENT;
  if (data.length - start !== elements.length * bytes) throw new Error(`${file}: too long or too short`);
  const view = new DataView(data.buffer, data.byteOffset + start);
  for (let i = 0; i < elements.length; i++) elements[i] = view[get](i * bytes, true);
  return elements;
}

// Write an array; the folder is made if it is not there.
function write(file, dtype, shape, elements) {
  const { descr, set, type } = KINDS[dtype];
  const lengths = shape.join(", ") + (shape.length === 1 ? "," : "");
  let header = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${lengths}), }`;
  header += " ".repeat((64 - ((10 + header.length + 1) % 64)) % 64) + "\n";
  const start = 10 + header.length;
  const data = Buffer.alloc(start + elements.length * type.BYTES_PER_ELEMENT);
  data.write("\x93NUMPY\x01\x00", 0, "latin1");
  data.writeUInt16LE(header.length, 8);
  data.write(header, 10, "latin1");
  const view = new DataView(data.buffer, data.byteOffset + start);
  for (let i = 0; i < elements.length; i++) view[set](i * type.BYTES_PER_ELEMENT, elements[i], true);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, data);
}

module.exports = { cells, count, read, write };
