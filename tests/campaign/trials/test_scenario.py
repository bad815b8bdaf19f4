"""Trials of a scenario: what an outcome says of its trial, what options may be, and a few for real."""

import dataclasses
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial
from specdebug.campaign.trials.command import made_there
from specdebug.campaign.trials.scenario import FaultSource, ScenarioSource, expected_signature, result_of
from specdebug.faults.declare import parse_fault
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Evidence, Metrics, Outcome, Violation, decide

LIBRARY = Library()
NAME = "flaky_page_table"
FAILING, PASSING = 1, 2
"""Seeds with a prompt whose length is, and is not, 3 modulo 4."""


def outcome(*violations: Violation, **evidence: Any) -> Outcome:
    facts = Evidence(**{"reverts": {}, "probes_enabled": 1, "sites_reached": 1, "generated": 3, **evidence})
    verdict, reasons = decide(violations, facts)
    first = violations[0] if violations else None
    return Outcome(
        verdict,
        first.signature if first else None,
        None,
        first.detail if first else "; ".join(reasons),
        None,
        reasons=reasons,
        metrics=Metrics(wall_s=0.5),
        reverted_hits=facts.reverts,
    )


def test_a_trial_fails_by_its_verdict_alone() -> None:
    found = result_of(outcome(Violation("nan", "draft.logits", 1, "3 values"), reverts={"1": {"1#1": 0}}))
    assert (found.outcome, found.signature, found.seconds, found.detail) == (
        "fail",
        "nan@draft.logits",
        0.5,
        "3 values",
    )
    assert result_of(outcome()).outcome == "pass"


def test_a_revert_that_never_ran_has_not_shown_but_a_run_that_could_show_nothing_is_untestable() -> None:
    never, ran = {"1#1": 0}, {"2#1": 0, "2#2": 5}
    assert result_of(outcome(reverts={"1": never, "2": ran})).outcome == "pass"
    assert result_of(outcome(reverts={"1": never, "3": never})).outcome == "pass"
    assert result_of(outcome(reverts={"1": never}, generated=0)).outcome == "untestable"
    assert result_of(outcome(reverts={"2": ran}, sites_reached=0)).outcome == "untestable"
    assert result_of(outcome(cut_short="interrupted before it was done")).outcome == "untestable"
    impossible = result_of(outcome(reverts={"1": never}, impossible="toggle 1: does not fit"))
    assert (impossible.outcome, impossible.detail) == ("untestable", "toggle 1: does not fit")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["eagle_topk"], "'eagle_topk' is no engine option; write for example speculative.num_steps=3"),
        (["speculative..x=1"], "'speculative..x=1' is no engine option"),
        (["speculative.eagle_tpk=1"], "engine.speculative.eagle_tpk: unknown key 'eagle_tpk' in speculative; did"),
        (["page_size=many"], "'page_size=many': engine.page_size: must be a whole number from 1 to 1024, not 'many'"),
        (["page_size=[1"], "'page_size=[1': '[1' is no value"),
        (["page_size=1", "page_size=2"], "'page_size=2' and 'page_size=1' set the same option"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused_in_one_line(options: list[str], complaint: str) -> None:
    with pytest.raises(SpecDebugError) as error:
        ScenarioSource(LIBRARY, LIBRARY.scenario(NAME), options=options)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_candidates_are_the_fixes_the_arm_does_not_revert_or_the_options() -> None:
    scenario = LIBRARY.scenario(NAME)
    every = {str(toggle.pr) for toggle in LIBRARY.all_toggles()}
    assert {one.id for one in ScenarioSource(LIBRARY, scenario).candidates} == every
    assert {one.id for one in ScenarioSource(LIBRARY, scenario, arm="reverted").candidates} == every - {"27360"}
    options = ["page_size=1", "speculative={num_steps: 2, num_draft_tokens: 4}"]
    assert [one.id for one in ScenarioSource(LIBRARY, scenario, options=options).candidates] == options


def test_the_signature_a_scenario_is_about() -> None:
    assert expected_signature(LIBRARY.scenario(NAME)) == "guard@draft.expand_page_table*"
    scenario = LIBRARY.scenario(NAME)
    assert expected_signature(dataclasses.replace(scenario, expect={})) is None
    both = LIBRARY.scenario("flaky_bigram_key")
    assert expected_signature(both) == "mismatch@draft_kv", "trials are not located"


@pytest.fixture(scope="module")
def source() -> Iterator[ScenarioSource]:
    source = ScenarioSource(LIBRARY, LIBRARY.scenario(NAME), jobs=2)
    yield source
    source.close()
    source.close()


def test_trials_run_side_by_side_and_repeat_exactly(source: ScenarioSource) -> None:
    trials = [
        Trial(number, frozenset(reverted), seed)
        for number, (reverted, seed) in enumerate(
            [((), FAILING), (("27360",), FAILING), (("27360",), PASSING), (("27360", "26972", "10846"), FAILING)]
        )
    ]
    results = {}
    source.start(trials[0])
    for trial in (*trials[1:], None):
        if trial is not None:
            source.start(trial)
        ended, result = source.wait()
        results[ended] = (result.outcome, result.signature)
    guard = "guard@draft.expand_page_table.0->draft.expand_cache_seqlens.0"
    assert [results[trial] for trial in trials] == [("pass", None), ("fail", guard), ("pass", None), ("fail", guard)]


def test_options_are_laid_over_the_arm_and_combinations_that_cannot_be_are_untestable() -> None:
    options = ["page_size=16", "memory.num_slots=60", "speculative={num_steps: 2, num_draft_tokens: 4}"]
    source = ScenarioSource(LIBRARY, LIBRARY.scenario(NAME), arm="reverted", options=options)
    try:
        results = []
        for number, chosen in enumerate([(), options[:1], options[2:], options[:2], options[1:2]]):
            source.start(Trial(number, frozenset(chosen), FAILING))
            results.append(source.wait()[1])
    finally:
        source.close()
    assert [result.outcome for result in results] == ["fail", "pass", "pass", "untestable", "untestable"]
    assert "engine.memory.num_slots: 60 slots cannot hold" in results[3].detail
    assert "memory.num_slots gives 60" in results[4].detail


NAN, HARMLESS, NEVER = "nan_logits:step=2..6", "cache_flushed:step=3", "worker_killed:step=99"


def scenario(*declared: str) -> Scenario:
    """The command line tests' small scenario, its plain arm with faults."""
    mini = LIBRARY.scenario(str(Path(__file__).parents[2] / "cli" / "mini.yaml"))
    fixed = dataclasses.replace(mini.arms["fixed"], faults=tuple(map(parse_fault, declared)))
    return dataclasses.replace(mini, arms={**mini.arms, "fixed": fixed})


def source_of(*declared: str, faults: tuple[str, ...] = (), arm: str | None = None) -> FaultSource:
    return FaultSource(LIBRARY, scenario(*declared), faults=tuple(map(parse_fault, faults)), arm=arm)


@pytest.mark.parametrize(
    ("declared", "faults", "arm", "complaint"),
    [
        ((), (), None, "--over faults needs two faults at least, and arm 'fixed' of "),
        ((NAN,), (), None, f"declares only {NAN}; add some with --fault NAME[:key=value,...]"),
        ((NAN,), (NAN,), None, f"the fault {NAN} is there twice"),
        ((), (NAN, NEVER), "fixd", "no arm 'fixd'; did you mean 'fixed'"),
        ((), ("nan_logits:request=second.0", NEVER), None, "--fault nan_logits: no request 'second.0'"),
        ((), ("misaligned_loc", NEVER), None, "--fault misaligned_loc: it needs speculation with eagle_topk above 1"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(
    declared: tuple[str, ...], faults: tuple[str, ...], arm: str | None, complaint: str
) -> None:
    with pytest.raises(SpecDebugError) as error:
        source_of(*declared, faults=faults, arm=arm)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.fixture(scope="module")
def faults_source() -> Iterator[FaultSource]:
    faults_source = source_of(NAN, HARMLESS, NEVER)
    yield faults_source
    faults_source.close()


@pytest.mark.parametrize(
    ("switched", "expected"),
    [
        ((), ("pass", None)),
        ((NAN,), ("fail", "nan@verify.logits")),
        ((NAN, NEVER), ("fail", "nan@verify.logits")),
        ((HARMLESS,), ("pass", None)),
        ((NEVER,), ("pass", None)),  # was never due, so that it cannot be to blame
    ],
)
def test_a_trial_injects_what_it_switches_on(
    faults_source: FaultSource, switched: tuple[str, ...], expected: tuple[str, str | None]
) -> None:
    trial = Trial(0, frozenset(switched), 5)
    faults_source.start(trial)
    ended, result = faults_source.wait()
    assert ended == trial
    assert (result.outcome, result.signature) == expected


def test_it_can_be_made_anew_elsewhere() -> None:
    there = scenario(NAN)
    make = partial(made_there, FaultSource, (), there, arm="fixed", faults=(parse_fault(NEVER),))
    assert pickle.loads(pickle.dumps(make))().identity == source_of(NAN, faults=(NEVER,)).identity
