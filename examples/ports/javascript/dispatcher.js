// The dispatcher: starts an operator when all its input edges are satisfied (rule R2). One thread, so it needs no lock.
"use strict";

const npy = require("./npy.js");
const { crossesRanks } = require("./cases.js");

// An operator failed. The next run is clean.
class RunFailed extends Error {}

class Dispatcher {
  // `compute(operator, inputs)` gives a typed array for each output.
  constructor(loaded, memory, trace, compute) {
    this.case = loaded;
    this.memory = memory;
    this.trace = trace;
    this.compute = compute;
  }

  // Run once. `schedule` is null, or the names of all operators in the order in which they must start.
  run(iteration, schedule) {
    this.iteration = iteration;
    const operators = [...this.case.operators.values()];
    // A blob wired twice counts twice; one that no operator writes is ready from the start.
    this.waiting = new Map(operators.map((op) => [op, op.inputs.filter((blob) => blob.producers.length).length]));
    this.missing = new Map([...this.case.blobs.values()].map((blob) => [blob, blob.producers.length]));
    this.contributions = new Map();
    this.ready = operators.filter((op) => this.waiting.get(op) === 0);
    const order = schedule && schedule.map((name) => this.case.operators.get(name));
    this.event("begin", {});
    for (let left = operators.length; left > 0; left--) this.step(this.take(order));
    this.event("finish", {});
  }

  // The next operator to start: the first that is ready, or the next of the order.
  take(order) {
    const at = order ? this.ready.indexOf(order.shift()) : 0;
    if (at < 0 || at >= this.ready.length) {
      this.event("failed", {});
      throw new RunFailed("the next operator is not ready: the order is not one of this graph");
    }
    return this.ready.splice(at, 1)[0];
  }

  // Run one operator, from its start to the release of whom it makes ready.
  step(operator) {
    const op = operator.name;
    this.event("start", { op });
    try {
      const outputs = this.compute(operator, operator.inputs.map((blob) => this.memory.get(blob)));
      if (crossesRanks(operator)) {
        this.event("sent", { op });
        this.event("received", { op });
      }
      this.write(operator, outputs);
    } catch (error) {
      this.event("failed", { op });
      this.event("failed", {});
      throw new RunFailed(`operator ${op}: ${error.message}`);
    }
    this.event("end", { op });
    for (const blob of operator.outputs) {
      this.missing.set(blob, this.missing.get(blob) - 1);
      if (this.missing.get(blob) === 0) this.complete(blob);
    }
  }

  // Write a blob with one producer; keep the contributions to the others until all are there.
  write(operator, outputs) {
    operator.outputs.forEach((blob, number) => {
      if (blob.producers.length === 1) this.memory.put(blob, outputs[number]);
      else this.contributions.set(`${operator.name} ${number}`, outputs[number]);
    });
  }

  // All producers have delivered: add in the order of the edges (rule R4), then release the consumers.
  complete(blob) {
    if (blob.producers.length > 1) this.addUp(blob);
    this.event("ready", { blob: blob.name });
    for (const operator of blob.consumers) {
      this.waiting.set(operator, this.waiting.get(operator) - 1);
      if (this.waiting.get(operator) === 0) this.ready.push(operator);
    }
  }

  // The sum of the contributions; storing into a typed array rounds after every addition.
  addUp(blob) {
    const total = npy.cells(blob.dtype, npy.count(blob.shape));
    blob.producers.forEach(({ operator, number }, position) => {
      const part = this.contributions.get(`${operator.name} ${number}`);
      for (let i = 0; i < total.length; i++) total[i] = position ? total[i] + part[i] : part[i];
      this.event("added", { op: operator.name, blob: blob.name });
    });
    this.memory.put(blob, total);
  }

  event(event, facts) {
    this.trace.event(event, this.iteration, facts);
  }
}

module.exports = { Dispatcher, RunFailed };
