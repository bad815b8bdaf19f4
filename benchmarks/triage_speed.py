"""How fast a log is read: bytes a second for ordinary logs and for hostile ones.

    python benchmarks/triage_speed.py [--mb 20]

Every case is made from a fixed seed. Seconds are processor time of this process, so that other work on the machine does
not count. *Half* is the speed over the first half of the bytes: where reading takes linear time it is the same as over
all. Needs no GPU and takes a minute or two.
"""

from __future__ import annotations

import argparse
import base64
import random
import string
import time
from collections.abc import Callable

from specdebug.logs.patterns import linear
from specdebug.logs.scan import scan_bytes

Make = Callable[[random.Random, int], bytes]
MB = 1_000_000


def repeated(unit: bytes) -> Make:
    """A case of one text over and over."""
    return lambda chance, size: unit * (size // len(unit) + 1)


def lines(make: Callable[[random.Random, int], bytes]) -> Make:
    """A case of lines, each made from chance and its number."""

    def whole(chance: random.Random, size: int) -> bytes:
        made, total, number = [], 0, 0
        while total < size:
            made.append(make(chance, number))
            total += len(made[-1])
            number += 1
        return b"".join(made)

    return whole


def words(chance: random.Random, count: int) -> bytes:
    """Random letters."""
    return "".join(chance.choices(string.ascii_letters + "    ", k=count)).encode()


def stamp(number: int) -> bytes:
    """The beginning of a server's line."""
    return b"[2026-01-01 %02d:%02d:%02d TP0] " % (number // 3600 % 24, number // 60 % 60, number % 60)


CASES: dict[str, Make] = {
    "a server's log": lines(
        lambda chance, n: stamp(n) + b"Decode batch. #running-req: 3, #token: %d, gen throughput (token/s): 31.2\n" % n
    ),
    "base64, lines of 18 KB ending in Error": lines(
        lambda chance, n: base64.b64encode(chance.randbytes(14_000)) + b" Error\n"
    ),
    "base64, one line": lambda chance, size: base64.b64encode(chance.randbytes(size * 3 // 4)) + b" Error",
    "hex, lines of 28 KB ending in Error": lines(
        lambda chance, n: chance.randbytes(14_000).hex().encode() + b" Error\n"
    ),
    "`exit ` repeated, one line": repeated(b"exit "),
    "`exit code 1`, short lines": repeated(b"exit code 1\n"),
    "`a.` repeated, one line": repeated(b"a."),
    "blanks, one line": repeated(b" "),
    "empty lines": repeated(b"\n"),
    "one failure, the same line": repeated(b"CUDA error: an illegal memory access was encountered\n"),
    "one failure, with times": lines(
        lambda chance, n: stamp(n) + b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
    ),
    "one failure, lines of 100 bytes, all different": lines(
        lambda chance, n: b"CUDA error: an illegal memory access was encountered " + words(chance, 46) + b"\n"
    ),
    "exceptions, lines of 100 bytes, all different": lines(
        lambda chance, n: b"ValueError: " + words(chance, 87) + b"\n"
    ),
    "exceptions, lines of 20 bytes, all different": lines(lambda chance, n: b"KeyError: " + words(chance, 9) + b"\n"),
    "exception names, lines of 100 bytes, all different": lines(
        lambda chance, n: words(chance, 8).replace(b" ", b"").title() + b"Error: " + words(chance, 80) + b"\n"
    ),
    "failed tests, lines of 100 bytes, all different": lines(
        lambda chance, n: b"FAILED tests/" + words(chance, 80).replace(b" ", b"_") + b"::test\n"
    ),
    "`exit code 0`, lines of 100 bytes, all different": lines(
        lambda chance, n: b"exit code 0 " + words(chance, 87) + b"\n"
    ),
    "lines of 3 bytes, and an exception": lines(
        lambda chance, n: words(chance, 2) + b"\n" if n % 10_000 else b"ValueError: x\n"
    ),
    "a different failure in every line of 100 bytes": lines(
        lambda chance, n: b"then nan@site.%d.x at step 3, " % n + words(chance, 65) + b"\n"
    ),
    "tracebacks": lines(
        lambda chance, n: b'  File "/x/y.py", line %d, in f%s\n    call()\n' % (n, words(chance, 5).strip())
    ),
    "bytes that are no text": lambda chance, size: chance.randbytes(size),
}


def speed(log: bytes) -> float:
    """Megabytes a second."""
    begun = time.process_time()
    scan_bytes(log)
    return len(log) / MB / max(time.process_time() - begun, 1e-9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=20, help="Size of each log in megabytes.")
    size = parser.parse_args().mb * MB
    print(f"engine: {'RE2' if linear() else 're, lines cut'}")
    print("| log | MB | MB/s | half |")
    print("|---|---|---|---|")
    for name, make in CASES.items():
        log = make(random.Random(name), size)
        print(f"| {name} | {len(log) / MB:.0f} | {speed(log):.0f} | {speed(log[: len(log) // 2]):.0f} |", flush=True)


if __name__ == "__main__":
    main()
