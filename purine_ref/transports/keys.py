"""Key pairs: who may join a run, as files in one folder on each host.

A pair is two files in the certificate format of ZeroMQ's own tools: `NAME.key` has the public key, `NAME.key_secret`
both. A folder has one private file, this host's, and the public file of every host that may join. So there are two
ways to hand them out: one pair, copied to all hosts; or a pair for each, with every `.key` copied to all, and the pair
of the host where rank 0 runs named `rank0`. Whoever may write into the folder decides who is let in, and whoever may
read the private file may join; where others could do either, the keys are refused.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from purine_ref.errors import Refused

NAME = "purine"
"""What a pair is called unless its maker says otherwise."""

ROOT = "rank0"
"""The name of rank 0's pair, where there are several."""

PUBLIC, PRIVATE = ".key", ".key_secret"
"""How the two files of a pair end."""

LONGEST_FILE = 4096
"""The most bytes of a key file that are read."""

MOST_KEYS = 10_000
"""The most public keys of one folder."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELD = r'^[ \t]*{}-key[ \t]*=[ \t]*"([^"\n]*)"[ \t]*$'
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """What one rank proves itself with, and whom it lets in. Every key is Z85 text of 40 characters, as bytes.

    `public` and `secret` are this rank's pair, `admitted` the public keys of all that may join, and `root` the one of
    rank 0, which every other rank must know beforehand. `public` and `root` are admitted, said or not.
    Raises Refused for what is no key, and for two that are no pair.
    """

    public: bytes
    secret: bytes = field(repr=False)
    admitted: frozenset[bytes]
    root: bytes

    def __post_init__(self) -> None:
        for key in (self.public, self.secret, self.root, *self.admitted):
            _require_key(key, "key")
        if zmq.curve_public(self.secret) != self.public:
            raise Refused(f"keys: expected the secret key of {_shown(self.public)}, got another's; make a new pair")
        object.__setattr__(self, "admitted", self.admitted | {self.public, self.root})


def make_keys(folder: str | os.PathLike[str], name: str = NAME) -> tuple[Path, Path]:
    """Make a pair of keys in `folder`, which is made where it is not there; returns the public and the private file.

    The private file is never readable by others, not even for a moment; no file is ever overwritten.
    Raises ValueError for a name that is none; Refused where others may write into the folder; OSError, among them
    FileExistsError where the pair, or one half of it, is there.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"key name: expected up to 64 letters, digits, dots, dashes, underscores, got {name!r}")
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(place, place.stat(), 0o022, "written")
    public_file, private_file = place / f"{name}{PUBLIC}", place / f"{name}{PRIVATE}"
    for file in (private_file, public_file):
        if os.path.lexists(file):
            raise FileExistsError(f"{file} is there, and keys are not overwritten: give --name, or another folder")
    public, secret = zmq.curve_keypair()
    _write(private_file, {"public": public, "secret": secret}, 0o600)
    try:
        _write(public_file, {"public": public}, 0o644)
    except BaseException:  # half a pair is of no use, and would be in the way of the next try
        private_file.unlink(missing_ok=True)
        raise
    return public_file, private_file


def load_keys(folder: str | os.PathLike[str], name: str | None = None) -> Keys:
    """The keys in `folder`; `name` says which private file is this host's, where there are several.

    Raises Refused where a file is not what it claims to be, others may read the private file or write any of it, or
    it is not clear which pair is this host's or rank 0's; OSError where a file is missing or cannot be read.
    """
    place = Path(folder)
    _require_private(place, place.stat(), 0o022, "written")
    public_files = {file.name.removesuffix(PUBLIC): file for file in sorted(place.glob(f"*{PUBLIC}"))}
    if len(public_files) > MOST_KEYS:
        raise Refused(f"keys in {place}: expected at most {MOST_KEYS} public keys, got {len(public_files)}")
    private_file = _own_file(place, name)
    public, secret = _read(private_file, 0o077, "read", "public"), _read(private_file, 0o077, "read", "secret")
    known = {held: _read(file, 0o022, "written", "public") for held, file in public_files.items()}
    own = private_file.name.removesuffix(PRIVATE)
    if known.setdefault(own, public) != public:
        raise Refused(f"{public_files[own]} has another public key than {private_file}: copy the pair again")
    return Keys(public, secret, frozenset(known.values()), _root(place, known))


def _own_file(place: Path, name: str | None) -> Path:
    """The private file of this host."""
    found = [file.name.removesuffix(PRIVATE) for file in sorted(place.glob(f"*{PRIVATE}"))]
    if name is not None and name not in found:
        raise FileNotFoundError(f"no {name}{PRIVATE} in {place}: `purine-ref keygen` makes a pair")
    if not found:
        raise FileNotFoundError(f"no private key (*{PRIVATE}) in {place}: `purine-ref keygen` makes a pair")
    if name is None and len(found) > 1:
        raise Refused(f"{place} has the private keys {', '.join(found)}: leave only the one of this host there")
    return place / f"{name or found[0]}{PRIVATE}"


def _root(place: Path, known: Mapping[str, bytes]) -> bytes:
    """The public key of rank 0."""
    if ROOT in known:
        return known[ROOT]
    if len(set(known.values())) == 1:
        return next(iter(known.values()))
    names = ", ".join(sorted(known))
    raise Refused(f"{place} has the public keys {names}: name the pair of the host where rank 0 runs {ROOT!r}")


def _write(target: Path, keys: Mapping[str, bytes], mode: int) -> None:
    """Write a file that is whole or absent, of that mode from the start, where none is."""
    what = "Secret" if "secret" in keys else "Public"
    lines = [f"#   ZeroMQ CURVE {what} Certificate, by purine-ref keygen", "", "metadata", "curve"]
    lines += [f'    {kind}-key = "{key.decode("ascii")}"' for kind, key in keys.items()]
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write("\n".join([*lines, ""]))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, target)  # unlike a rename, it overwrites nothing
    finally:
        temporary.unlink(missing_ok=True)


def _read(file: Path, forbidden: int, done: str, kind: str) -> bytes:
    """The key of one kind in a file on whose mode no bit of `forbidden` is set."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name must not keep anyone
    with open(descriptor, "rb") as stream:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise Refused(f"{file}: expected a key file, got something that is no file")
        _require_private(file, facts, forbidden, done)
        text = stream.read(LONGEST_FILE + 1)
    found = re.findall(_FIELD.format(kind).encode("ascii"), text, re.MULTILINE)
    if len(text) > LONGEST_FILE or len(found) != 1:
        what = f"{len(found)} of them" if len(text) <= LONGEST_FILE else f"more than {LONGEST_FILE} bytes"
        raise Refused(f"{file}: expected one line `{kind}-key = ...`, got {what}")
    _require_key(found[0], str(file))
    return bytes(found[0])


def _require_private(path: Path, facts: os.stat_result, forbidden: int, done: str) -> None:
    mode = stat.S_IMODE(facts.st_mode)
    if mode & forbidden:
        remedy = "go-rwx" if done == "read" else "go-w"
        raise Refused(f"{path} can be {done} by others (mode {mode:04o}): chmod {remedy}, and see who has used it")


def _require_key(key: bytes, where: str) -> None:
    try:
        length = len(z85.decode(key))
    except (KeyError, ValueError, struct.error):  # a character that is none of Z85's, a length, a value above 2^32
        length = -1
    if length != _KEY_BYTES:
        raise Refused(f"{where}: expected a key, 40 characters of Z85, got {len(key)} that are none")


def _shown(public: bytes) -> str:
    """A public key for messages."""
    return public.decode("ascii")
