"""Arms that are not run on a target: told by all who tell of a replay, and an error where nothing else is left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.loops.replay import Choices, NotOnTarget, PlannedRuns, plan, planned
from specdebug.campaign.loops.replays import LastFailed, Replays, only_failed, parse_expression, plan_all, replay_all
from specdebug.report.formats import junit_xml
from specdebug.report.markdown import summary
from specdebug.report.replay import replays_report
from specdebug.scenario.checks import scenario_of
from specdebug.scenario.grammar import Expectation, Scenario
from specdebug.scenario.library import Library
from specdebug.targets.installs.store import VARIABLE, Installed
from specdebug.targets.settings import parse_target
from tests.run.fakes import FakeLibrary, FakePool, good_run, text_of

ON_13 = Choices(target=parse_target("sglang==0.5.13"))
TEXT = """\
name: {name}
workload: [{{prompt: {{token_ids: [1, 2]}}}}]
arms:
  fixed: {{}}
  other: {{not_on: {{"sglang==0.5.13": its <own>}}}}
{more}
"""


def scenario(name: str, more: str = "") -> Scenario:
    return scenario_of(parse_yaml(TEXT.format(name=name, more=more), f"{name}.yaml"))


SOME, NONE = scenario("some"), scenario("none", "not_on: {sglang: pages of 3}")


def answer(*scenarios: Scenario, choices: Choices = ON_13) -> Replays:
    plans = plan_all(scenarios, choices, FakeLibrary())  # type: ignore[arg-type]
    return replay_all(FakePool(good_run), FakeLibrary(), plans)  # type: ignore[arg-type]


def whys(found: PlannedRuns) -> dict[str, str]:
    return {each.arm: each.why for each in found.left_out}


def test_an_arm_is_left_out_where_its_file_says_so_and_nowhere_else() -> None:
    there = planned(SOME, ON_13, FakeLibrary())  # type: ignore[arg-type]
    assert [run.arm for run in there.runs] == ["fixed"]
    assert whys(there) == {"other": "its <own>"}
    here = planned(SOME, Choices(), FakeLibrary())  # type: ignore[arg-type]
    assert ([run.arm for run in here.runs], here.left_out) == (["fixed", "other"], ())


def test_an_arm_whose_fix_is_none_of_the_targets_engine_is_left_out() -> None:
    library = Library()
    found = planned(library.scenario("cache_hit"), ON_13, library)
    assert [run.arm for run in found.runs] == ["recompute"]
    assert whys(found)["reverted"] == "19897 is a fix in specdebug; sglang has no such code to revert"
    assert whys(found)["zero_fill"].startswith("it always computes the draft KV of a hit")
    old = Choices(target=parse_target("sglang==0.5.9"))
    found = planned(library.scenario("draft_positions"), old, library)
    assert whys(found)["reverted"].startswith("25015 has patches for sglang >=0.5.13")


def test_whoever_needs_an_arm_that_is_left_out_is_refused() -> None:
    def refused(scenario: Scenario, **more: Any) -> str:
        with pytest.raises(NotOnTarget) as caught:
            plan(scenario, Choices(target=ON_13.target, **more), FakeLibrary())  # type: ignore[arg-type]
        assert caught.value.exit_code == 2
        return str(caught.value)

    assert refused(SOME, arms=("fixed", "other")) == "some.yaml:5:3: not run on sglang==0.5.13: its <own>"
    assert refused(NONE) == (
        "none.yaml:4:3: not run on sglang==0.5.13: pages of 3; none.yaml:5:3: not run on sglang==0.5.13: its <own>"
    )
    assert [run.arm for run in plan(SOME, ON_13, FakeLibrary())] == ["fixed"]  # type: ignore[arg-type]


def test_the_answer_is_that_of_the_arms_that_run() -> None:
    found = answer(SOME, NONE)
    assert (found.exit_code, found.missing) == (0, 0)
    assert [([r.run.arm for r in each.results], [r.arm for r in each.left_out]) for each in found.replays] == [
        (["fixed"], ["other"]),
        ([], ["fixed", "other"]),
    ]
    assert answer(SOME).replays[0].exit_code == 0
    with pytest.raises(NotOnTarget, match=r"none.yaml:4:3: not run on sglang==0.5.13: pages of 3"):
        answer(NONE)


def test_a_selection_and_the_last_failures_leave_out_as_they_select() -> None:
    chosen = plan_all([SOME, NONE], ON_13, FakeLibrary(), parse_expression("some"))  # type: ignore[arg-type]
    assert [(each.scenario.name, [arm.arm for arm in each.left_out]) for each in chosen] == [("some", ["other"])]
    with pytest.raises(NotOnTarget, match="its <own>"):
        plan_all([SOME], ON_13, FakeLibrary(), parse_expression("other"))  # type: ignore[arg-type]
    record = LastFailed({str(Path("some.yaml").resolve()): ["fixed", "other"]})
    plans = plan_all([SOME, NONE], ON_13, FakeLibrary())  # type: ignore[arg-type]
    (failed,), _ = only_failed(plans, record)
    assert ([run.arm for run in failed.runs], failed.left_out) == (["fixed"], ())


def test_every_format_tells_of_it() -> None:
    report = replays_report(answer(SOME, NONE))
    some, _ = report.inner
    said = "not run on sglang==0.5.13: its <own>"
    assert f"other: {said}" in text_of(some)
    assert "some: 1 of 1 arms as expected, 1 not run on sglang==0.5.13 (" in some.summary
    assert said in text_of(report)
    assert "fixed: not run on sglang==0.5.13: pages of 3" in text_of(report)
    assert report.summary.startswith("1 scenario: 1 as they should, 3 arms not run on their target (")
    assert some.document["not_run"] == [{"arm": "other", "target": "sglang==0.5.13", "why": "its <own>"}]
    suites = ET.fromstring(junit_xml(report)).findall("testsuite")
    skipped = [
        [case.get("name") for case in suite.iter("testcase") if case.find("skipped") is not None] for suite in suites
    ]
    assert skipped == [["other"], ["fixed", "other"]]
    assert suites[0].find("testcase[@name='other']/skipped").get("message") == said  # type: ignore[union-attr]
    assert [suite.get("skipped") for suite in suites] == ["1", "2"]
    assert "its &lt;own&gt;" in summary(report)
    assert some.facts["not run"] == f"other: {said}"


def test_the_expectation_is_that_of_the_target() -> None:
    there = scenario("there", 'expect_on: {"sglang==0.5.13": {fixed: {verdict: fail, signature: "ends@stop.string"}}}')
    (run,) = plan(there, ON_13, FakeLibrary())  # type: ignore[arg-type]
    assert run.expectation == Expectation("fail", ("ends@stop.string",))
    assert {run.expectation for run in plan(there, Choices(), FakeLibrary())} == {Expectation()}  # type: ignore[arg-type]


def test_a_checkout_between_two_releases_has_the_fixes_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    version = "0.5.14.dev57+gabc1234"
    Installed(tmp_path / "checkout", "sglang", version, "cpu", sys.executable, ours=False, done=("installed",)).write()
    there, library = Choices(target=parse_target(f"sglang=={version}")), Library()
    assert planned(library.scenario("draft_positions"), there, library).left_out == ()
