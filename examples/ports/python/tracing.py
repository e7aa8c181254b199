"""The trace of all runs since a case was loaded."""

import json
import threading


class Trace:
    """Lines of purine-trace/1, kept until they are asked for."""

    def __init__(self):
        self.lines = [{"format": "purine-trace/1"}]
        self.lock = threading.Lock()

    def event(self, event, iteration, **facts):
        """Add one event."""
        with self.lock:
            self.lines.append({"seq": len(self.lines) - 1, "event": event, "iteration": iteration, **facts})

    def write(self, path):
        """Write all events, and that the dispatcher has stopped."""
        with self.lock, open(path, "w", encoding="utf-8") as file:
            for line in [*self.lines, {"seq": len(self.lines) - 1, "event": "stop"}]:
                file.write(json.dumps(line) + "\n")
