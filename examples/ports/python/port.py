"""A port in plain Python, without numpy: the one-shot form and the session of `purine-drive/1`.

    python port.py --hello
    python port.py CASE_DIR OUT_DIR
    python port.py                      reads requests from the standard input
"""

import json
import sys
from pathlib import Path

import npy
from cases import Case, Unsupported
from dispatcher import Dispatcher, RunFailed
from memory import Memory
from operations import OPERATIONS, Tensor
from tracing import Trace

HELLO = {
    "protocol": "purine-drive/1",
    "name": "purine-python",
    "version": "1.0",
    "operations": sorted(OPERATIONS),
    "dtypes": ["float32", "float64", "int64"],
    "workers": 2,
    "schedules": True,
    "streams": True,
    "locations": True,
    "views": True,
    "trace": True,
}


def compute(operator, values):
    """The outputs of an operator, as lists of elements."""
    inputs = [Tensor(blob.shape, blob.dtype, v) for blob, v in zip(operator.inputs, values, strict=True)]
    outputs = [Tensor(blob.shape, blob.dtype, None) for blob in operator.outputs]
    return OPERATIONS[operator.operation](operator.attributes, inputs, outputs)


class Loaded:
    """A case with its memory, as far as it has been run."""

    def __init__(self, folder):
        self.case = Case(folder, OPERATIONS)
        self.memory = Memory(self.case)
        self.trace = Trace()
        self.dispatcher = Dispatcher(self.case, self.memory, self.trace, compute, HELLO["workers"])
        self.iteration = 0

    def feed(self, iteration):
        """Go on to an iteration: exchange the pairs but before the first, and fill the sources."""
        if iteration > 0:
            for current, following in self.case.pairs:
                self.memory.exchange(current, following)
                self.trace.event("swapped", iteration - 1, blob=current.name)
        for name, file in self.case.feeds[iteration].items():
            self.memory.load(name, file)
        self.iteration = iteration

    def run(self, schedule):
        """Run the graph once."""
        self.dispatcher.run(self.iteration, schedule)

    def fetch(self, name, file):
        """Write what a blob holds."""
        blob = self.case.blobs[name]
        npy.write(Path(file), blob.dtype, blob.shape, self.memory.get(blob))


def run_once(folder, out):
    """The one-shot form: all iterations, and every blob that the case expects."""
    loaded = Loaded(folder)
    for iteration in range(loaded.case.iterations):
        loaded.feed(iteration)
        loaded.run(loaded.case.schedule)
        for entry in loaded.case.expected:
            if entry["iteration"] == iteration:
                loaded.fetch(entry["blob"], Path(out) / entry["file"])
    loaded.trace.write(Path(out) / "trace.jsonl")


class Session:
    """Answers requests until `stop`."""

    def __init__(self):
        self.loaded = None

    def answer(self, request):
        """The reply to one request, without its number."""
        try:
            return {"ok": True, **(self.act(request) or {})}
        except Unsupported as error:
            return refusal("unsupported", error)
        except RunFailed as error:  # the next run is clean
            return refusal("definite", error)
        except Exception as error:
            return refusal("indefinite", f"{type(error).__name__}: {error}")

    def act(self, request):
        """Do what is asked for; returns further keys of the reply, or None."""
        do = request["do"]
        if do == "hello":
            self.loaded = None
            return HELLO
        if do == "load":
            self.loaded = Loaded(request["case"])
        elif do == "feed":
            self.need().feed(request["iteration"])
        elif do == "run":
            self.need().run(request["schedule"])
        elif do == "fetch":
            self.need().fetch(request["blob"], request["file"])
        elif do == "trace":
            self.need().trace.write(request["file"])
        elif do != "stop":
            raise RunFailed(f"there is no request {do!r}")
        return None

    def need(self):
        """The loaded case."""
        if self.loaded is None:
            raise RunFailed("no case is loaded")
        return self.loaded


def refusal(kind, error):
    """A reply that says what went wrong."""
    return {"ok": False, "error": {"kind": kind, "message": str(error)}}


def serve(lines, out):
    """Read a request a line, write a reply a line, until `stop` or the end."""
    session = Session()
    for line in lines:
        request = json.loads(line)
        reply = {"seq": request["seq"], **session.answer(request)}
        print(json.dumps(reply), file=out, flush=True)
        if request["do"] == "stop":
            return


def main(arguments):
    """One of the three forms; returns the exit code."""
    if not arguments:
        serve(sys.stdin, sys.stdout)
    elif arguments == ["--hello"]:
        print(json.dumps(HELLO))
    else:
        try:
            run_once(*arguments)
        except Unsupported as error:
            print(f"unsupported: {error}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
