"""The transport over ZeroMQ: each rank is a process, on this host or another, and one I/O thread owns its sockets.

`join` makes the world; `Mesh.open` makes one graph's transport. From the outside in: `mesh` and `session` are what
other threads call; `shared` is the state under one lock; `loop` is the thread, and `helm` who is that thread while
others wait; `link` is one peer's connection, `desk` what each message does; `wire` is the format, `handshake` who may
join, `parcel` one message on its way. `admission` and `handshakes` keep out who does not belong.
"""

from purine_ref.transports.zeromq.mesh import Joining, Mesh, join
from purine_ref.transports.zeromq.session import Session

__all__ = ["Joining", "Mesh", "Session", "join"]
