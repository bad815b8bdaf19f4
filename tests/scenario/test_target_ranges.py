"""What a scenario says of other targets than its own: on which it is not run, and what is expected there instead."""

import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import ContentError
from specdebug.base.yamlio import parse_yaml
from specdebug.scenario.checks import scenario_of
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.target_ranges import complaint_of, holds
from specdebug.targets.installs.store import VARIABLE, Installed
from specdebug.targets.settings import ReleasedEngine, parse_target

TEXT = """\
name: some
workload: [{prompt: {token_ids: [1, 2]}}]
arms:
  one: {}
  two: {not_on: {vllm: chains only, "sglang==0.5.13": mine}}
expect: {one: {verdict: fail, signature: "nan@x"}}
"""


def scenario(*more: str) -> Scenario:
    return scenario_of(parse_yaml(TEXT + "".join(f"{line}\n" for line in more), "some.yaml"))


def wrong(*more: str) -> str:
    with pytest.raises(ContentError) as caught:
        scenario(*more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "target", "held"),
    [
        ("sglang", "sglang==0.5.13", True),
        ("sglang", "sglang", True),
        ("sglang", "vllm==0.32.0", False),
        ("sglang==0.5.13", "sglang==0.5.13", True),
        ("vllm", "vllm/v2==0.32.0", True),
        ("vllm/v2", "vllm/v2==0.32.0", True),
        ("vllm/v1>=0.32", "vllm==0.32.0", True),
        ("vllm/v1==0.32.0", "vllm/v2==0.32.0", False),
        ("sglang==0.5.13", "sglang==0.5.18", False),
        ("sglang>=0.5.13,<0.5.18", "sglang==0.5.17", True),
        ("sglang>=0.5.13,<0.5.18", "sglang==0.5.18", False),
        ("sglang>=0.5.13", "sglang==0.5.14.dev3+gabc", True),
        ("sglang", "{engine: sglang==0.5.13, arguments: [--log-level, debug]}", True),
        ("embedded", "embedded", True),
        ("serve", "serve", True),
        ("embedded", "http://localhost:1", False),
        ("serve", "{launch: 'run --port {port}'}", False),
    ],
)
def test_which_targets_are_meant(text: str, target: str, held: bool) -> None:
    assert complaint_of(text) is None
    assert holds(text, parse_target(target)) is held


def test_of_an_engine_without_a_version_the_newest_that_is_installed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert not holds("sglang<0.6", parse_target("sglang"))  # nothing is installed: the run will say so
    for version in ("0.5.13", "0.5.18"):
        Installed(tmp_path / version, "sglang", version, "cpu", sys.executable, ours=True, done=("installed",)).write()
    assert holds("sglang==0.5.18", parse_target("sglang"))
    assert not holds("sglang==0.5.13", parse_target("sglang"))


def test_the_last_that_fits_counts_and_an_arms_own_before_the_scenarios() -> None:
    made = scenario('not_on: {sglang: in general, "sglang==0.5.18": in particular}')

    def why(target: str) -> list[str | None]:
        there = made.on(parse_target(target))
        return [there.why_not(arm) for arm in ("one", "two")]

    assert [made.why_not(arm) for arm in ("one", "two")] == [None, None]
    assert why("sglang==0.5.13") == ["in general", "mine"]
    assert why("sglang==0.5.18") == ["in particular", "in particular"]
    assert why("vllm==0.32.0") == [None, "chains only"]


def test_what_is_expected_on_a_target() -> None:
    made = scenario("expect_on: {sglang: {one: {verdict: pass}}, sglang<0.5.18: {one: {verdict: unknown}}}")

    def verdicts(target: str) -> list[Any]:
        there = made.on(parse_target(target))
        return [there.expectation_of(arm).verdict for arm in ("one", "two")]  # type: ignore[union-attr]

    assert verdicts("embedded") == ["fail", "pass"]
    assert verdicts("sglang==0.5.13") == ["unknown", "pass"]
    assert verdicts("sglang==0.5.18") == ["pass", "pass"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not_on: {sglng: no}", "some.yaml:7:10: no target 'sglng'; did you mean 'sglang'?"),
        ("not_on: {embedded==1: no}", "'embedded' has no releases; known: sglang, vllm"),
        ("not_on: {sglang==1..2: no}", "'==1..2' names no versions; write for example sglang==0.5.13"),
        ("not_on: {sglang~0.5: no}", "target 'sglang~0.5' does not fit the form"),
        ("not_on: {sglang: ''}", "must not be empty"),
        ("expect_on: {sglng: {one: {verdict: pass}}}", "no target 'sglng'"),
        ("expect_on: {sglang: {three: {verdict: pass}}}", "expect_on names no arm 'three'"),
        ("expect_on: {sglang: {one: {verdict: pass, signature: 'nan@x'}}}", "only a failure has a signature"),
    ],
)
def test_what_cannot_be_is_said_where_it_stands(line: str, said: str) -> None:
    told = wrong(line)
    assert told.startswith("some.yaml:7:")
    assert said in told


@pytest.mark.parametrize(
    ("target", "env"),
    [
        ("sglang==0.5.18", {"A": "1"}),
        ("{engine: sglang==0.5.18, mends: false}", {}),
        ("vllm==0.32.0", {}),
    ],
)
def test_a_release_alone_takes_what_the_scenario_says_of_that_engine(target: str, env: dict[str, str]) -> None:
    there = scenario("target: {engine: sglang==0.5.13, env: {A: '1'}}").on(parse_target(target)).target
    assert isinstance(there, ReleasedEngine)
    assert (there.release, dict(there.variables)) == (parse_target(target).release, env)  # type: ignore[union-attr]
