// A port in JavaScript, for Node.js, without packages: the one-shot form and the session of `purine-drive/1`.
//
//     node port.js --hello
//     node port.js CASE_DIR OUT_DIR
//     node port.js                      reads requests from the standard input
"use strict";

const path = require("node:path");
const readline = require("node:readline");
const npy = require("./npy.js");
const { Unsupported, readCase } = require("./cases.js");
const { Dispatcher, RunFailed } = require("./dispatcher.js");
const { Memory } = require("./memory.js");
const { OPERATIONS } = require("./operations.js");
const { Trace } = require("./tracing.js");

const HELLO = {
  protocol: "purine-drive/1",
  name: "purine-javascript",
  version: "1.0",
  operations: [...OPERATIONS.keys()].sort(),
  dtypes: ["float32", "float64", "int64"],
  workers: 1,
  schedules: true,
  streams: true,
  locations: true,
  views: true,
  trace: true,
};

// The outputs of an operator, as typed arrays.
function compute(operator, values) {
  const tensor = (blob, elements) => ({ ...blob, size: npy.count(blob.shape), values: elements });
  const inputs = operator.inputs.map((blob, i) => tensor(blob, values[i]));
  const outputs = operator.outputs.map((blob) => tensor(blob, null));
  const results = OPERATIONS.get(operator.operation)(operator.attributes, inputs, outputs);
  return results.map((elements, i) => {
    const rounded = npy.cells(outputs[i].dtype, outputs[i].size);
    rounded.set(elements);
    return rounded;
  });
}

// A case with its memory, as far as it has been run.
class Loaded {
  constructor(folder) {
    this.case = readCase(folder, OPERATIONS);
    this.memory = new Memory(this.case);
    this.trace = new Trace();
    this.dispatcher = new Dispatcher(this.case, this.memory, this.trace, compute);
    this.iteration = 0;
  }

  // Go on to an iteration: exchange the pairs but before the first, and fill the sources.
  feed(iteration) {
    if (iteration > 0) {
      for (const [current, following] of this.case.pairs) {
        this.memory.exchange(current, following);
        this.trace.event("swapped", iteration - 1, { blob: current.name });
      }
    }
    for (const [name, file] of Object.entries(this.case.feeds[iteration])) this.memory.load(name, file);
    this.iteration = iteration;
  }

  run(schedule) {
    this.dispatcher.run(this.iteration, schedule);
  }

  fetch(name, file) {
    const blob = this.case.blobs.get(name);
    npy.write(file, blob.dtype, blob.shape, this.memory.get(blob));
  }
}

// The one-shot form: all iterations, and every blob that the case expects.
function runOnce(folder, out) {
  const loaded = new Loaded(folder);
  for (let iteration = 0; iteration < loaded.case.iterations; iteration++) {
    loaded.feed(iteration);
    loaded.run(loaded.case.schedule);
    for (const entry of loaded.case.expected) {
      if (entry.iteration === iteration) loaded.fetch(entry.blob, path.join(out, entry.file));
    }
  }
  loaded.trace.write(path.join(out, "trace.jsonl"));
}

let loaded = null;

// The loaded case.
function need() {
  if (loaded === null) throw new RunFailed("no case is loaded");
  return loaded;
}

const REQUESTS = {
  hello() {
    loaded = null;
    return HELLO;
  },
  load(request) {
    loaded = new Loaded(request.case);
  },
  feed: (request) => need().feed(request.iteration),
  run: (request) => need().run(request.schedule),
  fetch: (request) => need().fetch(request.blob, request.file),
  trace: (request) => need().trace.write(request.file),
  stop() {},
};

// The reply to one request, without its number.
function answer(request) {
  try {
    if (!Object.hasOwn(REQUESTS, request.do)) throw new RunFailed(`there is no request ${request.do}`);
    return { ok: true, ...REQUESTS[request.do](request) };
  } catch (error) {
    let kind = "indefinite";
    if (error instanceof Unsupported) kind = "unsupported";
    else if (error instanceof RunFailed) kind = "definite"; // the next run is clean
    return { ok: false, error: { kind, message: error.message } };
  }
}

// Read a request a line, write a reply a line, until `stop` or the end.
async function serve() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    process.stdout.write(JSON.stringify({ seq: request.seq, ...answer(request) }) + "\n");
    if (request.do === "stop") break;
  }
  process.stdin.destroy(); // nothing else keeps the process alive
}

async function main(words) {
  if (words.length === 0) return serve();
  if (words[0] === "--hello") return console.log(JSON.stringify(HELLO));
  try {
    runOnce(words[0], words[1]);
  } catch (error) {
    if (!(error instanceof Unsupported)) throw error;
    console.error(`unsupported: ${error.message}`);
    process.exitCode = 3;
  }
}

main(process.argv.slice(2));
