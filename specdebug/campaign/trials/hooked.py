"""Trials of any command with proof: its Python processes begin with the hook of ``patching/hook``, which reverts the
fixes and counts that their lines ran. One look, a run with nothing reverted, says which packages the job imports, and
with that which fixes can be tried."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from specdebug.base.files import replace_file
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.command import CommandSource, Takes, result_of, trial_environment
from specdebug.campaign.trials.state import imported_state
from specdebug.logs.scan import HANG
from specdebug.patching.drift.check import fit
from specdebug.patching.drift.dist import Dist, open_package
from specdebug.patching.hook.child import ranges_in_order
from specdebug.patching.hook.folder import HookedRun
from specdebug.patching.toggles import OWN_ENGINE, Registry, Toggle
from specdebug.scenario.library import Library

LOOKS = 3
"""Looks that must fail alike for a failure to count as there with nothing reverted."""


@dataclass(frozen=True)
class Look:
    """A job with nothing reverted: it imported these ``packages``, by name with their origins, in processes under the
    hook, and all its looks failed with this ``signature``; None where one did not."""

    packages: Mapping[str, str]
    signature: str | None = None

    @property
    def state(self) -> dict[str, str]:
        """The state of the packages, where they are now."""
        return imported_state(self.packages)


class HookedSource(CommandSource):
    """Runs a command under the hook, with the fixes of ``numbers`` as candidates, in whatever package they are.

    Raises SpecDebugError when there is no such program, or no such fix.

    Attributes:
        packages: those that trials with nothing reverted imported, by name with their origins.
    """

    proven = True

    def __init__(
        self,
        command: Sequence[str],
        registry: Registry,
        *,
        numbers: Sequence[int] = (),
        look: Look | None = None,
        capacity: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        self._fixes = {str(number): registry.find(str(number)) for number in numbers}
        self._look = look
        self.packages: dict[str, str] = {}
        engines = OWN_ENGINE, *(() if look is None else look.packages)
        limits: dict[str, Any] = {"capacity": capacity, "timeout_s": timeout_s}
        super().__init__(command, self._fixes.values(), takes=Takes.SET, engines=engines, proof=True, **limits)

    def state(self) -> dict[str, str]:
        return super().state() | (self._look.state if self._look is not None else {})

    def look(self) -> Look:
        """Run the job with nothing reverted: once, or while it fails up to ``LOOKS`` times. Raises as :meth:`wait`."""
        seen: list[TrialResult] = []
        while len(seen) < LOOKS and all(each.outcome == "fail" for each in seen):
            self.start(Trial(-1, frozenset(), len(seen)))
            seen.append(self.wait()[1])
        alike = len({(each.outcome, each.signature) for each in seen}) == 1
        return Look(self.packages, seen[0].signature if alike else None)

    def run(self, trial: Trial) -> TrialResult:
        fixes = [self._fixes[number] for number in sorted(trial.reverted, key=int)]
        with HookedRun(fixes) as run:
            ended = self.tried(run.environment(trial_environment(trial)))
            told = run.told()
        result = result_of(ended)
        if not trial.reverted:
            self.packages |= told.packages
        if told.misfits and result.signature != HANG:
            why = "; ".join(f"{number} cannot be reverted: {why}" for number, why in told.misfits.items())
            return TrialResult("untestable", None, ended.seconds, why)
        ran = frozenset(number for number in trial.reverted if told.hits(int(number)))
        return replace(result, ran=ran, counted=True)


def reachable(registry: Registry, packages: Mapping[str, str]) -> tuple[list[Toggle], dict[str, str]]:
    """The fixes of the packages that a job imports; and of those that do not fit what is there, by number, why. Raises
    SpecDebugError for files that are damaged."""
    fitting, left = [], dict[str, str]()
    for toggle in registry.all:
        engines = [engine for engine in toggle.foreign if engine in packages and engine not in toggle.mends]
        misfits = {engine: why for engine in engines if (why := misfit(toggle, engine, Path(packages[engine])))}
        if misfits:
            left[str(toggle.pr)] = "; ".join(misfits.values())
        elif engines or (toggle.patches and OWN_ENGINE in packages):
            fitting.append(toggle)
    return fitting, left


def misfit(toggle: Toggle, engine: str, origin: Path) -> str | None:
    """Why a fix cannot be reverted in a package that is imported from there; None where it can. As in ``hook/child.py``
    the range of the version decides, and without one the first range whose edits fit."""
    folder = origin.parent if origin.suffix else origin
    versions = (path.name.removesuffix(".dist-info").partition("-")[2] for path in _infos(folder, engine))
    version = next(versions, None)
    dist, problems = Dist(engine, Version(version or "0"), open_package(folder)), list[str]()
    for wanted in ranges_in_order(toggle.foreign[engine], version):
        found = fit(dist, toggle.foreign[engine][wanted]).problems
        if not found:
            return None
        problems.append(f"does not fit {engine} {version or 'in ' + str(folder)}: {found[0].what}")
    return problems[0] if problems else f"has no patches for {engine} {version}"


def _infos(folder: Path, engine: str) -> Iterable[Path]:
    return folder.parent.glob(f"{engine.replace('-', '_')}-*.dist-info")


def hooked_source(library: Library, command: Sequence[str], **options: Any) -> HookedSource:
    """Return a command's source, as a kind for :func:`made_there`."""
    return HookedSource(command, library.registry, **options)


def question(command: Sequence[str], timeout_s: float | None) -> str:
    """Return the question of a command's search, as of its source."""
    return HookedSource(command, Registry({}), timeout_s=timeout_s).question


def kept_look(journal: Path, state: Mapping[str, str]) -> Look | None:
    """The look of an earlier run of the same search, where what the job is known to run is as it was."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        kept = json.loads(_beside(journal).read_bytes())
        look = Look(**kept["look"])
        if kept["state"] == {**state, **look.state}:
            return look
    return None


def keep_look(journal: Path, state: Mapping[str, str], look: Look) -> None:
    """Keep a look beside the journal. One that cannot be written is made again."""
    with contextlib.suppress(OSError):
        kept = {"state": {**state, **look.state}, "look": vars(look)}
        replace_file(_beside(journal), json.dumps(kept).encode())


def _beside(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.look.json")
