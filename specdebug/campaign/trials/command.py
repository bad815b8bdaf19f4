"""Trials of any command: the reverted fixes reach it through the environment, its exit status is the verdict: 0 passes,
125 says that it cannot be tested, anything else fails, as for ``git bisect run``. Nothing proves that it reverts them.

Commands run as process groups of their own, so that nothing of them is left when they are over or unwanted."""

import contextlib
import itertools
import os
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Candidate, TrialSource
from specdebug.campaign.trials.state import command_state, content_digest, digest_of, files_of
from specdebug.logs.scan import HANG, REVISION, LogReader, Scan, name_of
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.toggles import OWN_ENGINE, Toggle, apart
from specdebug.scenario.library import Library
from specdebug.workers.child import Child
from specdebug.workers.foreground import cannot_run, require_program


class Takes(StrEnum):
    """SGLang itself takes one number, and ignores a list; what runs our own engine takes a set."""

    ONE = "one"
    SET = "set"

    def apart(self, toggles: Iterable[Toggle], engines: Iterable[str]) -> frozenset[frozenset[str]]:
        """Return the pairs of fixes that it cannot revert together: all, or those that edit one line of an engine."""
        if self is Takes.SET:
            return apart(toggles, engines)
        names = (str(toggle.pr) for toggle in toggles)
        return frozenset(map(frozenset, itertools.combinations(names, 2)))

    def check(self, toggles: Sequence[Toggle], engines: Iterable[str]) -> None:
        pairs = self.apart(toggles, engines)
        if not pairs:
            return
        one, other = sorted(min(pairs, key=sorted), key=int)
        if self is Takes.ONE:
            hint = "SGLANG_DEBUG_REVERT_PR takes one number, as SGLang has it; say --takes set for what takes a list"
        else:
            hint = "they edit the same line of an engine"
        raise SpecDebugError(f"{one} and {other} cannot be reverted together: {hint}")


END_BYTES = 64 * 1024  # bytes of the output that are kept from the beginning, and from the end
_STRAGGLER_S = 1.0
"""Seconds to wait for the end of the output once the command is over: a daemon it left may hold the pipe for ever."""


@dataclass(frozen=True)
class Ended:
    """``status``: negative for a signal that killed it; ``output``: both ends of what it printed; ``log``: what all
    says."""

    status: int
    timed_out: bool
    output: str
    seconds: float
    log: Scan


class CommandStopped(Exception):
    """The command was not started, or was killed, because its source was closed."""


class _Output:
    """The output of a process, read by a thread: both ends of it, and what all of it says."""

    def __init__(self, process: Child) -> None:
        assert process.stdout is not None  # for the type checker: a pipe was asked for
        self._pipe = process.stdout
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = False
        self._reader: LogReader | None = LogReader(settings=False)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), END_BYTES):
                with self._lock:
                    if self._reader is None:  # only drained: what still prints is not asked for
                        continue
                    self._reader.feed(data)
                    room = END_BYTES - len(self._head)
                    self._head += data[:room]
                    self._tail += data[room:]
                    if len(self._tail) > END_BYTES:
                        del self._tail[:-END_BYTES]
                        self._dropped = True

    def end(self) -> tuple[str, Scan]:
        """Return the output as far as it has come, and what it says; nothing is read after this. Call it once."""
        self._thread.join(_STRAGGLER_S)
        with self._lock:
            assert self._reader is not None  # for the type checker: it is taken away here only
            reader, self._reader = self._reader, None
        gap = b"\n...\n" if self._dropped else b""
        return bytes(self._head + gap + self._tail).decode("utf-8", errors="replace"), reader.close()


_LOOK_S = 0.25  # seconds to wait without looking: a signal that comes just before the wait begins does not end it


class ThreadedSource(ABC):
    """Starts, waits and closes, with commands under way in several threads; what a trial does is up to :meth:`run`,
    which may start nothing but by :meth:`execute`."""

    rerun = 0  # a command's end is its verdict, however it came about

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ended: queue.SimpleQueue[tuple[Trial, TrialResult | Exception]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._running: set[Child] = set()
        self._closed = False

    @abstractmethod
    def run(self, trial: Trial) -> TrialResult:
        """Make one trial; called in a thread of its own. What it raises, :meth:`wait` raises."""

    def execute(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float | None = None
    ) -> Ended:
        """Run a command to its end, or to its deadline. Raises CommandStopped when all is being closed, or OSError."""
        begun = time.monotonic()
        with self._lock:
            if self._closed:
                raise CommandStopped
            process = Child(argv, env, cwd=cwd)
            self._running.add(process)
        output = _Output(process)
        late = threading.Event()
        timer = None
        if timeout_s is not None:
            # No thread can wait for longer, nor would anybody for these 292 years.
            timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), self._expire, (process, late))
            timer.daemon = True
            timer.start()
        status = process.wait()
        if timer is not None:
            timer.cancel()
        with self._lock:
            self._running.discard(process)
            closed = self._closed
            process.end()  # what it left in the background
        if closed:
            raise CommandStopped
        text, log = output.end()
        return Ended(status, late.is_set(), text, time.monotonic() - begun, log)

    def start(self, trial: Trial) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._work, args=(trial,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> tuple[Trial, TrialResult]:
        while True:
            interrupts.check()
            with contextlib.suppress(queue.Empty):
                trial, result = self._ended.get(timeout=_LOOK_S)
                break
        if isinstance(result, Exception):
            raise result
        return trial, result

    def close(self) -> None:
        """Kill what runs, and wait until its threads have noticed, or until one more signal comes."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill_all()
        patience = interrupts.Patience()
        for thread in self._threads:
            # Not alive if a Ctrl-C came while it was being started: it will find us closed.
            while thread.is_alive() and not patience.over:
                thread.join(_LOOK_S)

    def _expire(self, process: Child, late: threading.Event) -> None:
        with self._lock:
            if process in self._running and process.returncode is None:
                late.set()
                process.kill_all()

    def _work(self, trial: Trial) -> None:
        try:
            self._ended.put((trial, self.run(trial)))
        except CommandStopped:
            return
        except Exception as error:
            self._ended.put((trial, error))


SEED_VARIABLE = "SPECDEBUG_TRIAL_SEED"
UNTESTABLE = 125
TAIL_CHARS = 4000


_NOT_REGISTERED = re.compile(r"PR #\d+ revert is not registered[^\n]{0,200}")
"""SGLang ends so when its variable holds a number that its own registry lacks."""


class CommandSource(ThreadedSource):
    """Runs a command with fixes reverted that it is told by a variable. One that takes longer than ``timeout_s`` is
    killed and has failed with ``hang``.

    ``takes``: what the command makes of the variable; of an engine's own, one number. ``engines``: those in which two
    fixes may edit one line; all, unless given. ``proof``: trials are proven, as a subclass has it. Raises
    SpecDebugError when there is no such program.

    Attributes:
        apart: the pairs of candidates that no trial may hold.
    """

    proven = False  # nothing shows that a command ran the lines of a fix that it was to revert

    def __init__(
        self,
        command: Sequence[str],
        toggles: Iterable[Toggle],
        *,
        takes: Takes = Takes.ONE,
        engines: Iterable[str] | None = None,
        proof: bool = False,
        capacity: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(capacity)
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._cwd = Path.cwd()
        require_program(self._command[0], self._cwd)
        toggles = tuple(toggles)
        self.candidates = toggle_candidates(toggles)
        every = {OWN_ENGINE, *(engine for toggle in toggles for engine in toggle.foreign)}
        self.apart = takes.apart(toggles, every if engines is None else every & {*engines})
        how = "under the hook" if proof else takes
        self.question = digest_of(limited("toggles", timeout_s), how, str(self._cwd), *self._command)
        self._toggles = digest_of(*(toggle.path.read_text(encoding="utf-8") for toggle in toggles))
        facts = command_facts(self._command, self._cwd)
        self.identity = digest_of(self.question, __version__, REVISION, *facts, self._toggles)

    def state(self) -> dict[str, str]:
        return {**reader_state(), "toggles": f"#{self._toggles}", **command_state(self._command, self._cwd)}

    def run(self, trial: Trial) -> TrialResult:
        env = trial_environment(trial)
        env.pop(REVERT_VARIABLE, None)
        if trial.reverted:
            env[REVERT_VARIABLE] = reverts_text(trial.reverted)
        ended = self.tried(env)
        unknown = _NOT_REGISTERED.search(ended.output) if trial.reverted and ended.status else None
        if unknown is not None:
            return TrialResult("untestable", None, ended.seconds, unknown[0])
        return result_of(ended)

    def tried(self, env: Mapping[str, str]) -> Ended:
        """Run the command with these variables. Raises as :meth:`execute`, SpecDebugError where it cannot start."""
        try:
            return self.execute(self._command, cwd=self._cwd, env=env, timeout_s=self._timeout_s)
        except OSError as error:
            raise cannot_run(self._command[0], error) from None


def toggle_candidates(toggles: Iterable[Toggle]) -> tuple[Candidate, ...]:
    return tuple(Candidate(str(toggle.pr), toggle.title) for toggle in toggles)


def reverts_text(reverted: Iterable[str]) -> str:
    return ",".join(sorted(reverted, key=int))


def trial_environment(trial: Trial) -> dict[str, str]:
    return {**os.environ, SEED_VARIABLE: str(trial.seed)}


def result_of(ended: Ended) -> TrialResult:
    tail = ended.output[-TAIL_CHARS:]
    if ended.timed_out:
        return TrialResult("fail", HANG, ended.seconds, tail)
    if ended.status in (0, UNTESTABLE):
        return TrialResult("untestable" if ended.status else "pass", None, ended.seconds, tail)
    main = ended.log.main
    if main is not None and main.text not in " ".join(tail.split()):  # it stands further up
        tail = f"line {main.line}: {main.text}\n...\n{tail}"
    return TrialResult("fail", name_of(ended.log, ended.status), ended.seconds, tail)


def limited(kind: str, timeout_s: float | None) -> str:
    """Return what trials are, and how long one may take: in a longer time a killed command might have passed."""
    return kind if timeout_s is None else f"{kind}, {timeout_s} s each"


def reader_state() -> dict[str, str]:
    """Return what names of failures belong to: the version, and the revision of the rules that read a log."""
    return {"specdebug": __version__, "names of failures": f"revision {REVISION}"}


def command_facts(command: Sequence[str], cwd: Path) -> list[str]:
    """Return a command's words, and digests of the files they name."""
    return [*command, *map(content_digest, files_of(command, cwd).values())]


def made_there(kind: Callable[..., TrialSource], folders: Sequence[Path], *args: Any, **options: Any) -> TrialSource:
    """Return a source of a kind that reads a library, made anew on another machine: content is read from that machine's
    own folders and from ``folders``. Raises SpecDebugError where it cannot be tried there."""
    return kind(Library(folders), *args, **options)


def command_source(library: Library, command: Sequence[str], **options: Any) -> CommandSource:
    """Return a command's source, as a kind for :func:`made_there`."""
    return CommandSource(command, library.registry.toggles.values(), **options)
