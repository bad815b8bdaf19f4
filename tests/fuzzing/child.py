"""A process that reads the mutants of one kind: ``python -m tests.fuzzing.child KIND FOLDER [COUNT]``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.fuzzing.measure import Broken, Tally, run_cases

ROOT = Path(__file__).resolve().parents[2]
TABLE = "tests.fuzzing.kinds"
_BROKEN = 1


def in_a_child(kind: str, folder: Path, count: int | None = None, table: str = TABLE) -> Tally:
    """Read mutants of one kind in a process of their own.

    Args:
        folder: an empty one; the last mutant stays in it.
        count: how many, if not as many as the kind's.
        table: the module whose ``KINDS`` has it.

    Raises:
        Broken: a case broke a rule, or the process died of one.
    """
    argv = [sys.executable, "-m", "tests.fuzzing.child", kind, str(folder), str(count or 0), table]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPECDEBUG_CONFIG": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Tally(**json.loads((folder / "tally.json").read_text()))
    if done.returncode == _BROKEN and (folder / "broken").exists():
        raise Broken(f"{(folder / 'broken').read_text()} (the file is in {folder})")
    case = (folder / "case").read_text() if (folder / "case").exists() else "none"
    died = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    raise Broken(f"{kind}, case {case}: the process ended with {died}: {done.stderr[-1000:]} (its files: {folder})")


def main() -> int:
    """Run the kind that the command line names."""
    name, folder, count, table = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    kind = __import__(table, fromlist=["KINDS"]).KINDS[name]
    (folder / "made").mkdir()
    subject = kind.subject(folder / "made")
    try:
        tally = run_cases(name, subject, folder / "made" / kind.file, count or kind.count, folder / "case")
    except Broken as error:
        (folder / "broken").write_text(str(error))
        return _BROKEN
    (folder / "tally.json").write_text(json.dumps(tally.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
