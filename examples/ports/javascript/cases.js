// A case folder: the graph that it describes, and what is fed and expected.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

// The case needs something that this port leaves out on purpose.
class Unsupported extends Error {}

// Read a case. `known` are the operations that the port has; throws Unsupported for any other.
function readCase(folder, known) {
  const text = JSON.parse(fs.readFileSync(path.join(folder, "case.json"), "utf8"));
  if (text.format !== "purine-case/1") throw new Unsupported(`cases of format ${text.format}`);
  const blobs = new Map();
  for (const entry of text.graph.blobs) {
    // `producers` and `consumers` have one entry for each edge (rule R2).
    const blob = { ...entry, producers: [], consumers: [], parent: null };
    if (entry.view) blob.parent = blobs.get(entry.view.parent);
    blobs.set(blob.name, blob);
  }
  const operators = new Map();
  for (const entry of text.graph.operators) {
    if (!known.has(entry.operation)) throw new Unsupported(`operation ${entry.operation}`);
    if (Object.values(entry.attributes).some(isLost)) throw new Unsupported("an integer that a double cannot hold");
    const operator = {
      ...entry,
      inputs: entry.inputs.map((name) => blobs.get(name)),
      outputs: entry.outputs.map((name) => blobs.get(name)),
    };
    operators.set(operator.name, operator);
    for (const blob of operator.inputs) blob.consumers.push(operator);
    operator.outputs.forEach((blob, number) => blob.producers.push({ operator, number }));
  }
  const pairs = text.graph.pairs.map(([current, following]) => [blobs.get(current), blobs.get(following)]);
  return { ...text, folder, blobs, operators, pairs };
}

// Whether JSON.parse has rounded an integer.
function isLost(value) {
  return Number.isInteger(value) && !Number.isSafeInteger(value);
}

// Whether an operator is a copy from one rank to another, which a trace shows as two halves.
function crossesRanks(operator) {
  return operator.operation === "Copy" && operator.inputs[0].location.rank !== operator.outputs[0].location.rank;
}

module.exports = { Unsupported, crossesRanks, readCase };
