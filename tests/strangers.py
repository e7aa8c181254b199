"""Strangers at a port on which a rank listens: bytes that are not ZeroMQ's protocol, and messages that are not ours.

Everything is drawn from a seed. `MESSAGES` has one right header of each kind, to be made wrong in many ways; on a
connection that has not greeted, even a right one is to be refused.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from hooks import WATCH
from purine_ref.transports.keys import Keys

NONCE = "0123456789abcdef" * 2

MESSAGES: dict[str, dict[str, Any]] = {
    "hello": {"magic": "purine-ref", "version": 1, "world": 2, "rank": 1, "to": 0, "run": "", "nonce": NONCE,
              "listen": "tcp://127.0.0.1:9", "epoch": 1},
    "welcome": {"epoch": 1, "received": 0},
    "refuse": {"reason": "no"},
    "table": {"seq": 1, "ack": 0, "ranks": [["tcp://127.0.0.1:9", NONCE, ""], ["tcp://127.0.0.1:9", NONCE, "k" * 40]]},
    "ready": {"seq": 1, "ack": 0},
    "ping": {"at": 1.5},
    "pong": {"at": 1.5, "there": 2.5},
    "beat": {"ack": 0, "waits": [["receive", 0, 1, 2, 3], ["send", 0, 1, 2, 3], ["open", 0, 1, 0, 0]]},
    "ack": {"ack": 0},
    "open": {"seq": 1, "ack": 0, "session": 0, "name": "net", "fingerprint": "f" * 64, "early": 4},
    "data": {"seq": 1, "ack": 0, "session": 0, "tag": 0, "iteration": 0, "dtype": "float64", "shape": [5, 3],
             "offset": 0},
    "expect": {"seq": 1, "ack": 0, "routes": [[0, 1, 2]]},
    "want": {"seq": 1, "ack": 0, "session": 0},
    "close": {"seq": 1, "ack": 0, "session": 0},
    "abort": {"seq": 1, "ack": 0, "session": 0, "reason": "done"},
    "lost": {"rank": 1, "reason": "gone", "waits": ["rank 0 waits"]},
    "bye": {"seq": 1, "ack": 0},
}  # fmt: skip

JUNK: tuple[str, ...] = (
    "null", "true", "false", "-1", "-0", "0.0", "1.5", "1e999", "-1e999", "NaN", "Infinity", "9223372036854775808",
    "18446744073709551616", "1" * 400, "9" * 5000, '""', '"x"', '"\\ud800"', '"\\u0000"', '"a\\nb"', f'"{"x" * 5000}"',
    "[]", "{}", "[null]", "[[]]", "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, f"[{'0,' * 600}0]",
    f"[{'9223372036854775807,' * 60}1]", '["open", 0, 0, 0]', "[[0, 0]]",
)  # fmt: skip
"""Values, as JSON or not quite, that no field of a header should have."""

BOMBS: tuple[bytes, ...] = (
    b"", b"\0", b"{", b"}", b"[]", b"null", b"0", b'"kind"', b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{'kind': 'ready'}",
    b"[" * 60_000, b'{"kind":' * 8_000, b'{"a":[' * 9_000, b"9" * 60_000, b"-" + b"9" * 60_000, b"1e" + b"9" * 60_000,
    b'{"kind":"ready","kind":"ready","seq":1,"ack":0}', b'{"kind":["ready"]}', b'{"kind":{}}', b'{"kind":1e400}',
    b'{"kind":"' + b"x" * 60_000 + b'"}', b" " * 65_537, b'"' + b"\\u0000" * 10_000 + b'"', b"\x80\x04\x95pickle.",
    b"cos\nsystem\n(S'true'\ntR.", b"__import__('os')", b'{"kind":"eval","code":"1"}', b"{}" * 1000,
)  # fmt: skip
"""Frames that are no header at all."""

OTHERS: tuple[bytes, ...] = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0" * 64, b"\xff" * 64, b"*1\r\n$4\r\nPING\r\n", b"\x05\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x7fELF",
)  # fmt: skip
"""How speakers of other protocols begin."""

MECHANISMS = (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"X" * 20)
KINDS = (b"PUB", b"PULL", b"REQ", b"ROUTER", b"PAIR", b"", b"?")
LENGTHS = (2**21, 2**31, 2**32, 2**40, 2**63 - 1, 2**64 - 1)
"""Lengths of frames, from what is just too long to the largest number."""


# ZeroMQ's protocol, ZMTP 3.1 -----------------------------------------------------------------------------------------


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01", server: int = 0) -> bytes:
    """The 64 bytes with which a connection begins."""
    return b"\xff" + bytes(8) + b"\x7f" + version + mechanism.ljust(20, b"\0") + bytes([server]) + bytes(31)


def frame(body: bytes, flags: int = 0) -> bytes:
    """A frame: flag 1 says that more follow, 2 that its length has eight bytes, 4 that it is a command."""
    if len(body) > 255 or flags & 2:
        return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


def ready(kind: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    """The command that ends a handshake without keys."""
    properties = ((b"Socket-Type", kind), (b"Identity", identity))
    body = b"".join(bytes([len(k)]) + k + len(v).to_bytes(4, "big") + v for k, v in properties)
    return frame(b"\x05READY" + body, 4)


def message(*frames: bytes) -> bytes:
    """A message of one frame or more."""
    return b"".join(frame(body, int(number < len(frames) - 1)) for number, body in enumerate(frames))


def bent(draw: random.Random, data: bytes) -> bytes:
    """Bytes with a few of them changed, left out, put in or sent twice."""
    bytes_ = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(bytes_) + 1)
        match draw.randrange(4):
            case 0 if at < len(bytes_):
                bytes_[at] ^= 1 << draw.randrange(8)
            case 1:
                del bytes_[at : at + draw.randint(1, 9)]
            case 2:
                bytes_[at:at] = draw.randbytes(draw.randint(1, 9))
            case _:
                bytes_[at:at] = bytes_[at : at + draw.randint(1, 30)]
    return bytes(bytes_)


# Wrong handshakes ----------------------------------------------------------------------------------------------------


def handshakes(mechanism: bytes) -> Sequence[Callable[[random.Random], bytes]]:
    """Ways to go wrong before a connection is one."""
    start = greeting(mechanism)
    curve = frame(b"\x05HELLO\x01\x00" + bytes(72) + bytes(32) + bytes(8) + bytes(80), 4)
    return (
        lambda draw: draw.choice(OTHERS),
        lambda draw: draw.randbytes(draw.randint(0, 300)),
        lambda draw: start[: draw.randrange(64)],
        lambda draw: bent(draw, start),
        lambda draw: bent(draw, start + ready()),
        lambda draw: start + draw.randbytes(draw.randint(1, 300)),
        lambda draw: start + frame(draw.randbytes(draw.randint(0, 300)), draw.choice((4, 5, 6, 7, 0x80))),
        lambda draw: start + bent(draw, curve),
        lambda draw: greeting(draw.choice(MECHANISMS), draw.randbytes(2), draw.randrange(256)) + ready(),
        lambda draw: start + ready(draw.choice(KINDS)) + message(b"x"),
        lambda draw: start + ready(identity=draw.randbytes(draw.choice((1, 5, 255, 256, 5000)))) + message(b"x"),
        lambda draw: start + ready() + bytes([draw.randrange(256)]) + draw.randbytes(8) + draw.randbytes(50),
        lambda draw: start + ready() + b"\x02" + draw.choice(LENGTHS).to_bytes(8, "big") + b"x",
        lambda draw: start + b"\x06" + draw.choice(LENGTHS).to_bytes(8, "big") + b"\x05READY",
        lambda draw: start + ready() + frame(b"x" * 100, 1) * draw.randint(1, 50),
        lambda draw: start + ready() + frame(b"\x04PING" + draw.randbytes(2) + b"x" * draw.randint(0, 40), 4),
    )  # fmt: skip


# Wrong messages ------------------------------------------------------------------------------------------------------


def text(kind: str, fields: dict[str, str]) -> bytes:
    """A header whose values are written as given."""
    return ("{" + ",".join([f'"kind":"{kind}"', *(f'"{key}":{value}' for key, value in fields.items())]) + "}").encode()


def wrong_header(draw: random.Random) -> bytes:
    """A header that is wrong in some way, but for where it is sent."""
    if draw.random() < 0.1:
        return draw.choice(BOMBS)
    kind = draw.choice(list(MESSAGES))
    fields = {key: json.dumps(value) for key, value in MESSAGES[kind].items()}
    match draw.randrange(5):
        case 0:
            fields[draw.choice(list(fields))] = draw.choice(JUNK)
        case 1:
            del fields[draw.choice(list(fields))]
        case 2:
            fields[draw.choice(("extra", "Kind", "seq", "__class__"))] = draw.choice(JUNK)
        case 3:
            return bent(draw, text(kind, fields))
        case _:
            pass  # right, and out of place
    return text(kind, fields)


def wrong_message(draw: random.Random) -> tuple[bytes, ...]:
    """The frames of a message that a rank must refuse from whoever has not greeted."""
    header = wrong_header(draw)
    match draw.randrange(8):
        case 0:
            return (header, draw.randbytes(draw.choice((0, 1, 120, 60_000))))
        case 1:
            return (header[:2000],) * draw.choice((2, 3, 300))
        case 2:
            return (draw.randbytes(draw.randint(0, 300)),)
        case _:
            return (header,)


# At the port ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Attack:
    """Malformed inputs at ports of this host, in turn: `sent` counts them, `messages` those that a rank must count.

    Where ranks have `keys`, so has the stranger when it sends messages: it is let in, and is no rank all the same.
    """

    ports: Sequence[int]
    keys: Keys | None = None
    sent: int = 0
    messages: int = 0

    def go(self, seed: int, inputs: int) -> None:
        """Send at least so many, drawn from the seed."""
        draw = random.Random(seed)
        wrong = handshakes(b"NULL" if self.keys is None else b"CURVE")
        end = self.sent + inputs
        while self.sent < end:
            port = self.ports[self.sent % len(self.ports)]
            if draw.random() < 0.8:
                self.deliver(port, draw.choice(wrong)(draw))
                self.sent += 1
                continue
            batch = [wrong_message(draw) for _ in range(draw.randint(1, 20))]
            if self.keys is None:
                self.deliver(port, b"".join(message(*frames) for frames in batch), after=greeting() + ready())
            else:
                deliver_with_keys(port, batch, self.keys)
            self.sent, self.messages = self.sent + len(batch), self.messages + len(batch)

    def deliver(self, port: int, data: bytes, after: bytes = b"") -> None:
        """One connection: data is sent, after a handshake if there is one, and the other end closes it."""
        with socket.create_connection(("127.0.0.1", port), WATCH) as connection:
            try:
                connection.sendall(after)
                came = received(connection)
                if after:  # ZeroMQ drops what comes together with the end of a connection whose handshake goes on
                    so_far = b""
                    while b"READY" not in so_far:
                        so_far += next(came)
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                for _ in came:
                    pass
            except TimeoutError:
                raise
            except OSError:
                pass  # it was closed before all was sent, or read: as it may be


def deliver_with_keys(port: int, messages: Sequence[Sequence[bytes]], keys: Keys) -> None:
    """Messages over one connection of somebody who is admitted."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = int(1000 * WATCH)
        dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = keys.public, keys.public, keys.secret
        dealer.connect(f"tcp://127.0.0.1:{port}")
        for frames in messages:
            dealer.send_multipart(frames)


def received(connection: socket.socket) -> Iterator[bytes]:
    """What comes, until the end."""
    while data := connection.recv(65_536):
        yield data
