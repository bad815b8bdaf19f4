"""Mutants: good bytes with a few changes drawn from a seed, among them what has broken readers of files.

Half of those of a document (JSON, YAML, or lines with JSON in them) have a few of its values changed, and are well
formed.
"""

import contextlib
import copy
import json
import random
from collections.abc import Callable
from typing import Any

PIECES = [
    b"9" * 5000, b"[" * 3000, b"[" * 100_000, b'{"a":' * 3000, b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"null", b"NaN",
    b"-Infinity", b"1e999", b"-1", b'"\\ud800"', b"[]", b"{}", b"''", b"\x1b]0;x\x07", b"\r\n" * 100, b"x" * 100_000,
    b"true", b"0x" + b"f" * 4000, b"&a [*a, *a]", b"!!python/object/apply:os.system [id]", b"PK\x05\x06",
    b"\n[tool]\n", b"18446744073709551616", b"\xff" * 8, b"- " * 3000, b"\xe2\x80\xae", b"(" * 3000, b"a." * 3000,
]  # fmt: skip


VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", " ",
    "x" * 100_000, "\ud800", "\0", "\x1b]0;x\x07", "null", "-1", "..", "/", "a\nb", "../../etc/passwd", "http://[::1",
    [], {}, [None], [[]], {"": None}, ["a"] * 10_000, list(range(50_000)), {"a": {"a": {"a": []}}}, 100_000_000, 10**12,
]  # fmt: skip
"""What a field may hold that is meant to hold something else."""


def mutant(data: bytes, rng: random.Random, *, values: Callable[[bytes], Any] | None = None) -> bytes:
    """Make one to three changes of ``data``: of its bytes or, with ``values``, half the time of a document's values."""
    changed = _with_other_values(data, rng, values) if values and rng.random() < 0.5 else None
    return _with_other_bytes(data, rng) if changed is None else changed


def _with_other_values(data: bytes, rng: random.Random, values: Callable[[bytes], Any]) -> bytes | None:
    """Change values of a document, or of the JSON in one of its lines; None for what has none. It is written as JSON,
    which is YAML, too."""
    with contextlib.suppress(ValueError):
        return _written(_changed(values(data), rng))
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines)) if lines else 0
    start = lines[at].find(b"{") if lines else -1
    if start < 0:
        return None
    try:
        changed = _changed(json.loads(lines[at][start:]), rng)
    except ValueError:
        return None
    lines[at] = lines[at][:start] + _written(changed) + b"\n"
    return b"".join(lines)


def _written(document: Any) -> bytes:
    return json.dumps(document).encode()


def _changed(document: Any, rng: random.Random) -> Any:
    """A copy with one to three values exchanged, left out, added, or put one level deeper."""
    holder = [copy.deepcopy(document)]
    for _ in range(rng.randint(1, 3)):
        places = list(_places(holder))
        box, key = rng.choice(places)
        change = rng.randrange(6)
        if change == 0 and box is not holder:
            del box[key]
        elif change == 1 and isinstance(box[key], dict):
            box[key][rng.choice(["x", "", "__proto__", *box[key]])] = copy.deepcopy(rng.choice(VALUES))
        elif change == 2:
            box[key] = rng.choice([[box[key]], {"x": box[key]}, str(box[key])])
        elif change == 3:
            other, its = rng.choice(places)
            box[key], other[its] = copy.deepcopy(other[its]), copy.deepcopy(box[key])
        else:
            box[key] = copy.deepcopy(rng.choice(VALUES))
    return holder[0]


def _places(value: Any) -> Any:
    """Every place that holds a value: the mapping or list, and the key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list) and len(value[key]) < 1000:
            yield from _places(value[key])


def _with_other_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change a byte, or cut, exchange, leave out or repeat a piece."""
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
