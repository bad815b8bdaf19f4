"""Play one command line under one condition, in processes of its own, and say what became of it."""

import ctypes
import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.bundle.bundles import make_bundle
from tests.outside.matrix import INPUTS, ROOT, Condition, Row

LIMIT_S = 240
_MARK = "SPECDEBUG_TEST_OUTSIDE"
"""In the environment of everything that a run starts."""
_ROOM = "1m"
"""Of the small disk."""
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1

_ON_A_SMALL_DISK = """
disk=$1 out=$2; shift 2
mount -t tmpfs -o size=$ROOM disk "$disk" && cd "$disk" || exit 99
"$@"; code=$?
rm -f filling; cp -a . "$out"; exit $code
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended: ``files`` are what it left in its folder, ``left`` the processes that run still."""

    code: int
    out: str
    err: str
    files: dict[str, bytes]
    left: list[str]


def play(row: Row, condition: Condition, folder: Path) -> Ended:
    """Run the row's command line under the condition, in an empty folder below ``folder``."""
    inputs, workers, place = (folder / name for name in ("inputs", "workers", "place"))
    for each in (inputs, workers, place):
        each.mkdir()
    make_bundle(inputs / "b.specdebug")
    signals = condition.kind == "signals"
    happens = signals or condition.kind == "disk"
    what = ",".join(condition.signals) if signals else "fill"
    _make_job(inputs / "job", (what.split(",")[0], row.workers or 0, workers) if happens else None)
    argv = [*row.command.split(), *(word.replace(INPUTS, str(inputs)) for word in row.argv)]
    if happens:
        at_once = row.workers is None or (not signals and not row.files)
        done = "-" if at_once else str(row.workers)
        argv = [sys.executable, "-B", "-m", "tests.outside.command", what, done, str(workers), "--", *argv]
    else:
        argv = [sys.executable, "-B", "-m", "specdebug", *argv]
    found = place
    if condition.kind == "disk":
        found = folder / "found"
        found.mkdir()
        argv = [*_unshare(), "bash", "-c", _ON_A_SMALL_DISK, "bash", str(place), str(found), *argv]
    if condition.kind == "folder":
        place.chmod(0o555)
    mark = uuid.uuid4().hex
    unset = ("SGLANG_DEBUG_REVERT_PR", "SPECDEBUG_PATH", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": str(ROOT), "ROOM": _ROOM, "SPECDEBUG_CONFIG": "", _MARK: mark}
    ended = _run(argv, place, environment, condition)
    place.chmod(0o755)
    files = {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()}
    return Ended(ended.returncode, ended.stdout or "", ended.stderr, files, _left(mark, workers))


def _run(
    argv: list[str], place: Path, environment: dict[str, str], condition: Condition
) -> subprocess.CompletedProcess[str]:
    start = partial(
        subprocess.run,
        argv,
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=_PREPARE.get(condition.kind),
    )
    if condition.kind == "pipe":
        ours, theirs = os.pipe()
        os.close(ours)
        with os.fdopen(theirs, "wb") as nobody:
            return start(stdout=nobody)
    if condition.kind == "stdout":
        with open("/dev/full", "wb") as full:
            return start(stdout=full)
    return start(stdout=subprocess.PIPE)


def _make_job(path: Path, happening: tuple[str, int, Path] | None) -> None:
    """Write a command to be tested: one that passes, and to which something happens when it has run that often."""
    script = "#!/bin/bash\n"
    if happening is not None:
        what, done, workers = happening
        deed = "cat /dev/zero > filling 2>/dev/null" if what == "fill" else f"kill -{what[3:]} $PPID; exec sleep 1000"
        script += f'n=$(ls {workers} | wc -l); touch {workers}/$$; [ "$n" = {done} ] && {{ {deed}; }}\n'
    path.write_text(f"{script}exit 0\n")
    path.chmod(0o755)


def _obey_permissions() -> None:
    """Have root refused what the folder's permissions refuse to others."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))


_PREPARE: dict[str, Callable[[], None]] = {"folder": _obey_permissions, "descriptors": _few_descriptors}


def _unshare() -> list[str]:
    return ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@cache
def has_small_disks() -> bool:
    """Whether a disk of one's own may be mounted here."""
    try:
        tried = subprocess.run([*_unshare(), "mount", "-t", "tmpfs", "disk", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


def _left(mark: str, workers: Path) -> list[str]:
    """Processes of a run that are there still, as ``pid: command``, where the system shows them."""
    wanted = f"{_MARK}={mark}".encode()
    found = [f"{pid.name}: a worker" for pid in workers.iterdir() if _runs(int(pid.name))]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(f"{process.name}: {(process / 'cmdline').read_bytes()!r}")
        except OSError:  # gone meanwhile
            continue
    return found


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
