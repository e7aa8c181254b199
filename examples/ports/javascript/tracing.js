// The trace of all runs since a case was loaded.
"use strict";

const fs = require("node:fs");

class Trace {
  constructor() {
    this.lines = [{ format: "purine-trace/1" }];
  }

  event(event, iteration, facts) {
    this.lines.push({ seq: this.lines.length - 1, event, iteration, ...facts });
  }

  // Write all events, and that the dispatcher has stopped.
  write(file) {
    const lines = [...this.lines, { seq: this.lines.length - 1, event: "stop" }];
    fs.writeFileSync(file, lines.map((line) => JSON.stringify(line) + "\n").join(""));
  }
}

module.exports = { Trace };
