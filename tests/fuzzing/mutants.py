"""Mutants: good bytes with a few changes drawn from a seed, among them what has broken readers of files."""

from __future__ import annotations

import random

PIECES = [
    b"9" * 5000, b"[" * 3000, b"[" * 100_000, b'{"a":' * 3000, b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"null", b"NaN",
    b"-Infinity", b"1e999", b"-1", b'"\\ud800"', b"[]", b"{}", b"''", b"\x1b]0;x\x07", b"\r\n" * 100, b"x" * 100_000,
    b"true", b"0x" + b"f" * 4000, b"&a [*a, *a]", b"!!python/object/apply:os.system [id]", b"PK\x05\x06",
    b"\n[tool]\n", b"18446744073709551616", b"\xff" * 8, b"- " * 3000, b"\xe2\x80\xae", b"(" * 3000, b"a." * 3000,
]  # fmt: skip


def mutant(data: bytes, rng: random.Random) -> bytes:
    """Make one to three changes of ``data``: a byte, a cut, a piece, a gap, or a repetition."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(0, 30))
        change = rng.randrange(5)
        if change == 0 and data:
            data = data[: at - 1] + bytes([rng.randrange(256)]) + data[at:]
        elif change == 1:
            data = data[:at]
        elif change == 2:
            data = data[:at] + rng.choice(PIECES) + data[end:]
        elif change == 3:
            data = data[:at] + data[end:]
        else:
            data = data[:end] + data[at:end] * rng.randint(1, 200) + data[end:]
    return data
