"""The dispatcher: starts an operator when all its input edges are satisfied (rule R2).

Two workers share one lock, which guards all that changes in a run. Operators compute outside it.
"""

import collections
import threading

import npy


class RunFailed(Exception):
    """An operator failed. The next run is clean."""


class Dispatcher:
    """Runs the graph of a case over its memory. `compute(operator, inputs)` gives the output lists of an operator."""

    def __init__(self, case, memory, trace, compute, workers=2):
        self.case = case
        self.memory = memory
        self.trace = trace
        self.compute = compute
        self.workers = workers
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)

    def run(self, iteration, schedule=None):
        """Run once. `schedule` is None, or the names of all operators in the order in which they must start."""
        self.iteration = iteration
        self.order = None if schedule is None else collections.deque(schedule)
        self.failure = None
        self.computing = 0
        self.left = len(self.case.operators)
        self.busy = set()  # the streams of devices on which an operator computes
        self.waiting = {op.name: self.count_inputs(op) for op in self.case.operators.values()}
        self.missing = {blob.name: len(blob.producers) for blob in self.case.blobs.values()}
        self.contributions = {blob.name: {} for blob in self.case.blobs.values()}
        self.ready = collections.deque(op for op in self.case.operators.values() if self.waiting[op.name] == 0)
        self.event("begin")
        threads = [threading.Thread(target=self.work, args=(f"w{n}",), daemon=True) for n in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            self.event("failed")
            raise RunFailed(self.failure)
        self.event("finish")

    def count_inputs(self, operator):
        """Input edges to be satisfied: those from blobs that an operator writes. A blob wired twice counts twice."""
        return sum(1 for blob in operator.inputs if blob.producers)

    def work(self, worker):
        """One worker: take, compute, deliver, until nothing is left or an operator failed."""
        while (operator := self.take(worker)) is not None:
            try:
                outputs = self.compute(operator, [self.memory.get(blob) for blob in operator.inputs])
                self.transfer(operator)
                self.deliver(operator, outputs, worker)
            except Exception as error:
                self.fail(operator, error)

    def take(self, worker):
        """The next operator to start; sleeps while there is none. None when the run is over."""
        with self.lock:
            while self.left and self.failure is None:
                operator = self.startable()
                if operator is not None:
                    self.computing += 1
                    self.event("start", op=operator.name, worker=worker)
                    return operator
                if self.computing == 0:
                    self.failure = "no operator can start: the schedule is not an order of this graph"
                else:
                    self.changed.wait()
            self.changed.notify_all()
            return None

    def startable(self):
        """An operator that may start now, taken from the queue: the first whose stream is free, or the next in turn."""
        for operator in self.ready:
            in_turn = self.order is None or operator.name == self.order[0]
            if in_turn and operator.lane() not in self.busy:
                self.ready.remove(operator)
                if self.order is not None:
                    self.order.popleft()
                if operator.lane() is not None:
                    self.busy.add(operator.lane())
                return operator
        return None

    def transfer(self, operator):
        """A copy between ranks has two halves; here both are in one memory."""
        if operator.crosses_ranks():
            with self.lock:
                self.event("sent", op=operator.name)
                self.event("received", op=operator.name)

    def deliver(self, operator, outputs, worker):
        """Write what the operator made; its blobs that are complete satisfy the edges of their consumers."""
        with self.lock:
            self.write(operator, outputs)
            self.event("end", op=operator.name, worker=worker)
            self.busy.discard(operator.lane())
            self.left -= 1
            self.computing -= 1
            for blob in operator.outputs:
                self.missing[blob.name] -= 1
                if self.missing[blob.name] == 0:
                    self.complete(blob)
            self.changed.notify_all()

    def write(self, operator, outputs):
        """Write a blob with one producer; keep the contributions to the others until all are there."""
        for number, (blob, values) in enumerate(zip(operator.outputs, outputs, strict=True)):
            if len(blob.producers) == 1:
                self.memory.put(blob, values)
            else:
                self.contributions[blob.name][operator.name, number] = npy.cells(blob.dtype, values)

    def complete(self, blob):
        """All producers have delivered: add in the order of the edges (rule R4), then release the consumers."""
        if len(blob.producers) > 1:
            self.add_up(blob)
        self.event("ready", blob=blob.name)
        for operator in blob.consumers:
            self.waiting[operator.name] -= 1
            if self.waiting[operator.name] == 0:
                self.ready.append(operator)

    def add_up(self, blob):
        """The sum of the contributions, rounded to the dtype after every addition."""
        total = None
        for operator, number in blob.producers:
            part = self.contributions[blob.name][operator.name, number]
            if total is None:
                total = part
            else:
                for i, value in enumerate(part):
                    total[i] += value
            self.event("added", op=operator.name, blob=blob.name)
        self.memory.put(blob, total)

    def fail(self, operator, error):
        """Start nothing more (rule R12)."""
        with self.lock:
            self.event("failed", op=operator.name)
            self.computing -= 1
            self.failure = f"operator {operator.name!r}: {error}"
            self.changed.notify_all()

    def event(self, event, **facts):
        """A line of the trace."""
        self.trace.event(event, self.iteration, **facts)
