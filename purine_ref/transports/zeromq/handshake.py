"""Who may join: the greeting with which every connection begins, and what is said against one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from purine_ref.transports.zeromq.wire import MAGIC, VERSION


@dataclass(frozen=True, slots=True)
class Identity:
    """What a rank says of itself. `nonce` tells this process from another one that claims the same rank."""

    world: int
    rank: int
    run: str
    listen: str
    nonce: str = field(default_factory=lambda: token_hex(16))

    def greeting(self, to: int, epoch: int) -> dict[str, Any]:
        """The hello with which the connection to a peer begins, made for the `epoch`-th time."""
        return {
            "kind": "hello",
            "magic": MAGIC,
            "version": VERSION,
            "world": self.world,
            "rank": self.rank,
            "to": to,
            "run": self.run,
            "nonce": self.nonce,
            "listen": self.listen,
            "epoch": epoch,
        }

    def objection(self, hello: Mapping[str, Any]) -> str | None:
        """Why the sender of a greeting may not join this rank, without regard to who has joined already."""
        if hello["version"] != VERSION:
            return f"it speaks version {hello['version']} of the protocol, expected {VERSION}"
        if hello["run"] != self.run:
            return f"it is of run {hello['run'][:80]!r}, expected {self.run!r}"
        if hello["world"] != self.world:
            return f"its world has {hello['world']} ranks, expected {self.world}"
        if hello["to"] != self.rank:
            return f"it looks for rank {hello['to']}, and this is rank {self.rank}"
        if not 0 <= hello["rank"] < self.world or hello["rank"] == self.rank:
            return f"it calls itself rank {hello['rank']}, expected another one of {self.world} than {self.rank}"
        return None
