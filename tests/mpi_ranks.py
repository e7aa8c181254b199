"""Ranks under `mpiexec`, each a process, whose worlds and transports the tests call from their own process.

The tests' process starts `mpiexec -n N` of this module's `serve`, and every rank connects to a socket. A call
goes to the rank that it is for, is made there on a thread of its own, and its result, its error or its callbacks come
back. So a suite that wants all ranks' transports in one process has them, and every message between them goes by MPI.
A rank ends when its connection does.
"""

from __future__ import annotations

import copyreg
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hooks import WATCH
from purine_ref.errors import PeerLost

MPIEXEC = Path(sys.executable).with_name("mpiexec")
"""The launcher that the wheel `mpich` installs beside the interpreter."""

SERVE = "import sys; sys.path.insert(0, sys.argv[1]); import mpi_ranks; mpi_ranks.serve(sys.argv[2])"
"""What a rank runs."""

Array = Any

copyreg.pickle(PeerLost, lambda error: (PeerLost, (error.rank, error.reason, error.waits)))


def mpiexec(ranks: int, *arguments: str) -> list[str]:
    """The command that starts `python ARGUMENTS` on so many ranks."""
    return [str(MPIEXEC), "-n", str(ranks), sys.executable, "-P", *arguments]


# Arrays keep their layout on the way to another process ----------------------------------------------------------


def packed(array: Array) -> tuple[Any, ...]:
    """All that `unpacked` needs to make an array of the same bits, shape, dtype and strides."""
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.empty(high - low, np.uint8)
    offset = array.__array_interface__["data"][0] - low
    twin = np.ndarray(array.shape, array.dtype, memory, offset, array.strides)
    twin[...] = array
    return memory, offset, array.shape, array.dtype.str, array.strides


def unpacked(parts: tuple[Any, ...]) -> Array:
    """The array of `packed`."""
    memory, offset, shape, dtype, strides = parts
    return np.ndarray(shape, dtype, memory, offset, strides)


# In a rank's process ---------------------------------------------------------------------------------------------


class Rank:
    """What one rank holds for the tests: worlds and transports, by number."""

    def __init__(self, connection: Connection) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.connection = connection
        self.sending = threading.Lock()
        self.held: dict[int, Any] = {}

    def serve(self) -> None:
        """Make the calls that come, each on a thread of its own, until the connection ends."""
        self.reply("rank", self.mpi.COMM_WORLD.Get_rank(), os.getpid())
        while True:
            try:
                number, call, arguments = self.connection.recv()
            except EOFError:
                return
            threading.Thread(target=self.work, args=(number, call, arguments), daemon=True).start()

    def work(self, number: int, call: str, arguments: tuple[Any, ...]) -> None:
        try:
            result = getattr(self, call)(*arguments)
        except Exception as error:
            self.reply("raised", number, error)
        else:
            self.reply("returned", number, result)

    def reply(self, *message: Any) -> None:
        with self.sending:
            self.connection.send(message)

    def join(self, key: int, ranks: int, options: Mapping[str, Any]) -> None:
        from purine_ref.transports.mpi import MpiWorld

        world = self.mpi.COMM_WORLD
        communicator = world.Create_group(world.group.Incl(range(ranks)), tag=key)
        self.held[key] = MpiWorld(self.mpi, communicator, **options)
        self.held[key].meet()

    def open(self, world: int, key: int, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        self.held[key] = self.held[world].open(*arguments, **keywords)

    def call(self, key: int, name: str, *arguments: Any) -> Any:
        return getattr(self.held[key], name)(*arguments)

    def send(self, key: int, peer: int, tag: int, iteration: int, array: tuple[Any, ...]) -> None:
        self.held[key].send(peer, tag, iteration, unpacked(array))

    def expect(self, key: int, peer: int, tag: int, iteration: int, callback: int) -> None:
        self.held[key].expect(peer, tag, iteration, lambda: self.reply("call", callback))

    def take(self, key: int, peer: int, tag: int, iteration: int, into: tuple[Any, ...]) -> Array:
        array = unpacked(into)
        self.held[key].take(peer, tag, iteration, array)
        return np.array(array)

    def watch(self, key: int, callback: int) -> None:
        self.held[key].watch(lambda error: self.reply("call", callback, error))

    def post(self, key: int, peer: int, fields: Mapping[str, Any]) -> None:
        """Have a world send a frame, whatever it says."""
        link = self.held[key]._link
        with link.lock:
            link.post([peer], dict(fields))

    def sessions(self, key: int) -> int:
        """How many graphs a world keeps."""
        return len(self.held[key]._sessions)

    def limit(self, piece: int) -> None:
        """Send and receive arrays in pieces of so many bytes."""
        from purine_ref.transports.mpi import frames

        frames.PIECE = piece

    def forked(self, key: int) -> list[str]:
        """What a forked child is told that uses a transport."""
        out, end = os.pipe()
        if os.fork() == 0:
            for use in ("close", "abort"):
                try:
                    getattr(self.held[key], use)(*["no reason"] * (use == "abort"))
                except RuntimeError as error:
                    os.write(end, f"{error}\n".encode())
            os._exit(0)
        os.close(end)
        with open(out) as told:
            return [line.strip().replace(str(os.getpid()), "PARENT") for line in told]


def serve(path: str) -> None:
    """One rank: what `mpiexec` starts."""
    with Client(path, family="AF_UNIX") as own:
        Rank(own).serve()


# In the tests' process -------------------------------------------------------------------------------------------


class Far:
    """A rank's process, seen from the tests': `call` is a method of `Rank`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        _, self.rank, self.process = connection.recv()
        self.sending = threading.Lock()
        self.numbers = itertools.count()
        self.futures: dict[int, Future[Any]] = {}
        self.callbacks: dict[int, Callable[..., object]] = {}
        threading.Thread(target=self.read, daemon=True).start()

    def begin(self, call: str, *arguments: Any) -> Future[Any]:
        """Have a call made there; what comes of it."""
        with self.sending:
            number = next(self.numbers)
            future = self.futures[number] = Future()
            self.connection.send((number, call, arguments))
        return future

    def call(self, call: str, *arguments: Any) -> Any:
        """Have a call made there, and wait for its end."""
        return self.begin(call, *arguments).result(WATCH)

    def callback(self, function: Callable[..., object]) -> int:
        """The number of a function to be called from there."""
        number = next(self.numbers)
        self.callbacks[number] = function
        return number

    def read(self) -> None:
        while True:
            try:
                kind, number, *more = self.connection.recv()
            except (EOFError, OSError):
                for future in self.futures.values():
                    future.set_exception(ConnectionError(f"rank {self.rank} is gone"))
                return
            if kind == "call":
                threading.Thread(target=self.callbacks[number], args=more, daemon=True).start()  # it may call back
            elif kind == "raised":
                self.futures.pop(number).set_exception(more[0])
            else:
                self.futures.pop(number).set_result(more[0])


class FarTransport:
    """A transport in a rank's process: see `Transport`."""

    def __init__(self, far: Far, key: int, world: int) -> None:
        self.rank, self.world = far.rank, world
        self.far, self.key = far, key

    def send(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        self.far.call("send", self.key, peer, tag, iteration, packed(array))

    def expect(
        self, peer: int, tag: int, iteration: int, arrived: Callable[[], None], into: Array | None = None
    ) -> None:
        self.far.call("expect", self.key, peer, tag, iteration, self.far.callback(arrived))

    def wait(self, arrived: threading.Event, seconds: float) -> bool:
        return arrived.wait(seconds)

    def take(self, peer: int, tag: int, iteration: int, into: Array) -> None:
        into[...] = self.far.call("take", self.key, peer, tag, iteration, packed(into))

    def watch(self, lost: Callable[[Any], None]) -> None:
        self.far.call("watch", self.key, self.far.callback(lost))

    def close(self) -> None:
        self.far.call("call", self.key, "close")

    def abort(self, reason: str) -> None:
        self.far.call("call", self.key, "abort", reason)


class FarWorld:
    """A world in a rank's process: see `World`."""

    transport = "mpi"

    def __init__(self, far: Far, key: int, size: int, keys: Iterator[int]) -> None:
        self.rank, self.size = far.rank, size
        self.far, self.key, self.keys = far, key, keys

    def open(self, *arguments: Any, **keywords: Any) -> FarTransport:
        return self.begin_open(*arguments, **keywords)()

    def begin_open(self, *arguments: Any, **keywords: Any) -> Callable[[], FarTransport]:
        """Begin to open: the function that is returned waits for its end."""
        key = next(self.keys)
        future = self.far.begin("open", self.key, key, arguments, keywords)

        def opened() -> FarTransport:
            future.result(WATCH)
            return FarTransport(self.far, key, self.size)

        return opened

    def offset(self, peer: int) -> float:
        return float(self.far.call("call", self.key, "offset", peer))

    def close(self) -> None:
        self.far.call("call", self.key, "close")

    def abort(self, reason: str) -> None:
        self.far.call("call", self.key, "abort", reason)

    def leave(self) -> Future[bool]:
        """Begin to end it: see `MpiWorld.leave`."""
        return self.far.begin("call", self.key, "leave")


class Ranks:
    """All ranks of one `mpiexec`."""

    def __init__(self, launcher: subprocess.Popen[bytes], far: Sequence[Far]) -> None:
        self.launcher = launcher
        self.far = sorted(far, key=lambda one: one.rank)
        self.keys = itertools.count(1)

    def begin_join(self, *options: Mapping[str, Any]) -> list[tuple[FarWorld, Future[None]]]:
        """Begin to join the first ranks, each with options of its own, in a new world; what comes of each."""
        key, size = next(self.keys), len(options)
        pairs = list(zip(self.far, options, strict=False))
        return [(FarWorld(far, key, size, self.keys), far.begin("join", key, size, own)) for far, own in pairs]

    def join(self, size: int, **options: Any) -> list[FarWorld]:
        """A new world of the first `size` ranks."""
        joining = self.begin_join(*[options] * size)
        for _, future in joining:
            future.result(WATCH)
        return [world for world, _ in joining]

    def leave(self, worlds: Sequence[FarWorld]) -> None:
        """End a world: nothing of it is left."""
        for future in [world.leave() for world in worlds]:
            future.result(WATCH)


@contextmanager
def started(ranks: int) -> Iterator[Ranks]:
    """So many ranks, for the block; nothing of them is left after it."""
    # A socket's path must be short, wherever temporary files are.
    with TemporaryDirectory(prefix="purine-ref-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listening:
        path = str(Path(folder) / "ranks")
        listening.bind(path)
        listening.listen(ranks)
        listening.settimeout(2 * WATCH)  # interpreters start, and MPI in them
        command = mpiexec(ranks, "-c", SERVE, str(Path(__file__).parent), path)
        launcher = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)
        sockets: list[socket.socket] = []
        try:
            for _ in range(ranks):
                sockets.append(listening.accept()[0])
            yield Ranks(launcher, [Far(Connection(os.dup(one.fileno()))) for one in sockets])
        finally:
            for one in sockets:
                with suppress(OSError):  # its rank is gone
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            try:
                launcher.wait(WATCH)
            except subprocess.TimeoutExpired:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
