"""Trials over faults: what may be suspected, what a trial injects, and what an idle fault says."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial
from specdebug.campaign.trials.command import made_there
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.scenario import FaultSource
from specdebug.faults.declare import parse_fault
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.search.bisect import Bisector
from tests.campaign.trials.searches import find

LIBRARY = Library()
NAN, HARMLESS, NEVER = "nan_logits:step=2..6", "cache_flushed:step=3", "worker_killed:step=99"


def scenario(*declared: str) -> Scenario:
    """The command line tests' small scenario, its plain arm with faults."""
    mini = LIBRARY.scenario(str(Path(__file__).parents[2] / "cli" / "mini.yaml"))
    fixed = dataclasses.replace(mini.arms["fixed"], faults=tuple(map(parse_fault, declared)))
    return dataclasses.replace(mini, arms={**mini.arms, "fixed": fixed})


def source_of(*declared: str, faults: tuple[str, ...] = (), arm: str | None = None) -> FaultSource:
    return FaultSource(LIBRARY, scenario(*declared), faults=tuple(map(parse_fault, faults)), arm=arm)


def test_candidates_are_the_declared_faults_and_then_the_added_ones() -> None:
    source = source_of(NAN, HARMLESS, faults=(NEVER,))
    assert [one.id for one in source.candidates] == [NAN, HARMLESS, NEVER]
    assert source.candidates[0].label == "The target's logits of one node are NaN."
    assert source.declared == {NAN, HARMLESS}


def test_the_arm_is_the_first_that_declares_faults() -> None:
    mini = LIBRARY.scenario(str(Path(__file__).parents[2] / "cli" / "mini.yaml"))
    damaged = dataclasses.replace(mini.arms["plain"], faults=tuple(map(parse_fault, (HARMLESS, NEVER))))
    source = FaultSource(LIBRARY, dataclasses.replace(mini, arms={**mini.arms, "plain": damaged}))
    assert source.arm == "plain"
    assert source_of(faults=(NAN, NEVER)).arm == "fixed"


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


def test_results_belong_to_the_faults_and_the_arm() -> None:
    seen = {source_of(NAN, HARMLESS).identity, source_of(faults=(NAN, HARMLESS)).identity}
    assert len(seen) == 1  # wherever they are declared: the trials are the same
    seen.add(source_of(NAN, NEVER).identity)
    seen.add(source_of(HARMLESS, NAN).identity)  # a fault's place is part of what it draws
    seen.add(source_of(faults=(NAN, HARMLESS), arm="positions").identity)
    assert len(seen) == 4


@pytest.fixture(scope="module")
def source() -> Iterator[FaultSource]:
    source = source_of(NAN, HARMLESS, NEVER)
    yield source
    source.close()


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
    source: FaultSource, switched: tuple[str, ...], expected: tuple[str, str | None]
) -> None:
    trial = Trial(0, frozenset(switched), 5)
    source.start(trial)
    ended, result = source.wait()
    assert ended == trial
    assert (result.outcome, result.signature) == expected


def test_what_could_show_nothing_is_not_taken_for_a_pass() -> None:
    source = FaultSource(LIBRARY, dataclasses.replace(scenario(HARMLESS, NEVER), workload=()))
    try:
        source.start(Trial(0, frozenset((NEVER,)), 5))
        _, result = source.wait()
    finally:
        source.close()
    assert result.outcome == "untestable"
    assert result.detail == "none of the enabled probes was reached; nothing was generated"


def test_a_search_names_the_fault(source: FaultSource, tmp_path: Path) -> None:
    names = [one.id for one in source.candidates]
    with Journal(tmp_path / "j", source.identity, "x") as journal:
        findings = find(
            source,
            journal,
            lambda: Bisector(names, confidence=0.95),
            opening=(frozenset(names),),
            seed=0,
            max_trials=40,
        )
    assert findings.answer is not None
    assert findings.answer.culprits == {NAN}


def test_it_can_be_made_anew_elsewhere() -> None:
    there = scenario(NAN)
    make = partial(made_there, FaultSource, (), there, arm="fixed", faults=(parse_fault(NEVER),))
    assert pickle.loads(pickle.dumps(make))().identity == source_of(NAN, faults=(NEVER,)).identity
