"""A rank in another language, as it were: written from `docs/wire.md` alone, with ZeroMQ, JSON and nothing else.

It joins a world of two as rank 1, opens one graph, doubles every float64 array of tag 2 that comes from rank 0, sends
it back along tag 5, and leaves after as many as it is told.
"""

from __future__ import annotations

import array
import json
import sys
import time

import zmq

CHUNK = 524_288


class Peer:
    """Rank 1 of a world of two without keys."""

    def __init__(self, first: str) -> None:
        context = zmq.Context()
        self.router = context.socket(zmq.ROUTER)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.SNDHWM, 0)
        self.dealer.setsockopt(zmq.LINGER, 1000)
        self.dealer.connect(first)
        self.sent = self.received = self.acknowledged = 0
        self.say(
            "hello", magic="purine-ref", version=1, world=2, rank=1, to=0, run="", nonce="0123456789abcdef" * 2,
            listen=f"tcp://127.0.0.1:{port}", epoch=1,
        )  # fmt: skip

    def say(self, kind: str, **fields: object) -> None:
        """Send a message that is not sequenced."""
        self.dealer.send(json.dumps({"kind": kind, **fields}).encode())

    def send(self, kind: str, payload: bytes | None = None, **fields: object) -> None:
        """Send a sequenced message."""
        self.sent += 1
        header = {"kind": kind, "seq": self.sent, "ack": self.received, **fields}
        frames = [json.dumps(header).encode()] + ([] if payload is None else [payload])
        self.dealer.send_multipart(frames)

    def hear(self) -> tuple[dict, bytes]:
        """The next message, with its payload; what must be answered is."""
        while True:
            if not self.router.poll(500):
                self.say("beat", ack=self.received, waits=[])
                continue
            _, frame, *payload = self.router.recv_multipart()
            header = json.loads(frame)
            if "seq" in header:
                self.received += 1
                assert header["seq"] == self.received
            self.acknowledged = max(self.acknowledged, header.get("ack", 0))
            if header["kind"] == "hello":
                self.say("welcome", epoch=header["epoch"], received=self.received)
            elif header["kind"] == "ping":
                self.say("pong", at=header["at"], there=time.perf_counter())
            elif header["kind"] == "lost":
                raise SystemExit(header["reason"])
            return header, b"".join(payload)

    def meet(self) -> None:
        """Join."""
        kinds, pings = set(), 0
        while not ({"welcome", "table", "ready"} <= kinds and pings == 8):
            header, _ = self.hear()
            kinds.add(header["kind"])
            pings += header["kind"] == "pong"
            if header["kind"] in ("welcome", "pong") and pings < 8:
                self.say("ping", at=time.perf_counter())
            elif pings == 8 and "said" not in kinds:
                kinds.add("said")
                self.send("ready")

    def double(self, count: int) -> None:
        """Open the graph and do the work."""
        self.send("open", session=0, name="net", fingerprint="f" * 64, early=4)
        whole = b""
        while count:
            header, payload = self.hear()
            if header["kind"] != "data":
                continue
            whole += payload
            size = 8
            for axis in header["shape"]:
                size *= axis
            if len(whole) < size:
                continue
            values = array.array("d", whole)
            doubled = array.array("d", (2 * value for value in values)).tobytes()
            whole = b""
            count -= 1
            said = {"session": 0, "iteration": header["iteration"]}
            self.send("expect", routes=[[0, 2, header["iteration"]]])
            for offset in range(0, size, CHUNK):
                chunk = doubled[offset : offset + CHUNK]
                self.send("data", chunk, **said, tag=5, dtype="float64", shape=header["shape"], offset=offset)

    def leave(self) -> None:
        """Leave in peace."""
        self.send("bye")
        while self.acknowledged < self.sent:
            self.hear()


if __name__ == "__main__":
    peer = Peer(sys.argv[1])
    peer.meet()
    peer.double(int(sys.argv[2]))
    peer.leave()
