"""Read mutants of every kind of file, each kind in a process of its own, and print a line for each.

    python -m tests.fuzzing [KIND ...]

Exit code 1 when a case broke a rule; its file stays, and the line says where.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.fuzzing.child import in_a_child
from tests.fuzzing.kinds import KINDS
from tests.fuzzing.measure import Broken, Tally, total


def main() -> int:
    """Run the kinds that the command line names, or all."""
    tallies: list[Tally] = []
    broken = 0
    for kind in sys.argv[1:] or KINDS:
        try:
            tallies.append(in_a_child(kind, Path(tempfile.mkdtemp(prefix="fuzzing-"))))
            print(tallies[-1].line(), flush=True)
        except Broken as error:
            broken += 1
            print(f"BROKEN {error}", flush=True)
    print(total(tallies).line())
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
