"""Arrays in .npy files: version 1.0, little-endian, C order. An array is its dtype, its shape, and a flat list."""

import math
import re
import struct
from array import array

CODES = {"float32": "f", "float64": "d", "int64": "q"}
DESCRIPTIONS = {"float32": "<f4", "float64": "<f8", "int64": "<i8"}
HEADER = re.compile(r"^\{'descr': '([^']+)', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n$")


class Unreadable(Exception):
    """A file is no array of the shape and dtype that the case says."""


def cells(dtype, values):
    """Memory for elements of a dtype. Storing into it rounds to the dtype."""
    return array(CODES[dtype], values)


def read(path, dtype, shape):
    """The elements of an array whose dtype and shape are known, in C order."""
    data = path.read_bytes()
    if data[:8] != b"\x93NUMPY\x01\x00" or len(data) < 10:
        raise Unreadable(f"{path}: not an array of version 1.0")
    (length,) = struct.unpack("<H", data[8:10])
    header = HEADER.match(data[10 : 10 + length].decode("ascii", "replace"))
    if header is None:
        raise Unreadable(f"{path}: a header of another form")
    found = tuple(int(n) for n in header[2].replace(" ", "").split(",") if n)
    if header[1] != DESCRIPTIONS[dtype] or found != tuple(shape):
        raise Unreadable(f"{path}: expected {dtype}{list(shape)}, got {header[1]}{list(found)}")
    count, body = math.prod(shape), data[10 + length :]
    code = CODES[dtype]
    if len(body) != count * struct.calcsize("<" + code):
        raise Unreadable(f"{path}: {len(body)} bytes of elements for {dtype}{list(shape)}")
    return cells(dtype, struct.unpack(f"<{count}{code}", body))


def write(path, dtype, shape, values):
    """Write an array; the folder is made if it is not there."""
    lengths = ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "")
    header = f"{{'descr': '{DESCRIPTIONS[dtype]}', 'fortran_order': False, 'shape': ({lengths}), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("ascii"))
        file.write(struct.pack(f"<{len(values)}{CODES[dtype]}", *values))
