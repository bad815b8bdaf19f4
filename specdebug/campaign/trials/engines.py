"""Trials of a scenario on one engine after another: releases that are installed, or commits of a checkout, beside the
dependencies of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.commits import between, commit_of, top_of
from specdebug.campaign.trials.scenario import WarmSource, arm_of, texts_of, within
from specdebug.campaign.trials.state import engine_state
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.installs.release import Release, find_recipe, order, parse_release, recipes
from specdebug.targets.installs.store import Installed, StoreError, find_installed, look, store_folder
from specdebug.targets.installs.trees import forget
from specdebug.targets.settings import ReleasedEngine

GOOD = ""
"""In the place of a candidate: the engine that is good."""


@dataclass(frozen=True)
class EngineRange:
    """The engines of a search, the oldest first, each by the name of its candidate, after the good one (``GOOD``).
    ``lacking``: releases between them that are not installed."""

    candidates: tuple[Candidate, ...]
    targets: Mapping[str, ReleasedEngine]
    lacking: tuple[Release, ...] = ()


def releases_between(target: ReleasedEngine | None, good: str, bad: str) -> EngineRange:
    """The installed releases after ``good`` up to ``bad``. ``target``: what else holds of each, such as its store.
    Raises SpecDebugError where they are of two engines, one is not installed, or the first is not older."""
    first, last = (parse_release(text) for text in (good, bad))
    if first.engine != last.engine:
        raise SpecDebugError(f"--good {good} and --bad {bad} are two engines; name two releases of one")
    if target is not None and target.kind != first.engine:
        raise SpecDebugError(f"--good {good} is no release of {target.kind}, the engine of --target or of the scenario")
    settings = target or ReleasedEngine(release=first.engine)
    store = _store(settings)
    ends = [_installed(store, each, option) for each, option in ((first, "good"), (last, "bad"))]
    low, high = (order(each.version) for each in ends)
    if low == high:
        raise SpecDebugError(f"--good {good} and --bad {bad} are the same release, {ends[0].release}")
    if low > high:
        raise SpecDebugError(f"--good {good} is newer than --bad {bad}; the other way round it is older")
    of_engine = [each for each in look(store)[0] if each.engine == first.engine and each.device == ends[1].device]
    there = sorted((each for each in of_engine if low < order(each.version) <= high), key=lambda e: order(e.version))
    usable = [each for each in there if each.complete and not each.gone]
    known = {order(each.version) for each in usable}
    lacking = [each.release for each in reversed(recipes()) if each.engine == first.engine]
    lacking = [each for each in lacking if each.version and low < order(each.version) < high]
    named = {str(each.release): replace(settings, release=str(each.release)) for each in usable}
    return EngineRange(
        tuple(Candidate(name, f"the release {name}") for name in named),
        {GOOD: replace(settings, release=str(ends[0].release)), **named},
        tuple(each for each in lacking if each.version and order(each.version) not in known),
    )


def _store(target: ReleasedEngine) -> Path:
    return store_folder(None if target.store is None else Path(target.store))


def _installed(store: Path, release: Release, option: str) -> Installed:
    """The environment of a release. Raises SpecDebugError."""
    try:
        return find_installed(store, release)
    except StoreError as error:
        if not any(each.engine == release.engine and release.admits(each.version) for each in look(store)[0]):
            find_recipe(release, "cpu")  # which says so where there is none
        raise SpecDebugError(f"--{option}: {error}") from None


def commits_between(target: ReleasedEngine, repo: Path, good: str, bad: str) -> EngineRange:
    """The commits of a checkout after ``good`` up to ``bad``, each beside the dependencies of ``target``. Raises
    SpecDebugError as ``commits.CommitSource``."""
    top = top_of(repo)
    first, last = (commit_of(top, name, option) for name, option in ((good, "good"), (bad, "bad")))
    candidates = between(top, first, last, (good, bad))
    commits = {GOOD: first, **{each.id: each.id for each in candidates}}
    return EngineRange(
        candidates, {name: replace(target, tree=str(top), commit=each) for name, each in commits.items()}
    )


class EngineSource(WarmSource):
    """Runs one arm of a scenario again and again, on different engines.

    A trial's set holds the engine that it runs on, or nothing for the good one. One that cannot be laid out, imported
    or asked for the arm's options is untestable.

    Args:
        engines: those to run on.
        arm: by default the first that reverts nothing, else the first.
        timeout_s: of a trial, instead of the scenario's own.

    Raises SpecDebugError for an unknown arm, and a malformed pack or toggle.
    """

    proven = True

    def __init__(
        self,
        library: Library,
        scenario: Scenario,
        engines: EngineRange,
        *,
        arm: str | None = None,
        jobs: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        arm = arm_of(scenario, arm)
        self._library, self._targets, self.candidates = library, engines.targets, engines.candidates
        good = engines.targets[GOOD]
        super().__init__(
            "engines",
            _on(within(scenario, timeout_s), arm, good),
            arm,
            library.packs(scenario.probes_of(arm)),
            asked=[str(each) for each in engines.targets.values()],
            own=(),
            texts=texts_of(library.registry.toggles.values()),
            jobs=jobs,
        )

    def state(self) -> dict[str, str]:
        """As of any scenario, on each of the engines."""
        states = [engine_state(each) for each in self._targets.values() if each.commit is None]
        return {**super().state(), **{name: fact for state in states for name, fact in state.items()}}

    def may_be_wrong(self, trial: Trial) -> bool:
        return True

    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        target = self._targets[next(iter(trial.reverted), GOOD)]
        toggles = self._library.toggles(self._scenario.arms[self.arm].revert, target)
        return _on(self._scenario, self.arm, target), toggles

    def close(self) -> None:
        """End what runs, and remove the code of commits."""
        super().close()
        if commits := [each.commit for each in self._targets.values() if each.commit is not None]:
            good = self._targets[GOOD]
            forget(_installed(_store(good), good.named, "target"), commits)


def _on(scenario: Scenario, arm: str, target: ReleasedEngine) -> Scenario:
    return replace(scenario, arms={**scenario.arms, arm: replace(scenario.arms[arm], target=target)})
