"""A hunt that serves scenarios a second time, and what it keeps of a twin that is broken."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specdebug.apps.hunt.draw import ARM
from specdebug.apps.hunt.evidence import gather, shrink
from specdebug.apps.hunt.hunting import DRAWN, Hunt, HuntRunner, HuntSource
from specdebug.apps.hunt.record import HuntRecord
from specdebug.cli.output import workers
from specdebug.report.hunt import HuntAnswer, hunt_report, issue_page
from specdebug.report.replay import replay_document
from specdebug.scenario.library import Library


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No log probability is as near as another, so that rounding breaks a twin whose forwards have other shapes."""
    monkeypatch.setattr("specdebug.apps.twins.judge.NOMINAL_LOGIT", 0.0)


def test_every_other_scenario_has_ways_of_its_own_unless_some_are_asked_for() -> None:
    def ways(number: int, **more: Any) -> list[str]:
        return HuntRunner(None, None, "embedded", 7, **more).ways(number)  # type: ignore[arg-type]

    assert [bool(ways(number)) for number in range(4)] == [False, True, False, True]
    assert sorted(ways(1)) == sorted(DRAWN)
    assert ways(1) == ways(1) != ways(3)
    assert {tuple(sorted(ways(number, relations=("cold", "plain")))) for number in range(4)} == {("cold", "plain")}
    one, other = (HuntSource("embedded", 0, (), (), {}, relations) for relations in ((), ("cold",)))
    assert one.identity != other.identity


def test_a_scenario_that_passes_is_held_against_its_twin(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with workers(2) as pool, HuntRecord(tmp_path / "h", {}, {}) as record:
        runner = HuntRunner(pool, Library(), "embedded", 3, relations=("plain",))
        ((one,), _) = runner.together([0])
        request.getfixturevalue("strict")
        ((other,), _) = runner.together([0])
        assert (one.verdict, one.twin, other.twin) == ("pass", "plain", "plain")
        assert (other.verdict, other.signature) == ("fail", "twin@plain")
        assert "log probabilities" in other.detail
        Hunt(runner, record)._keep(other)
        kept = yaml.safe_load((tmp_path / "h/00000.yaml").read_text())
        assert kept["twins"] == {"relations": ["plain"], "broken": {ARM: ["plain"]}}


@pytest.mark.slow
def test_a_broken_twin_is_made_small_and_told(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with workers(2) as pool, HuntRecord(tmp_path / "h", {}, {}) as record:
        request.getfixturevalue("strict")
        made = Hunt(HuntRunner(pool, Library(), "embedded", 3, relations=("plain",)), record)
        assert made.run([0]) is False
        one = record.judged[0]
        small = shrink(made, one, 10)
        assert small is not None
        plain = yaml.safe_load(small.read_text())
        assert plain["twins"]["broken"] == {ARM: ["plain"]}
        assert "expect" not in plain
        assert len(small.read_text()) < len((tmp_path / "h/00000.yaml").read_text())
        seen = gather(made, one.signature, small, replay_document)
        assert seen is not None
        assert (seen.runs, seen.bundle, seen.found[0][0]) == (1, "", "twin@plain")
        assert seen.located == "cannot be compared: only one of the two arms speculates"
        assert gather(made, one.signature, small, replay_document) == seen
        answer = HuntAnswer(record, "embedded", 3, "specdebug hunt", {one.signature: small}, {one.signature: seen})
        page = issue_page(answer, one.signature)
        assert f"specdebug twins {small.name} --arm {ARM} --target embedded" in page
        assert "did not fail so again" not in page
        assert hunt_report(answer, 1).document["twins"] == 1
