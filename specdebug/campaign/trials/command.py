"""Trials of any command: the reverted fixes reach it through the environment, its exit status is the verdict.

No more reach it at a time than its engine takes, and never two that edit one line. Nothing proves that it reverts them.

0 is a pass, 125 says that it cannot be tested, anything else is a failure, as for ``git bisect run``. Triage's rules
(``specdebug.logs``) name a failure by what the command printed. Each trial's seed is in ``SPECDEBUG_TRIAL_SEED``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from specdebug import __version__
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.process import Ended
from specdebug.campaign.trials.source import Candidate
from specdebug.campaign.trials.state import command_state, content_digest, digest_of, files_of
from specdebug.campaign.trials.takes import Takes
from specdebug.campaign.trials.threads import ThreadedSource
from specdebug.logs.naming import HANG, REVISION, name_of
from specdebug.logs.scan import Scan
from specdebug.patching.toggles import OWN_ENGINE, REVERT_VARIABLE, Registry, Toggle
from specdebug.workers.machine_failure import MachineFailed, machine_failure

SEED_VARIABLE = "SPECDEBUG_TRIAL_SEED"
UNTESTABLE = 125
TAIL_CHARS = 4000


_NOT_REGISTERED = re.compile(r"PR #\d+ revert is not registered[^\n]{0,200}")
"""SGLang ends so when its variable holds a number that its own registry lacks."""


class CommandSource(ThreadedSource):
    """Runs a command with fixes of a registry reverted. One that takes longer than ``timeout_s`` is killed and has
    failed with ``hang``.

    ``takes``: what the command makes of the variable; of an engine's own, one number. Raises SpecDebugError when there
    is no such program.

    Attributes:
        apart: the pairs of candidates that no trial may hold.
    """

    proven = False
    """Nothing shows that a command ran the lines of a fix that it was to revert."""

    def __init__(
        self,
        command: Sequence[str],
        registry: Registry,
        *,
        takes: Takes = Takes.ONE,
        capacity: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(capacity)
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._cwd = Path.cwd()
        require_program(self._command[0], self._cwd)
        toggles = registry.toggles.values()
        self.candidates = toggle_candidates(toggles)
        self.apart = takes.apart(toggles, {OWN_ENGINE, *(engine for toggle in toggles for engine in toggle.foreign)})
        self.question = digest_of(limited("toggles", timeout_s), takes, str(self._cwd), *self._command)
        self._toggles = digest_of(*(toggle.path.read_text(encoding="utf-8") for toggle in registry.toggles.values()))
        facts = command_facts(self._command, self._cwd)
        self.identity = digest_of(self.question, __version__, REVISION, *facts, self._toggles)

    def state(self) -> dict[str, str]:
        return {**reader_state(), "toggles": f"#{self._toggles}", **command_state(self._command, self._cwd)}

    def run(self, trial: Trial) -> TrialResult:
        env = trial_environment(trial)
        env.pop(REVERT_VARIABLE, None)
        if trial.reverted:
            env[REVERT_VARIABLE] = reverts_text(trial.reverted)
        try:
            ended = self.processes.run(self._command, cwd=self._cwd, env=env, timeout_s=self._timeout_s)
        except OSError as error:
            raise cannot_run(self._command[0], error) from None
        unknown = _NOT_REGISTERED.search(ended.output) if trial.reverted and ended.status else None
        if unknown is not None:
            return TrialResult("untestable", None, ended.seconds, unknown[0])
        return result_of(ended)


def toggle_candidates(toggles: Iterable[Toggle]) -> tuple[Candidate, ...]:
    """Fixes as candidates of a search."""
    return tuple(Candidate(str(toggle.pr), toggle.title) for toggle in toggles)


def reverts_text(reverted: Iterable[str]) -> str:
    """Return a set of fixes as the environment holds it."""
    return ",".join(sorted(reverted, key=int))


def trial_environment(trial: Trial) -> dict[str, str]:
    """Return our environment with the trial's seed."""
    return {**os.environ, SEED_VARIABLE: str(trial.seed)}


def result_of(ended: Ended) -> TrialResult:
    """Return what the end of a command says of its trial."""
    tail = ended.output[-TAIL_CHARS:]
    if ended.timed_out:
        return TrialResult("fail", HANG, ended.seconds, tail)
    if ended.status not in (0, UNTESTABLE):
        return TrialResult("fail", name_of(ended.log, ended.status), ended.seconds, _evidence(ended.log, tail))
    return TrialResult("pass" if ended.status == 0 else "untestable", None, ended.seconds, tail)


def _evidence(log: Scan, tail: str) -> str:
    """Return the end of an output, and before it the line that names the failure where that stands further up."""
    main = log.main
    if main is None or main.text in " ".join(tail.split()):
        return tail
    return f"line {main.line}: {main.text}\n...\n{tail}"


def require_program(program: str, cwd: Path) -> None:
    """Raise SpecDebugError unless ``program`` names something that can be run from ``cwd``."""
    if os.sep not in program:
        if shutil.which(program) is None:
            here = f"; to run the file in this folder write ./{program}" if (cwd / program).is_file() else ""
            raise SpecDebugError(f"there is no command {program}{here}")
        return
    path = cwd / program
    if not path.exists():
        raise SpecDebugError(f"there is no command {program}: no such file")
    if not path.is_file() or not os.access(path, os.X_OK):
        hint = f"; chmod +x {program}" if path.is_file() else ""
        raise SpecDebugError(f"{program} cannot be run: it is not an executable file{hint}")


def cannot_run(program: str, error: OSError) -> SpecDebugError:
    """Return the error for a command that does not start: the machine's if it has no process to give."""
    failure = machine_failure(error)
    if failure is not None:
        return MachineFailed(failure)
    hint = "; a script needs a first line such as #!/bin/bash" if error.strerror == "Exec format error" else ""
    return SpecDebugError(f"{program} cannot be run: {error.strerror}{hint}")


def limited(kind: str, timeout_s: float | None) -> str:
    """Return what trials are, and how long one may take: in a longer time a killed command might have passed."""
    return kind if timeout_s is None else f"{kind}, {timeout_s} s each"


def reader_state() -> dict[str, str]:
    """Return what names of failures belong to: the version, and the revision of the rules that read a log."""
    return {"specdebug": __version__, "names of failures": f"revision {REVISION}"}


def command_facts(command: Sequence[str], cwd: Path) -> list[str]:
    """Return a command's words, and digests of the files they name."""
    return [*command, *map(content_digest, files_of(command, cwd).values())]
