"""A case folder: the graph that it describes, and what is fed and expected."""

import json
from dataclasses import dataclass, field
from pathlib import Path


class Unsupported(Exception):
    """The case needs something that this port leaves out on purpose."""


@dataclass
class Blob:
    """A tensor of the graph. `producers` and `consumers` have one entry for each edge (rule R2)."""

    name: str
    shape: tuple
    dtype: str
    rank: int
    persistent: bool
    parent: "Blob | None" = None
    box: tuple = ()
    producers: list = field(default_factory=list)  # (operator, number of its output), in the order of the edges
    consumers: list = field(default_factory=list)


@dataclass
class Operator:
    """An operator of the graph, and the blobs at its edges."""

    name: str
    operation: str
    attributes: dict
    inputs: list
    outputs: list
    stream: str
    location: dict

    def lane(self):
        """The stream of a device, which computes one operator at a time; None for a CPU, which has any number."""
        rank, device = self.location["rank"], self.location["device"]
        return None if device < 0 else (rank, device, self.stream)

    def crosses_ranks(self):
        """Whether it is a copy from one rank to another, which a trace shows as two halves."""
        return self.operation == "Copy" and self.inputs[0].rank != self.outputs[0].rank


class Case:
    """A case, read from its folder."""

    def __init__(self, folder, known):
        """`known` are the operations that the port has. Raises Unsupported for any other."""
        self.folder = Path(folder)
        text = json.loads((self.folder / "case.json").read_text("utf-8"))
        if text["format"] != "purine-case/1":
            raise Unsupported(f"cases of format {text['format']!r}")
        self.iterations = text["iterations"]
        self.schedule = text["schedule"]
        self.blobs = {}
        self.operators = {}
        for entry in text["graph"]["blobs"]:
            self._add_blob(entry)
        for entry in text["graph"]["operators"]:
            self._add_operator(entry, known)
        self.pairs = [(self.blobs[a], self.blobs[b]) for a, b in text["graph"]["pairs"]]
        self.initial = text["initial"]
        self.feeds = text["feeds"]
        self.expected = text["expected"]

    def _add_blob(self, entry):
        blob = Blob(
            entry["name"], tuple(entry["shape"]), entry["dtype"], entry["location"]["rank"], entry["persistent"]
        )
        if "view" in entry:
            blob.parent = self.blobs[entry["view"]["parent"]]
            blob.box = tuple(tuple(bounds) for bounds in entry["view"]["box"])
        self.blobs[blob.name] = blob

    def _add_operator(self, entry, known):
        if entry["operation"] not in known:
            raise Unsupported(f"operation {entry['operation']}")
        operator = Operator(
            entry["name"],
            entry["operation"],
            entry["attributes"],
            [self.blobs[name] for name in entry["inputs"]],
            [self.blobs[name] for name in entry["outputs"]],
            entry["stream"],
            entry["location"],
        )
        self.operators[operator.name] = operator
        for blob in operator.inputs:
            blob.consumers.append(operator)
        for number, blob in enumerate(operator.outputs):
            blob.producers.append((operator, number))
