"""Wrong dispatchers, and wrong memories, planted one at a time into the port in plain Python."""

from __future__ import annotations

from purine_ref.conformance.strength.faults import Fault, dispatcher

RELEASE = "            if self.waiting[operator.name] == 0:\n                self.ready.append(operator)"
TOTAL = "        self.memory.put(blob, total)"
ENDED = "            self.left -= 1\n            self.computing -= 1"
EDGES = "for operator, number in blob.producers:"
ONE_PRODUCER = "            if len(blob.producers) == 1:"

READINESS = (
    dispatcher(
        "early-fire", "an operator fires when its first edge is satisfied",
        (RELEASE, RELEASE.replace("== 0", "== self.count_inputs(operator) - 1")),
    ),
    dispatcher(
        "early-blob", "a blob is ready when its first producer has delivered",
        ("self.missing[blob.name] == 0", "self.missing[blob.name] == len(blob.producers) - 1"),
        ("part = self.contributions[blob.name][operator.name, number]",
         "part = self.contributions[blob.name].get((operator.name, number), [])"),
        ("total is None:", "not total:"),
    ),
    dispatcher(
        "early-views", "the edges of views are not waited for",
        ("for blob in operator.inputs if blob.producers)",
         "for blob in operator.inputs if blob.producers and blob.parent is None)"),
        ("for operator in blob.consumers:", "for operator in blob.consumers if blob.parent is None else ():"),
    ),
    dispatcher(
        "double-fire", "an operator of several inputs fires twice",
        ("            self.event(\"end\", op=operator.name, worker=worker)",
         "            self.event(\"end\", op=operator.name, worker=worker)\n"
         "            if len(operator.inputs) > 1:\n"
         "                self.event(\"start\", op=operator.name, worker=worker)\n"
         "                self.write(operator, outputs)\n"
         "                self.event(\"end\", op=operator.name, worker=worker)"),
    ),
    dispatcher(
        "count-blobs", "a blob wired twice is counted once, but satisfies two edges",
        ("sum(1 for blob in operator.inputs if blob.producers)",
         "len({blob.name for blob in operator.inputs if blob.producers})"),
    ),
    dispatcher(
        "release-once", "a blob wired twice is counted twice, but satisfies one edge",
        ("for operator in blob.consumers:", "for operator in {op.name: op for op in blob.consumers}.values():"),
    ),
    dispatcher(
        "lost-release", "of the consumers of a blob only the first two are released",
        ("for operator in blob.consumers:", "for operator in blob.consumers[:2]:"),
    ),
    dispatcher(
        "stale-counters", "the counters of edges are those that the run before has left",
        ("self.waiting = {", "self.waiting = self.waiting if iteration else {"),
    ),
    dispatcher(
        "left-out-last", "the last operator is left out where an order is given",
        ("self.left = len(self.case.operators)", "self.left = len(self.case.operators) - (schedule is not None)"),
    ),
    dispatcher(
        "end-too-late", "the end is told after the consumers are released",
        ("            self.event(\"end\", op=operator.name, worker=worker)\n", ""),
        ("                    self.complete(blob)\n",
         "                    self.complete(blob)\n            self.event(\"end\", op=operator.name, worker=worker)\n"),
    ),
    dispatcher(
        "streams-ignored", "a stream computes two operators at once",
        ("in_turn and operator.lane() not in self.busy", "in_turn"),
        ("                outputs = self.compute(",  # which takes longer, so that the other worker comes in
         "                threading.Event().wait(0.001)\n                outputs = self.compute("),
    ),
    dispatcher(
        "outputs-swapped", "outputs of one size are delivered in reversed order",
        ("        with self.lock:\n            self.write(operator, outputs)",
         "        with self.lock:\n"
         "            if len({len(values) for values in outputs}) == 1:\n"
         "                outputs = outputs[::-1]\n"
         "            self.write(operator, outputs)"),
    ),
    dispatcher(
        "inputs-sorted", "inputs of one size are handed over by their names",
        ("[self.memory.get(blob) for blob in operator.inputs]",
         "[self.memory.get(blob) for blob in sorted(operator.inputs, key=lambda b: (len(b.shape), b.name))]"),
    ),
)  # fmt: skip

ADDITIONS = (
    dispatcher("arrival-order", "contributions are added as they arrive",
               (EDGES, "for operator, number in self.arrived(blob):"),
               ("    def fail(self",
                "    def arrived(self, blob):\n"
                "        operators = self.case.operators\n"
                "        return [(operators[name], number) for name, number in self.contributions[blob.name]]\n\n"
                "    def fail(self")),
    dispatcher("reversed-order", "contributions are added from the last to the first, and the trace does not say so",
               (EDGES, "for (operator, number), (told, _) in zip(reversed(blob.producers), blob.producers):"),
               ("self.event(\"added\", op=operator.name", "self.event(\"added\", op=told.name")),
    dispatcher("schedule-order", "under an order, contributions are added from the last to the first",
               ("            self.add_up(blob)",
                "            right = blob.producers\n"
                "            blob.producers = right[::-1] if self.order is not None else right\n"
                "            self.add_up(blob)\n"
                "            blob.producers = right")),
    dispatcher("rounded-once", "a sum is rounded once, at its end",
               ("                total = part", "                total = list(part)")),
    dispatcher("last-wins", "the producer that delivers last overwrites the others",
               (ONE_PRODUCER, "            if blob.producers:"),
               ("        if len(blob.producers) > 1:\n            self.add_up",
               "        if False:\n            self.add_up")),
    dispatcher("onto-the-old", "contributions are added to what the blob held",
               ("        total = None\n", "        total = npy.cells(blob.dtype, self.memory.get(blob))\n")),
    dispatcher("mean-for-sum", "the mean of the contributions in place of their sum",
               (TOTAL, "        self.memory.put(blob, [value / len(blob.producers) for value in total])")),
    dispatcher("last-left-out", "of three producers or more the last is left out",
               ("                for i, value in enumerate(part):",
                "                last = len(blob.producers) > 2 and (operator, number) == blob.producers[-1]\n"
                "                for i, value in enumerate([] if last else part):")),
    dispatcher("one-in-a-hundred-lost", "in one run of 97 the last contribution is lost",
               ("        self.iteration = iteration\n",
                "        self.iteration = iteration\n        Dispatcher.runs = getattr(Dispatcher, \"runs\", 0) + 1\n"),
               ("                for i, value in enumerate(part):",
                "                last = Dispatcher.runs % 97 == 0 and (operator, number) == blob.producers[-1]\n"
                "                for i, value in enumerate([] if last else part):")),
    dispatcher("one-in-a-hundred-deadlock", "in one run of 97 a worker does not say that it is done",
               ("        self.iteration = iteration\n",
                "        self.iteration = iteration\n        Dispatcher.runs = getattr(Dispatcher, \"runs\", 0) + 1\n"),
               (ENDED, "            self.left -= 1\n            self.computing -= Dispatcher.runs % 97 > 0"),
               ("            while self.left and", "            while (self.left or self.computing) and")),
)  # fmt: skip

MOVEMENT = (
    dispatcher("copy-lost", "a copy between ranks sends in the first iteration only",
               ("        \"\"\"Write a blob with one producer",
                "        if operator.crosses_ranks() and self.iteration > 0:\n            return\n"
                "        \"\"\"Write a blob with one producer")),
    dispatcher("copies-swapped", "a copy between ranks delivers what the one before sent, where the size is the same",
               ("        \"\"\"Write a blob with one producer",
                "        if operator.crosses_ranks():\n"
                "            before, self.sent = getattr(self, \"sent\", outputs), outputs\n"
                "            outputs = before if len(before[0]) == len(outputs[0]) else outputs\n"
                "        \"\"\"Write a blob with one producer")),
    dispatcher("copy-not-received", "a copy between ranks does not tell that it was received",
               ("                self.event(\"received\", op=operator.name)\n", "")),
    dispatcher("trace-one-iteration", "every event is told of iteration 0",
               ("self.trace.event(event, self.iteration", "self.trace.event(event, 0")),
    dispatcher("views-apart", "a view has memory of its own", ("if blob.parent is None:",
    "if True:"), file="memory.py"),
    dispatcher("views-from-start", "a view begins where its parent does",
               ("range(start * step, stop * step, step)", "range(0, (stop - start) * step, step)"), file="memory.py"),
    dispatcher("views-of-root", "a view of a view is taken as one of the root",
               ("flat if places is None else [places[i] for i in flat]", "flat"), file="memory.py"),
    dispatcher("views-overwrite", "who writes a view clears the memory around it",
               ("            root, places = self._places[blob.name]\n            for i, value",
                "            root, places = self._places[blob.name]\n"
                "            self._cells[root][:] = npy.cells(blob.dtype, [0] * len(self._cells[root]))\n"
                "            for i, value"), file="memory.py"),
    dispatcher("old-memory", "memory that nobody has filled holds 7",
               ("[0] * math.prod(blob.shape)", "[7] * math.prod(blob.shape)"), file="memory.py"),
    dispatcher("pairs-kept", "pairs are not exchanged, and the trace says that they are",
               ("                self.memory.exchange(current, following)\n", ""), file="port.py"),
    dispatcher("pairs-silent", "pairs are exchanged, and the trace does not say so",
               ("                self.trace.event(\"swapped\", iteration - 1, blob=current.name)\n",
               ""), file="port.py"),
    dispatcher("pairs-first", "only the first pair is exchanged",
               ("in self.case.pairs:", "in self.case.pairs[:1]:"), file="port.py"),
    dispatcher("pairs-before", "pairs are exchanged before the first run too",
               ("if iteration > 0:", "if iteration >= 0:"), file="port.py"),
    dispatcher("pairs-one-array", "both names of a pair get one array",
               ("cells[following.name], cells[current.name]",
               "cells[following.name], cells[following.name]"), file="memory.py"),
    dispatcher("stale-feed", "every iteration gets the feeds of the first",
               ("self.case.feeds[iteration]", "self.case.feeds[0]"), file="port.py"),
)  # fmt: skip

DISPATCHERS: tuple[Fault, ...] = READINESS + ADDITIONS + MOVEMENT
"""All wrong dispatchers."""
