"""``--save-baseline`` and ``--baseline``, on a draft that goes bad and leaves every output as it was."""

import json
from pathlib import Path

import pytest

from specdebug.cli.main import run

SCENARIO = """\
name: drafts-badly
engine:
  model: tiny
  context_length: 256
  speculative: {algorithm: EAGLE3, draft_model: tiny-eagle3, num_steps: 3, eagle_topk: 1}
workload:
  - {requests: 2, prompt: {corpus: stdlib, tokens: 24}, max_new_tokens: 24}
oracles: {draft_kv: false, draft_state: false, acceptance: false}
arms: {sound: {}, untranslated: {revert: [990001]}}
"""

TOGGLE = """\
pr: 990001
title: translate draft ids to the target's
url: https://example.org/990001
family: draft
symptom: nothing is accepted, and every output is right
detected_by: {scenario: drafts-badly, signature: "accept-drop@*"}
patches:
  specdebug:
    - target: specdebug.engine.model.models:Eagle3Draft.to_target_ids
      edits:
        - match: |
            return draft_ids if self.target_ids is None else torch.take(self.target_ids, draft_ids)
          replacement: |
            return draft_ids
"""

FLOOR = """\
name: floor
engine: {model: tiny, context_length: 128, speculative: {algorithm: EAGLE, num_steps: 3}}
workload:
  - {requests: 2, prompt: {token_ids: [5, 6, 7, 8]}, max_new_tokens: 12}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the scenarios, and a folder of content with the toggle."""
    (tmp_path / "own/toggles").mkdir(parents=True)
    (tmp_path / "own/toggles/990001.yaml").write_text(TOGGLE)
    (tmp_path / "drafts.yaml").write_text(SCENARIO)
    (tmp_path / "floor.yaml").write_text(FLOOR)
    monkeypatch.setenv("SPECDEBUG_PATH", str(tmp_path / "own"))
    return tmp_path


def replayed_alone(capsys: pytest.CaptureFixture[str], *argv: str, code: int) -> tuple[str, str]:
    ended = run(argv)
    out, err = capsys.readouterr()
    assert ended == code, out + err
    return out, err


@pytest.mark.slow
def test_a_draft_that_goes_bad_passes_every_oracle_and_not_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = replayed_alone(capsys, "replay", "drafts.yaml", "--arm", "sound", "--save-baseline", "b.json", code=0)
    assert "baseline: 1 arm saved in b.json" in err
    again, held = ("replay", "drafts.yaml", "--arm", "sound", "--json"), ("--baseline", "b.json")
    document = json.loads(replayed_alone(capsys, *again, "--revert", "990001", code=0)[0])
    assert document["arms"][0]["verdict"] == "pass", "without a baseline nobody sees it"
    assert "baseline" not in document["arms"][0]
    document = json.loads(
        replayed_alone(capsys, *again, "--revert", "990001", *held, "--junit", "j.xml", "--html", "p.html", code=1)[0]
    )
    (arm,) = document["arms"]
    assert (arm["located"]["from"], arm["baseline"]["status"]) == ("accept-drop@g0", "lost")
    assert arm["signature"] == "accept-drop@draft.forward.input_ids", "the first to see an id that is not translated"
    assert "baseline: g0 accepts 1.00" in Path("j.xml").read_text()
    assert "baseline: g0 accepts" in Path("p.html").read_text()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--baseline", "none.json"], "none.json: no such file"),
        (["--baseline", "floor.yaml"], "floor.yaml:1:1: is no baseline; --save-baseline writes one"),
        (["--save-baseline", "floor.yaml"], "floor.yaml:1:1: is no baseline; --save-baseline writes one"),
        (["--save-baseline", "own"], "own is a folder; name a file"),
        (["--save-baseline", "b.json", "--revert", "990001"], "--save-baseline is of sound runs; it does not go with"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str
) -> None:
    _, err = replayed_alone(capsys, "replay", "floor.yaml", *argv, code=2)
    assert err.startswith(f"error: {complaint}")
