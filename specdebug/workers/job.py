"""Jobs that a pool of workers runs, what it keeps of each while it runs, and how that may end.

Slots are locked files: with sixteen contexts destroyed at a time an H100 was gone for every process, with four it
never was (2026-11-25), so arms that revert a fix or inject faults on a GPU need one of a few, held until their worker
is reaped.
"""

import fcntl
import functools
import os
import re
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from specdebug.base.errors import SpecDebugError
from specdebug.base.files import cache_folder
from specdebug.workers.child import LOG_LIMIT
from specdebug.workers.home import Home, Nest
from specdebug.workers.machine_failure import MachineFailure
from specdebug.workers.system import oom_killed_since, oom_kills
from specdebug.workers.wire import LineReader

VARIABLE = "SPECDEBUG_GPU_AT_RISK"
AT_RISK = 4  # arms that may destroy a context of one GPU at a time, unless the variable says otherwise


@dataclass(frozen=True)
class Slots:
    """``most`` slots of one thing, whose ``name`` is unique among those of its ``kind``."""

    kind: str
    name: str
    most: int

    def take(self) -> int | None:
        """Return a descriptor that holds a slot until it is closed, or None while all are taken. Raises OSError when no
        file can be opened."""
        name = re.sub(r"[^A-Za-z0-9-]", "_", self.name)
        for number in range(self.most):
            file = slot_folder(self.kind) / f"{name}.{number}"
            slot = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            with suppress(BlockingIOError):
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return slot
            os.close(slot)
        return None


@functools.cache
def slot_folder(kind: str) -> Path:
    """Return the folder of this user's slots of a kind; one of this process alone where the user's cache cannot be
    written."""
    try:
        folder = cache_folder(kind)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix=f"specdebug-{kind}-"))


def at_risk_limit() -> int:
    """Return how many arms may be at risk on one GPU at a time. Raises SpecDebugError where the variable is none."""
    told = os.environ.get(VARIABLE, "").strip()
    if not told:
        return AT_RISK
    if not re.fullmatch(r"[1-9][0-9]{0,3}", told):
        raise SpecDebugError(f"{VARIABLE} must be a whole number from 1 to 9999, not {told!r}")
    return int(told)


def slots_at_risk(device: str) -> Slots:
    """Return the slots of the GPU that ``CUDA_VISIBLE_DEVICES`` puts in the place of a device, ``cuda`` or ``cuda:N``.
    Raises SpecDebugError."""
    index = int(device.partition(":")[2] or 0)
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return Slots("gpu", visible[index] if index < len(visible) else str(index), at_risk_limit())


BUSY_LIMIT_S = 300.0  # seconds that one thing which a worker reports to be busy with may take beyond its deadline
GPU_MEMORY_MB = 4096.0
"""Host memory of a worker that uses a GPU, beyond its job's limit: a context with torch, Triton and FlashInfer loaded
has 1 to 3 GiB resident before the engine allocates anything."""
STILL_S = 5.0  # seconds without a report after which a worker that has made a step may be standing still,
# if that is also as many times as long as it ever took from one report to the next since its first step
STILL_TIMES = 10
SETUP_S = 10.0  # before its first step it stands still once it reports nothing for so long, and for half of its time
PATIENCE_S = 30.0
"""Seconds beyond its deadline in which a worker that has made a step may show by a report that it goes on."""

EndKind = Literal["done", "exit", "signal", "timeout", "memory", "interrupted", "lost", "refused"]


@dataclass(frozen=True)
class Job:
    """One run in a worker: ``target`` (``module:function``) is called there with ``payload`` and a sink. ``memory_mb``
    bounds resident memory, without a GPU's :data:`GPU_MEMORY_MB`, and ``processor_s`` the processor time, if that is to
    be: where many run side by side, wall time says little of one. ``at_risk`` names the GPU whose context the job may
    destroy, if any: few such jobs run at a time (:class:`Slots`). ``server``: that which it needs for itself, if any.
    ``may_start`` is asked right before a job of a list is launched; one that may not is dropped, and no listener hears
    of it again. ``home``: the interpreter of its worker, where it is not ours; ``nest``: what its worker is a fork of,
    where it is not the server."""

    name: str
    target: str
    payload: Any
    timeout_s: float = 120.0
    memory_mb: float = 4096.0
    uses_gpu: bool = False
    at_risk: str = ""
    server: str = ""
    home: Home | None = None
    nest: Nest | None = None
    processor_s: float = float("inf")
    may_start: Callable[[], bool] = lambda: True

    @property
    def slots(self) -> Slots | None:
        """Return the slots of which it needs one to run. Raises SpecDebugError."""
        if self.at_risk:
            return slots_at_risk(self.at_risk)
        return Slots("server", self.server, 1) if self.server else None


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker. ``status``: exit status, negative for a signal. ``log``: the end of its output.

    ``failure``: what of the machine failed it, where the pool saw that: no process could be started (then it is
    ``refused``), the kernel killed it for lack of memory, or another process did. No bug ends in SIGKILL.
    ``going``: its time was over, and it went on.
    """

    kind: EndKind
    status: int
    wall_s: float
    peak_rss_mb: float
    log: str
    failure: MachineFailure | None = None
    going: bool = False

    @property
    def signal_name(self) -> str:
        """Return ``SIGSEGV`` and so on, or nothing when no signal ended it."""
        return signal.Signals(-self.status).name if self.status < 0 else ""


class Listener(Protocol):
    """Is told what becomes of jobs, from :meth:`WorkerPool.run` and in the order things happened."""

    def started(self, job: Job) -> None:
        """Take in that the job's worker exists; called once for every job, before anything else."""

    def event(self, job: Job, event: dict[str, Any]) -> None: ...

    def ended(self, job: Job, end: WorkerEnd) -> None:
        """Take in that the job's worker is gone; no event of it will follow."""

    def waiting(self) -> None:
        """Be called some fifty times a second while workers run, even if they report nothing."""


@dataclass
class Worker:
    """The pool's side of a running job: its pipes, its clock, and what it has written so far."""

    job: Job
    event_fd: int
    log_fd: int
    slot: int | None = None
    pid: int = 0
    started_at: float = 0.0
    deadline: float = float("inf")
    dump_until: float | None = None
    busy_since: float | None = None
    peak_rss_mb: float = 0.0
    killed_for: EndKind | None = None
    kill_sent: bool = False
    lines: LineReader = field(default_factory=LineReader)
    log: deque[bytes] = field(default_factory=deque)
    log_size: int = 0
    oom_kills: int | None = field(default_factory=oom_kills)
    failure: MachineFailure | None = None
    heard_at: float = 0.0
    longest_s: float | None = None
    """The longest time from one report to the next since its first step, None before that."""
    going: bool = False

    @property
    def memory_limit_mb(self) -> float:
        """Return how many MiB may be resident."""
        return self.job.memory_mb + (GPU_MEMORY_MB if self.job.uses_gpu else 0.0)

    def start(self, pid: int, now: float) -> None:
        """Take in that it exists, and start its clock."""
        self.pid, self.started_at, self.heard_at = pid, now, now
        self.deadline = now + self.job.timeout_s

    def lose(self, given_up: str | None) -> None:
        """Take in that the fork server is gone; ``given_up`` says why, if it was killed for not answering. A worker
        that had been over a limit by then has ended for that."""
        if given_up is not None:
            self.log.append(f"\n{given_up}\n".encode())
        if self.killed_for not in ("timeout", "memory"):
            self.killed_for = "lost"
            self.failure = MachineFailure("processes", given_up) if given_up is not None else None

    def take_log(self, data: bytes) -> None:
        """Keep what it has printed; what is too long is cut in front."""
        self.log.append(data)
        self.log_size += len(data)
        while self.log_size > LOG_LIMIT and len(self.log) > 1:
            self.log_size -= len(self.log.popleft())

    def end(self, status: int, now: float) -> WorkerEnd:
        """Return how it ended, all that it wrote having been read."""
        kind: EndKind = self.killed_for or ("done" if status == 0 else "signal" if status < 0 else "exit")
        wall_s = now - self.started_at if self.started_at else 0.0
        log = b"".join(self.log).decode("utf-8", "replace")[-LOG_LIMIT:]
        if status == -signal.SIGKILL and kind in ("signal", "lost") and self.failure is None:
            self.failure = self.killed_by_others()
        return WorkerEnd(kind, status, wall_s, self.peak_rss_mb, log, self.failure, self.going)

    def killed_by_others(self) -> MachineFailure:
        """Return, by the kernel's count of kills, who killed this worker or its server, if not the pool.

        The worker's own limit was not reached, or the pool would have killed it: so the machine has less than that.
        """
        if not oom_killed_since(self.oom_kills):
            whom = "the fork server" if self.killed_for == "lost" else "it"
            return MachineFailure("killed", f"{whom} got SIGKILL, and not from specdebug; out of memory?")
        line = f"the kernel killed a worker at {self.peak_rss_mb:.0f} MiB resident"
        return MachineFailure("memory", f"{line}, whose limit is {self.memory_limit_mb:.0f} MiB")

    def hear(self, event: Mapping[str, Any], now: float) -> None:
        """Take in a report: one of being busy stops the worker's clock, the next of any kind starts it again."""
        self.deadline = self.deadline_at(now)
        busy = event.get("event") == "progress" and bool(event.get("text"))
        self.busy_since = now if busy else None
        if self.longest_s is not None:
            self.longest_s = max(self.longest_s, now - self.heard_at)
        elif event.get("event") == "step":
            self.longest_s = 0.0
        self.heard_at = now

    def stands_still(self, now: float) -> bool:
        """Return True if it has reported nothing for so long that it is not just slow."""
        if self.longest_s is None:
            return now - self.heard_at >= max(SETUP_S, self.job.timeout_s / 2)
        return now - self.heard_at >= max(STILL_S, STILL_TIMES * self.longest_s)

    def is_over(self, now: float) -> bool:
        """Return True if its time is over, and it is known whether it stands still, or has been waited for in vain."""
        deadline = self.deadline_at(now)
        if now < deadline:
            return False
        known = self.longest_s is None or self.heard_at >= deadline or self.stands_still(now)
        return known or now >= deadline + PATIENCE_S

    def deadline_at(self, now: float) -> float:
        """Return the deadline, put off by how long the worker has been busy."""
        return self.deadline + (0.0 if self.busy_since is None else min(now - self.busy_since, BUSY_LIMIT_S))
