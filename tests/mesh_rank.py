"""A rank of a world over ZeroMQ in a process of its own, which the tests of lost peers start, stop and kill.

It opens the graph of `meshes.routes`, says `open`, and waits for a message of rank 0; then it says what it got.
"""

from __future__ import annotations

import json
import sys
import threading

import numpy as np

from purine_ref.errors import PeerLost
from purine_ref.tensor import Tensor
from purine_ref.transports.zeromq import Joining, join


def main(rank: int, size: int, address: str, timeout: float) -> None:
    """Join, wait, and print what came of it."""
    mesh = join(Joining(rank, size, address, timeout=timeout))
    tensor = Tensor((3,), "float64")
    incoming = [{(peer, 2): tensor for peer in range(size) if peer != other} for other in range(size)]
    transport = mesh.open("net", "f" * 64, incoming)
    here = threading.Event()
    transport.expect(0, 2, 0, here.set)
    print("open", flush=True)
    here.wait(60)
    try:
        into = np.zeros(3)
        transport.take(0, 2, 0, into)
        print(into.tolist(), flush=True)
    except PeerLost as error:
        print(f"rank {error.rank}: {error.reason}", flush=True)
    mesh.close()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
