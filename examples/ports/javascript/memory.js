// Where the blobs' elements are. A view has none of its own: it is a list of places in the memory of its root.
"use strict";

const path = require("node:path");
const npy = require("./npy.js");

class Memory {
  // Persistent blobs that `initial` does not name hold zeros.
  constructor(loaded) {
    this.case = loaded;
    this.cells = new Map(); // root -> its elements
    this.places = new Map(); // view -> its root, and where each of its elements is there
    for (const blob of loaded.blobs.values()) {
      if (blob.parent) this.places.set(blob.name, this.inside(blob));
      else this.cells.set(blob.name, npy.cells(blob.dtype, npy.count(blob.shape)));
    }
    for (const [name, file] of Object.entries(loaded.initial)) this.load(name, file);
  }

  // The view's elements in C order: the box of its parent, whose elements may be places in turn.
  inside(blob) {
    let flat = [0];
    blob.view.box.forEach(([start, stop], axis) => {
      const length = blob.parent.shape[axis];
      const next = [];
      for (const before of flat) for (let i = start; i < stop; i++) next.push(before * length + i);
      flat = next;
    });
    const outer = this.places.get(blob.parent.name);
    return outer ? { root: outer.root, at: flat.map((i) => outer.at[i]) } : { root: blob.parent.name, at: flat };
  }

  // Fill a blob from a file of the case.
  load(name, file) {
    const blob = this.case.blobs.get(name);
    this.put(blob, npy.read(path.join(this.case.folder, file), blob.dtype, blob.shape));
  }

  // A copy of the elements of a blob, in C order.
  get(blob) {
    const view = this.places.get(blob.name);
    if (!view) return this.cells.get(blob.name).slice();
    const cells = this.cells.get(view.root);
    const elements = npy.cells(blob.dtype, view.at.length);
    view.at.forEach((place, i) => (elements[i] = cells[place]));
    return elements;
  }

  // Write all elements of a blob.
  put(blob, elements) {
    const view = this.places.get(blob.name);
    if (!view) this.cells.get(blob.name).set(elements);
    else view.at.forEach((place, i) => (this.cells.get(view.root)[place] = elements[i]));
  }

  // Exchange the arrays of a pair (rule R6).
  exchange(current, following) {
    const kept = this.cells.get(current.name);
    this.cells.set(current.name, this.cells.get(following.name));
    this.cells.set(following.name, kept);
  }
}

module.exports = { Memory };
