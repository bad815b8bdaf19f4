"""A source whose trials are one arm of a scenario, run warm, each with something changed."""

import json
import platform
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from specdebug import __version__
from specdebug.base.errors import CannotRunHere, InvalidOption, SpecDebugError, did_you_mean
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.warm import ArmAtFault, WarmPool
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.command import Takes, toggle_candidates
from specdebug.campaign.trials.state import arm_state, digest_of
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Fault
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import check_faults
from specdebug.scenario.grammar import Scenario, merge
from specdebug.scenario.library import Library
from specdebug.scenario.packs import ProbePack
from specdebug.scenario.target_ranges import environment_of
from specdebug.targets.base import Target
from specdebug.targets.installs.fit import edit_imports
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine, engine_of, is_of_others
from specdebug.verdict.outcome import Evidence, Outcome, decide
from specdebug.verdict.signatures import names_place


class WarmSource(ABC):
    """Starts, waits, closes and says what its trials belong to; derived classes say how a trial changes the arm, and
    what its end says.

    Args:
        kind: of changes; ``asked``: what else decides what is searched, but for the file's content.
        own: fixes that every trial reverts; ``toggles``: those that the workers are made ready for.
        texts: the content of files that trials depend on besides the scenario and its packs.

    ``question``: a digest of what is searched, the same when that changes; ``identity``: see ``TrialSource``.
    """

    def __init__(
        self,
        kind: str,
        scenario: Scenario,
        arm: str,
        packs: Sequence[ProbePack],
        *,
        asked: Sequence[str],
        own: Sequence[Toggle],
        toggles: Sequence[Toggle] | None = None,
        texts: Sequence[str] | None = None,
        jobs: int,
    ) -> None:
        self.arm = arm
        self._scenario = scenario
        self._packs = tuple(packs)
        self._own = tuple(own)
        self._pool = WarmPool(scenario, (arm,), own if toggles is None else toggles, jobs)
        self._trials: dict[str, Trial] = {}
        self._refused: deque[tuple[Trial, TrialResult]] = deque()
        self._has_run = False
        over = json.dumps([scenario.overrides, scenario.limits.timeout_s], sort_keys=True)
        path, target = str(Path(scenario.path).resolve()), str(scenario.target_of(arm))
        self.question = digest_of(kind, path, target, arm, over, *asked)
        self._texts = digest_of(*(texts_of(own) if texts is None else texts))
        self._facts = digest_of(
            __version__,
            platform.python_version(),  # prompts are cut from its library
            json.dumps([scenario.to_dict(), scenario.overrides], sort_keys=True),
            repr([(pack.name, pack.mode, [entry.rule for entry in pack.entries]) for pack in self._packs]),
        )
        self.identity = digest_of(kind, arm, *asked, self._facts, self._texts)

    def state(self) -> dict[str, str]:
        facts = {"toggles": f"#{self._texts}", f"scenario {self._scenario.path}": f"#{self._facts}"}
        return facts | arm_state(self._scenario, self.arm)

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def rerun(self) -> int:
        return self._pool.rerun

    @abstractmethod
    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        """Return the scenario as the trial has it, and the fixes that are reverted besides the arm's own. Raises
        InvalidOption for options that do not go together."""

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return what an arm's end says of its trial. What it raises, :meth:`wait` raises."""
        return result_of(ended.outcome)

    def may_be_wrong(self, trial: Trial) -> bool:
        """Return True if the change alone can have made the scenario wrong, so that a trial is untestable where any
        other would end the search."""
        return False

    def start(self, trial: Trial) -> None:
        """Begin a trial. Options that do not go together make it untestable, as does whatever the change alone can have
        made wrong."""
        try:
            scenario, toggles = self.changed(trial)
            key = f"trial {trial.number}"
            run = ArmRun(key, scenario, self.arm, trial.seed, self._packs, (*self._own, *toggles))
            self._pool.start(run)
        except SpecDebugError as error:
            if not (isinstance(error, InvalidOption) or (error.exit_code == 2 and self.may_be_wrong(trial))):
                raise
            self._refused.append((trial, TrialResult("untestable", None, 0.0, str(error))))
        else:
            self._trials[key] = trial

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the next trial to end. Raises ArmAtFault when the scenario itself is wrong, CannotRunHere when this
        machine lacks what it needs: every further trial would say the same."""
        if self._refused:
            return self._refused.popleft()
        try:
            ended = self._pool.wait()
        except ArmAtFault as fault:
            trial = self._trials.pop(fault.run.key)
            if not self.may_be_wrong(trial):
                raise
            return trial, TrialResult("untestable", None, 0.0, str(fault))
        trial, outcome = self._trials.pop(ended.run.key), ended.outcome
        if outcome.unavailable and not self._has_run and not self.may_be_wrong(trial):
            raise CannotRunHere(f"{self._scenario.path}: arm '{self.arm}': {outcome.detail}")
        self._has_run = self._has_run or not outcome.unavailable
        result = self.result_of(trial, ended)
        spent = outcome.metrics.processor_s
        return trial, replace(result, not_engine_code=outcome.not_engine_code, warm=outcome.warm, processor_s=spent)

    def close(self) -> None:
        self._pool.close()


def texts_of(toggles: Iterable[Toggle]) -> list[str]:
    return [toggle.path.read_text(encoding="utf-8") for toggle in toggles]


def within(scenario: Scenario, timeout_s: float | None) -> Scenario:
    return scenario if timeout_s is None else replace(scenario, limits=replace(scenario.limits, timeout_s=timeout_s))


class ScenarioSource(WarmSource):
    """Runs one arm of a scenario again and again, with fixes reverted or engine options set.

    A trial fails by the arm's verdict alone. An arm that comes to no verdict only because a reverted fix's lines never
    ran has passed. Any other unknown (nothing was generated, no probe was reached, it could not be set up) is
    untestable.

    Args:
        arm: by default the first that reverts nothing, else the first.
        options: engine options as ``page_size=16``, or, where one goes only with another, several of them as
            ``speculative={eagle_topk: 1, num_draft_tokens: 7}``; candidates instead of every fix that the arm does not
            revert itself.
        timeout_s: of a trial, instead of the scenario's own.
        takes: what a server that is not ours makes of the fixes it is to leave out.

    ``apart``: the pairs of candidates that no trial may hold; ``proven``: what a trial switches on takes effect, or is
    known not to. Raises SpecDebugError when there is no such arm or option, a value that the option cannot have, or a
    malformed probe pack or toggle.
    """

    def __init__(
        self,
        library: Library,
        scenario: Scenario,
        *,
        arm: str | None = None,
        options: Sequence[str] = (),
        jobs: int = 1,
        timeout_s: float | None = None,
        takes: Takes = Takes.ONE,
    ) -> None:
        self.arm = arm_of(scenario, arm)
        self._library = library
        self._options = _parse(options, scenario.engine_of(self.arm), find_target(scenario.target_of(self.arm)))
        self._target = target = scenario.target_of(self.arm)
        own = library.toggles(scenario.arms[self.arm].revert, target)
        self.proven = not is_of_others(target)
        self.apart: frozenset[frozenset[str]] = frozenset()
        if options:
            self.candidates = tuple(Candidate(name, f"engine option {name}") for name in self._options)
        else:
            mine = {str(toggle.pr) for toggle in own}
            others = [toggle for toggle in library.all_toggles(target) if str(toggle.pr) not in mine]
            there = environment_of(target) if isinstance(target, ReleasedEngine) else None
            dear = frozenset() if there is None else edit_imports(there, others)
            self.candidates = tuple(replace(one, dear=int(one.id) in dear) for one in toggle_candidates(others))
            self.apart = (Takes.SET if self.proven else takes).apart(others, (engine_of(target),))
        super().__init__(
            "scenario",
            within(scenario, timeout_s),
            self.arm,
            library.packs(scenario.probes_of(self.arm)),
            asked=(*self._options, "" if self.proven else str(sorted(map(sorted, self.apart)))),
            own=own,
            toggles=own if options else library.all_toggles(target),
            texts=texts_of(library.registry.toggles.values()),
            jobs=jobs,
        )

    @property
    def own_reverts(self) -> tuple[str, ...]:
        return tuple(str(toggle.pr) for toggle in self._own)

    def may_be_wrong(self, trial: Trial) -> bool:
        return bool(self._options) and bool(trial.reverted)

    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        if not self._options:
            return self._scenario, self._library.toggles(sorted(map(int, trial.reverted)), self._target)
        arm = self._scenario.arms[self.arm]
        engine = arm.engine
        for name in sorted(trial.reverted):
            engine = merge(engine, self._options[name])
        arms = {**self._scenario.arms, self.arm: replace(arm, engine=engine)}
        scenario = replace(self._scenario, arms=arms)
        find_target(scenario.target_of(self.arm)).asked(scenario.engine_of(self.arm))
        return scenario, ()


def arm_of(scenario: Scenario, arm: str | None) -> str:
    """Return the arm asked for; else the first that reverts nothing, else the first. Raises SpecDebugError."""
    if arm is not None and arm not in scenario.arms:
        raise SpecDebugError(f"{scenario.path}: no arm '{arm}'{did_you_mean(arm, scenario.arms)}")
    plain = [one.name for one in scenario.arms.values() if not one.revert]
    return arm or [*plain, *scenario.arms][0]


def result_of(outcome: Outcome) -> TrialResult:
    seconds = outcome.metrics.wall_s
    ran = frozenset(number for number, edits in outcome.reverted_hits.items() if any(edits.values()))
    if outcome.verdict == "fail":
        besides = tuple(found.signature for found in outcome.consequences) if outcome.complete else None
        return TrialResult("fail", outcome.signature, seconds, outcome.detail, besides, ran)
    otherwise_fine = Evidence(outcome.reverted_hits, probes_enabled=0, sites_reached=0, generated=1)
    _, never_ran = decide((), otherwise_fine)
    if outcome.verdict == "pass" or outcome.reasons == never_ran != ():
        return TrialResult("pass", None, seconds, outcome.detail, ran=ran)
    return TrialResult("untestable", None, seconds, outcome.detail)


def expected_signature(scenario: Scenario) -> str | None:
    """Return the signature (a shell pattern) of the one failure that the arms expect; None where that is not one.
    Trials are not located, so where a failure begins is none of theirs."""
    expected = (scenario.expectation_of(arm) for arm in scenario.expect)
    every = {one for expectation in expected if expectation is not None for one in expectation.signatures}
    stated = {one for one in every if not names_place(one)}
    return stated.pop() if len(stated) == 1 else None


def _parse(options: Sequence[str], engine: Mapping[str, Any], target: Target) -> dict[str, dict[str, Any]]:
    """Return engine options as mappings to lay over an arm's, by the text that they were given as."""
    parsed: dict[str, dict[str, Any]] = {}
    taken: dict[str, str] = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise SpecDebugError(f"'{text}' is no engine option; write for example speculative.num_steps=3")
        if key in taken:
            raise SpecDebugError(f"'{text}' and '{taken[key]}' set the same option; a trial may switch both on")
        taken[key] = text
        try:
            option = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SpecDebugError(f"'{text}': '{value}' is no value; quote it as in YAML") from None
        for name in reversed(key.split(".")):
            option = {name: option}
        try:
            target.asked(merge(engine, option))
        except InvalidOption as error:
            raise SpecDebugError(f"'{text}': {error}") from None
        parsed[text] = option
    return parsed


class FaultSource(WarmSource):
    """Runs one arm of a scenario again and again, with different faults; ``declared`` are those in the file.

    A fault that was never due, or changed nothing, has not shown: a trial with nothing else to say has passed.

    Args:
        faults: candidates beside those that the arm declares.
        arm: by default the first that declares faults, else the first that reverts nothing.
        timeout_s: of a trial, instead of the scenario's own.

    Raises SpecDebugError for an unknown arm, fewer than two faults, or one of them twice, a fault that cannot act
    in the arm, and a malformed pack or toggle.
    """

    def __init__(
        self,
        library: Library,
        scenario: Scenario,
        *,
        faults: Sequence[Fault] = (),
        arm: str | None = None,
        jobs: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        damaged = [name for name in scenario.arms if scenario.faults_of(name)]
        self.arm = arm_of(scenario, arm or next(iter(damaged), None))
        self.declared = {str(fault) for fault in scenario.faults_of(self.arm)}
        self._faults: dict[str, Fault] = {}
        for fault in (*scenario.faults_of(self.arm), *faults):
            if str(fault) in self._faults:
                raise SpecDebugError(f"the fault {fault} is there twice; a trial can switch it on but once")
            self._faults[str(fault)] = fault
        if len(self._faults) < 2:
            has = f"only {next(iter(self._faults))}" if self._faults else "none"
            raise SpecDebugError(
                f"--over faults needs two faults at least, and arm '{self.arm}' of {scenario.path} declares {has}; "
                "add some with --fault NAME[:key=value,...]"
            )
        whole = _with_faults(within(scenario, timeout_s), self.arm, tuple(self._faults.values()))
        check_faults(whole, self.arm)
        own = library.toggles(scenario.arms[self.arm].revert, scenario.target_of(self.arm))
        self.candidates = tuple(Candidate(name, CLASSES[fault.name].summary) for name, fault in self._faults.items())
        packs = library.packs(scenario.probes_of(self.arm))
        super().__init__(
            "faults",
            whole,
            self.arm,
            packs,
            asked=tuple(self._faults),
            own=own,
            jobs=jobs,
        )

    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        """Return the arm with the trial's faults, numbered as in a replay with these, so that they draw the same."""
        return _with_faults(self._scenario, self.arm, self._switched(trial)), ()

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        outcome = ended.outcome
        if outcome.verdict == "unknown":  # what is said of faults that were never due or changed nothing does not count
            idle = tuple(f"fault {fault} " for fault in self._switched(trial))
            left = tuple(reason for reason in outcome.reasons if not reason.startswith(idle))
            outcome = replace(outcome, verdict="unknown" if left else "pass", reasons=left, detail="; ".join(left))
        return result_of(outcome)

    def _switched(self, trial: Trial) -> tuple[Fault, ...]:
        return tuple(fault for name, fault in self._faults.items() if name in trial.reverted)


def _with_faults(scenario: Scenario, arm: str, faults: tuple[Fault, ...]) -> Scenario:
    return replace(scenario, arms={**scenario.arms, arm: replace(scenario.arms[arm], faults=faults)})
