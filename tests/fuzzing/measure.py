"""Hold a reader to its limits, case by case: at most 2 s of processor time and 300 MB more than the process had.

Both are measured so that a loaded machine changes nothing: seconds are this process's own processor time, and bytes are
the highest resident size since the case began (Linux keeps it, and sets it back when it is told to). Two limits of the
kernel's stand behind them, for a reader that never returns to be measured: no more than the same bytes can be allocated
(``RLIMIT_DATA``), and a timer of processor time kills the process. A third timer, of real time, is there for a reader
that waits. So this runs in a process of its own.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdebug.base.errors import SpecDebugError
from tests.fuzzing.mutants import mutant

SEED = 20261122
MAX_CPU_S = 2.0
MAX_HELD = 300_000_000
KILLED_CPU_S = 10.0
"""A reader that has not returned after so much processor time never will, for all one knows."""
KILLED_WAIT_S = 300.0
"""A reader that has not returned after so long waits for something, also on a machine with other work."""

ROOT = Path(__file__).resolve().parents[2]
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class Broken(Exception):
    """A case that broke a rule: its number, and which rule."""


@dataclass
class Tally:
    """What became of the cases of one kind. ``held``: bytes beyond what the process had when the case began."""

    kind: str
    cases: int = 0
    read: int = 0
    refused: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    slowest: int = 0
    held: int = 0
    largest: int = 0

    def line(self) -> str:
        """All of it on one line."""
        return (
            f"{self.kind:<30} {self.cases:>6} cases {self.read:>6} read {self.refused:>6} refused "
            f"{self.slowest_s:>7.3f} s of processor at most {self.held / 1e6:>6.1f} MB at most"
        )


@dataclass(frozen=True)
class Subject:
    """What is fuzzed: good bytes, and what reads a file of them. ``pack`` makes the file's bytes of a mutant, where
    mutants are of what is packed in it; ``values`` reads the values of a document, half of whose mutants then have
    other values, and are well formed."""

    good: bytes
    read: Callable[[Path], object]
    pack: Callable[[bytes], bytes] = bytes
    values: Callable[[bytes], Any] | None = None


def run_cases(kind: str, subject: Subject, file: Path, count: int, begun: Path) -> Tally:
    """Run so many cases in this process, whose limits it sets for good. Each mutant is written to ``file``, and the
    number of the case that runs to ``begun``. Raises Broken for the first case that raised something else than one line
    with exit code 2, or took too much."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # what is imported and kept for later is no case's
        file.write_bytes(subject.pack(subject.good))
        subject.read(file)
    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which kills, also where no Python runs
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    tally = Tally(kind)
    rng = random.Random(f"{SEED} {kind}")
    for number in range(count):
        file.write_bytes(subject.pack(mutant(subject.good, rng, values=subject.values)))
        begun.write_text(str(number))
        _case(tally, number, lambda: subject.read(file))
    return tally


def _case(tally: Tally, number: int, read: Callable[[], object]) -> None:
    before = _forget_peak()
    signal.setitimer(signal.ITIMER_PROF, KILLED_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, KILLED_WAIT_S)
    clock = time.process_time()
    refusal = None
    try:
        read()
    except SpecDebugError as error:
        refusal = error
    except BaseException as error:
        raise Broken(f"{tally.kind}, case {number}: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        cpu_s = time.process_time() - clock
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    held = max(0, _peak() - before)
    if refusal is not None and (refusal.exit_code != 2 or "\n" in str(refusal)):
        raise Broken(f"{tally.kind}, case {number}: exit code {refusal.exit_code}, {str(refusal)[:300]!r}")
    if cpu_s > MAX_CPU_S:
        raise Broken(f"{tally.kind}, case {number}: took {cpu_s:.2f} s of processor, more than {MAX_CPU_S} s")
    if held > MAX_HELD:
        raise Broken(f"{tally.kind}, case {number}: held {held / 1e6:.0f} MB, more than {MAX_HELD / 1e6:.0f} MB")
    tally.cases += 1
    tally.cpu_s += cpu_s
    if refusal is None:
        tally.read += 1
    else:
        tally.refused += 1
    if cpu_s > tally.slowest_s:
        tally.slowest_s, tally.slowest = cpu_s, number
    if held > tally.held:
        tally.held, tally.largest = held, number


def _limit_memory() -> None:
    """Let this process allocate ``MAX_HELD`` more, and what libraries put aside for their threads."""
    data = _status().get("VmData")
    if data is not None:
        limit = data + MAX_HELD + (64 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _forget_peak() -> int:
    """Set the peak of the resident size back, and return the size: what this process holds without the case."""
    if not _CLEAR_REFS.exists():
        return _peak()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    return _status()["VmRSS"]


def _peak() -> int:
    """The highest resident size since it was set back; where it cannot be, of all time."""
    found = _status().get("VmHWM")
    return found if found is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status() -> dict[str, int]:
    """The sizes that Linux states of this process, in bytes; nothing elsewhere."""
    if not _STATUS.exists():
        return {}
    rows = (line.split() for line in _STATUS.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}


def in_a_child(kind: str, folder: Path) -> Tally:
    """Read mutants of one kind in a process of their own; the last one stays in ``folder``. Raises Broken where a case
    broke a rule, or the process died of one."""
    argv = [sys.executable, "-m", "tests.fuzzing.measure", kind, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPECDEBUG_CONFIG": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Tally(**json.loads((folder / "tally.json").read_text()))
    if done.returncode == 1 and (folder / "broken").exists():
        raise Broken(f"{(folder / 'broken').read_text()} (the file is in {folder})")
    case = (folder / "case").read_text() if (folder / "case").exists() else "none"
    died = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    raise Broken(f"{kind}, case {case}: the process ended with {died}: {done.stderr[-1000:]} (its files: {folder})")


def main(name: str, folder: Path) -> int:
    """Run one kind, in a process of its own."""
    from tests.fuzzing.kinds import KINDS

    kind = KINDS[name]
    (folder / "made").mkdir()
    subject = kind.subject(folder / "made")
    try:
        tally = run_cases(name, subject, folder / "made" / kind.file, kind.count, folder / "case")
    except Broken as error:
        (folder / "broken").write_text(str(error))
        return 1
    (folder / "tally.json").write_text(json.dumps(asdict(tally)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
