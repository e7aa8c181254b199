"""The proxy of the fault plans, on loopback: what it passes, holds back and cuts, to the byte."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from separation.proxy import Proxy

WATCH = 30.0
SHORT = 0.1
"""Seconds in which what was let through has surely come over loopback, where nothing is to come."""

DATA = bytes(range(256)) * 4096


class Line:
    """Host 0 and host 1 with the proxy between them: `connect` gives both ends of a new connection from 0 to 1."""

    def __init__(self, proxy: Proxy, stack: ExitStack) -> None:
        self.proxy = proxy
        self._stack = stack
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._server.settimeout(WATCH)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._at = self._door.getsockname()
        proxy.relay((0, 1), self._door, lambda: socket.socket(), self._server.getsockname())

    def hang_up(self) -> None:
        """Let nobody listen at host 1 any more."""
        self._server.close()

    def dial(self) -> socket.socket:
        """The near end of a new connection."""
        near = self._stack.enter_context(socket.create_connection(self._at, WATCH))
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a new connection."""
        near = self.dial()
        far, _ = self._server.accept()
        far.settimeout(WATCH)
        return near, self._stack.enter_context(far)


@contextmanager
def line() -> Iterator[Line]:
    """A line whose proxy ends, and with it all connections, after the block."""
    with ExitStack() as stack:
        yield Line(stack.enter_context(Proxy(seed=1)), stack)


def read(end: socket.socket, count: int) -> bytes:
    """So many bytes, or those that came before the end."""
    parts = b""
    while len(parts) < count and (part := end.recv(count - len(parts))):
        parts += part
    return parts


def silent(end: socket.socket) -> bool:
    """Whether nothing comes for a while."""
    return not select.select([end], [], [], SHORT)[0]


@contextmanager
def writing(end: socket.socket, data: bytes) -> Iterator[None]:
    """Another thread writes meanwhile."""
    thread = threading.Thread(target=end.sendall, args=(data,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def gone(end: socket.socket) -> bool:
    """Whether the connection was reset, and not ended; waits for that, and reads what came before."""
    try:
        while end.recv(1 << 16):
            pass
        return False
    except ConnectionResetError:
        return True


def refused(dial: Callable[[], socket.socket]) -> bool:
    """Whether a new connection is reset, be it before `dial` returns or after."""
    try:
        return gone(dial())
    except ConnectionResetError:
        return True


def done_by(ask: Callable[[Callable[[], None]], None]) -> None:
    """Wait until the proxy has done what it is asked to do."""
    event = threading.Event()
    ask(event.set)
    assert event.wait(WATCH)


def test_all_bytes_pass_both_ways_and_so_does_the_end() -> None:
    with line() as wire:
        near, far = wire.connect()
        with writing(near, DATA), writing(far, DATA[::-1]):
            back = threading.Thread(target=lambda: found.append(read(near, len(DATA))))
            found: list[bytes] = []
            back.start()
            assert read(far, len(DATA)) == DATA
            back.join()
        assert found == [DATA[::-1]]
        near.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        far.sendall(b"after")
        assert read(near, 5) == b"after"
        done_by(lambda action: wire.proxy.after(0, action))  # the proxy counts after it has sent
        assert wire.proxy.passed((0, 1)) == len(DATA)
        assert wire.proxy.passed((1, 0)) == len(DATA) + 5


def test_a_delay_holds_bytes_back_in_order_and_one_way() -> None:
    with line() as wire:
        near, far = wire.connect()
        wire.proxy.delay((0, 1), 0.05, 0.05)
        begun = time.monotonic()
        for number in range(20):
            near.sendall(bytes([number]))
        assert read(far, 20) == bytes(range(20))
        assert time.monotonic() - begun >= 0.05
        far.sendall(b"x")
        assert read(near, 1) == b"x"


@pytest.mark.parametrize("place", [1, 1000, 70_001])
def test_a_stall_falls_at_the_very_byte_and_ends(place: int) -> None:
    with line() as wire:
        near, far = wire.connect()
        wire.proxy.at((0, 1), place, lambda: wire.proxy.stall((0, 1)))
        with writing(near, DATA):
            assert read(far, place) == DATA[:place]
            assert silent(far)
            far.sendall(b"the other way is open")
            assert read(near, 21) == b"the other way is open"
            wire.proxy.resume((0, 1))
            assert read(far, len(DATA) - place) == DATA[place:]


def test_a_stalled_way_makes_its_sender_wait_at_last() -> None:
    with line() as wire:
        near, _far = wire.connect()
        wire.proxy.stall((0, 1))
        near.settimeout(SHORT)
        with pytest.raises(TimeoutError):
            near.sendall(64 * DATA)


def test_a_cut_falls_at_the_very_byte_and_resets_both_ends_until_it_is_healed() -> None:
    with line() as wire:
        near, far = wire.connect()
        cut = threading.Event()
        wire.proxy.at((0, 1), 1000, lambda: (wire.proxy.cut((0, 1)), cut.set()))
        near.sendall(DATA[:1500])
        assert cut.wait(WATCH)
        assert wire.proxy.passed((0, 1)) == 1000
        assert gone(near)
        assert gone(far)
        assert refused(wire.dial)
        wire.proxy.heal((0, 1))
        near, far = wire.connect()
        near.sendall(b"again")
        assert read(far, 5) == b"again"


def test_an_action_waits_for_a_time_or_a_condition() -> None:
    with line() as wire:
        done_by(lambda action: wire.proxy.after(0.01, action))
        holds = threading.Event()
        done = threading.Event()
        wire.proxy.when(holds.is_set, done.set)
        done_by(lambda action: wire.proxy.after(0.05, action))
        assert not done.is_set()
        holds.set()
        assert done.wait(WATCH)


def test_what_an_action_raises_is_raised_at_the_end() -> None:
    def fail() -> None:
        raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError, match="planted"), line() as wire:
        wire.proxy.at((0, 1), 0, fail)


def test_nobody_at_the_far_side_is_a_reset_at_the_near_one() -> None:
    with line() as wire:
        wire.hang_up()
        assert refused(wire.dial)
