"""``specdebug twins``, for real: sound engines hold, and what is planted is named by the relation that sees it."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run

TOGGLES = {
    990001: (
        "engine.textbook.request:Request.accept_tokens",
        "if self.finish_reason is not None:\n    break",
        'if self.finish_reason is not None and (len(tokens) == 1 or self.finish_reason == "length"):\n    break',
    ),
    990002: (
        "engine.textbook.sampler:request_generator",
        "return request.generator",
        "return torch.default_generator",
    ),
    990003: (
        "engine.textbook.speculative.verify:VerifyForward.run",
        "return VerifyOutputs(self.model.logits(output.hidden), features)",
        "return VerifyOutputs(self.model.logits(output.hidden) * 1.01, features)",
    ),
}
"""A stop token that is minded as the last of a step alone; coins of all requests from one generator; logits of a verify
that are a little larger, whose order is the same."""

SCENARIO = """\
name: planted
engine: {{model: tiny, context_length: 256, speculative: {{algorithm: EAGLE, num_steps: 3}}}}
workload:
  - {{requests: 3, prompt: {{corpus: stdlib, tokens: [24, 40]}}, max_new_tokens: 16, {more}}}
{twins}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own/toggles").mkdir(parents=True)
    for pr, (target, match, replacement) in TOGGLES.items():
        edit = {"match": match + "\n", "replacement": replacement + "\n"}
        toggle = {
            "pr": pr, "title": "planted", "url": "https://example.org", "family": "planted", "symptom": "planted",
            "description": "planted", "detected_by": {"scenario": "planted", "signature": "twin@plain"},
            "patches": {"specdebug": [{"target": f"specdebug.{target}", "edits": [edit]}]},
        }  # fmt: skip
        (tmp_path / f"own/toggles/{pr}.yaml").write_text(json.dumps(toggle))
    monkeypatch.setenv("SPECDEBUG_PATH", str(tmp_path / "own"))
    return tmp_path


def planted(more: str = "speculative: true", twins: str = "") -> str:
    Path("planted.yaml").write_text(SCENARIO.format(more=more, twins=twins))
    return "planted.yaml"


def told(capsys: pytest.CaptureFixture[str], *argv: str, code: int) -> Any:
    ended = run(["twins", *argv, "--json", "-j", "2"])
    out, err = capsys.readouterr()
    assert ended == code, out + err
    return json.loads(out)


def by_relation(document: Any) -> dict[str, Any]:
    return {each["relation"]: each for each in document["twins"]}


@pytest.mark.slow
def test_a_sound_engine_holds_in_every_relation_that_has_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    found = by_relation(told(capsys, planted(), code=0))
    verdicts = {name: each["verdict"] for name, each in found.items()}
    assert {name for name, verdict in verdicts.items() if verdict != "holds"} == {"cold", "runner"}
    assert "broken" not in verdicts.values()
    assert found["cold"]["why"] == "no request found anything in the cache"
    for each in found.values():
        if each["verdict"] == "holds":
            assert (each["requests"], each["tokens"], each["log_probabilities"]) == (3, 48, 48)


def test_a_stop_that_drafts_run_over_is_named_by_plain(capsys: pytest.CaptureFixture[str]) -> None:
    stops = f"stop_token_ids: {list(range(0, 2048, 5))}"
    found = told(capsys, planted(stops), "--relation", "plain", "--relation", "alone", "--revert", "990001", code=1)
    plain, alone = (by_relation(found)[name] for name in ("plain", "alone"))
    assert (plain["signature"], alone["verdict"]) == ("twin@plain", "holds")
    broken = plain["breaks"][0]
    assert (broken["what"], broken["right"]) == ("tokens", None)
    assert "its end in its twin" in broken["text"]
    assert plain["place"]["reason"] == "only one of the two arms speculates"


def test_coins_that_depend_on_company_are_named_by_order(capsys: pytest.CaptureFixture[str]) -> None:
    relations = ("--relation", "order", "--relation", "plain", "--no-locate")
    sampled = planted("temperature: 1.0")
    assert by_relation(told(capsys, sampled, *relations, code=0))["order"]["tokens"] == 48
    found = by_relation(told(capsys, sampled, *relations, "--revert", "990002", code=1))
    assert found["order"]["signature"] == "twin@order"
    assert "sampled, with the same coins" in found["order"]["breaks"][0]["text"]
    assert found["plain"]["verdict"] == "not compared"


def test_logits_that_choose_the_same_tokens_are_named_by_their_log_probabilities(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = told(capsys, planted(), "--relation", "plain", "--relation", "reference", "--revert", "990003", code=1)
    for name in ("plain", "reference"):
        twin = by_relation(found)[name]
        assert {each["what"] for each in twin["breaks"]} == {"log probabilities"}
        assert twin["breaks"][0]["wrong"] == "first", "drafts are at fault, by the reference"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "relation", "place"),
    [
        ("cache_hit", "cold", "draft_graph.replay.topk_index"),
        ("chunk_tail", "chunks", "draft_extend.logits"),
        ("graph_padding", "eager", None),
        ("tgt_cache_loc", "plain", None),
    ],
)
def test_a_fix_that_is_taken_out_breaks_its_relation_and_the_first_tensor_is_named(
    scenario: str, relation: str, place: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, scenario, "--arm", "reverted", "--relation", relation, code=1)
    (twin,) = found["twins"]
    assert twin["signature"] == f"twin@{relation}"
    if place is not None:
        assert twin["place"]["first"]["site"] == place
    else:
        assert twin["breaks"][0]["what"] == "runs"


def test_a_scenario_says_which_are_tried_and_which_are_broken(capsys: pytest.CaptureFixture[str]) -> None:
    twins = "arms: {fixed: {}, planted: {revert: [990003]}}\ntwins: {relations: [again], broken: {planted: [plain]}}"
    found = told(capsys, planted(twins=twins), "--no-locate", code=0)
    assert [(each["arm"], each["relation"], each["verdict"]) for each in found["twins"]] == [
        ("fixed", "again", "holds"), ("planted", "plain", "broken"),
    ]  # fmt: skip
    other = planted(twins=twins.replace("planted: [plain]", "fixed: [plain]"))
    assert by_relation(told(capsys, other, code=1))["plain"]["met"] is False
    assert run(["twins", other, "-j", "2", "--no-locate"]) == 1
    assert "not as expected: fixed, plain" in capsys.readouterr().out


def test_nothing_to_compare_is_125_and_a_relation_that_is_none_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, planted(), "--relation", "runner", "--relation", "release", code=125)
    assert {each["verdict"] for each in found["twins"]} == {"not compared"}
    assert run(["twins", "planted.yaml", "--relation", "plian"]) == 2
    assert "did you mean 'plain'?" in capsys.readouterr().err
    assert run(["twins", "planted.yaml", "--arm", "none"]) == 2
    assert run(["twins"]) == 2


def test_several_scenarios_have_one_summary(capsys: pytest.CaptureFixture[str]) -> None:
    planted()
    Path("other.yaml").write_text(Path("planted.yaml").read_text().replace("name: planted", "name: other"))
    found = told(capsys, "planted.yaml", "other.yaml", "--relation", "alone", code=0)
    assert [each["scenario"] for each in found["scenarios"]] == ["planted", "other"]
