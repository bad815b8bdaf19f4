"""Trials of a scenario, in warm workers: fixes are reverted, or engine options set, and an arm is run.

A trial fails by the arm's verdict alone. An arm that comes to no verdict only because a reverted fix's lines never ran
has passed: what was switched on did not show. Any other unknown (nothing was generated, no probe was reached, it could
not be set up) is untestable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from specdebug.base.errors import InvalidOption, SpecDebugError, did_you_mean
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.trials.command import toggle_candidates
from specdebug.campaign.trials.source import Candidate
from specdebug.campaign.trials.takes import Takes
from specdebug.campaign.trials.warm import WarmSource, texts_of, within
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario, merge
from specdebug.scenario.library import Library
from specdebug.targets.base import Target
from specdebug.targets.registry import find_target
from specdebug.targets.settings import engine_of, is_of_others
from specdebug.verdict.outcome import Evidence, Outcome, decide
from specdebug.verdict.signatures import names_place


class ScenarioSource(WarmSource):
    """Runs one arm of a scenario again and again.

    Args:
        arm: the arm to run; by default the first that reverts nothing, else the first.
        options: engine options as ``page_size=16``, or, where one goes only with another, several of them as
            ``speculative={eagle_topk: 1, num_draft_tokens: 7}``. They are then the candidates, instead of every fix
            that the arm does not revert itself.
        timeout_s: of a trial, instead of the scenario's own.
        takes: what a server that is not ours makes of the fixes it is to leave out.

    Attributes:
        apart: the pairs of candidates that no trial may hold.
        proven: what a trial switches on takes effect, or is known not to: of a server that is not ours nothing tells.

    Raises SpecDebugError when there is no such arm or option, a value that the option cannot have, or a
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
            self.candidates = toggle_candidates(others)
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
        """Return the fixes that the arm itself reverts."""
        return tuple(str(toggle.pr) for toggle in self._own)

    def may_be_wrong(self, trial: Trial) -> bool:
        return bool(self._options) and bool(trial.reverted)

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        return result_of(ended.outcome)

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
    """Return what an arm's outcome says of its trial."""
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
