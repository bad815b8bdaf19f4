"""SGLang's own code on a CPU: scenarios run on it, agree with our engine token for token, and reverts in it fail.

``make test-engines`` installs the release and runs these.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.engines.replays import REPLAY, ROOT, alike, diverged, replayed

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.13"
UNMENDED = f"{{engine: {RELEASE}, mends: false}}"
NEWER = ("sglang==0.5.18", "sglang==0.5.23")


@pytest.mark.parametrize("scenario", ["multiturn_cache_hit", "topk_page_table", "draft_positions", "chunk_tail"])
def test_tokens_and_accept_lengths_are_those_of_our_engine(scenario: str) -> None:
    code, theirs = replayed(scenario, "--arm", "fixed", "--target", RELEASE)
    assert (code, theirs["verdict"]) == (0, "pass"), theirs["detail"]
    _, ours = replayed(scenario, "--arm", "fixed")
    assert alike(theirs, ours, "cached_tokens")


@pytest.mark.parametrize("release", NEWER)
@pytest.mark.parametrize("scenario", ["topk_page_table", "chunk_tail"])
def test_on_newer_releases_too(release: str, scenario: str) -> None:
    code, theirs = replayed(scenario, "--arm", "fixed", "--target", release)
    assert (code, theirs["verdict"]) == (0, "pass"), theirs["detail"]
    _, ours = replayed(scenario, "--arm", "fixed")
    assert alike(theirs, ours, "cached_tokens")


@pytest.mark.parametrize("release", NEWER)
def test_a_revert_fails_on_newer_releases_too(release: str) -> None:
    code, arm = replayed("topk_page_table", "--arm", "fixed", "--target", release, revert=27360)
    assert (code, arm["signature"]) == (1, "oob@draft.expand_page_table")
    assert [count > 0 for count in arm["reverted_hits"]["27360"].values()] == [True, True]


@pytest.mark.parametrize(
    ("scenario", "number", "signature", "edits"),
    [
        ("draft_positions", 25015, "oob@draft.forward.positions", 3),
        ("chunk_tail", 26329, "oob@draft_prefill.input_ids", 1),
        ("topk_kv_indices", 27338, "oob@draft.kv_indices", 2),
        ("topk_page_table", 27360, "oob@draft.expand_page_table", 2),
        ("row_headroom", 26972, "assert@server.spec-v#-page-#-topk-#-draft-over-allocation", 1),
    ],
)
def test_reverts_fail_and_their_edits_ran(scenario: str, number: int, signature: str, edits: int) -> None:
    code, arm = replayed(scenario, "--arm", "fixed", "--target", RELEASE, revert=number)
    assert (code, arm["verdict"]) == (1, "fail")
    assert arm["signature"].startswith(signature)
    assert [count > 0 for count in arm["reverted_hits"][str(number)].values()] == [True] * edits


def test_several_reverts_at_once() -> None:
    _, arm = replayed("row_headroom", "--arm", "fixed", "--revert", "26972,27360", "--target", RELEASE)
    assert arm["verdict"] == "fail"
    assert set(arm["reverted_hits"]) == {"26972", "27360"}


def test_a_fix_that_is_not_in_it_is_refused_before_it_is_started() -> None:
    words = [*REPLAY, "cache_hit", "--arm", "recompute", "--target", RELEASE, "--revert", "10846"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "10846 is a fix in specdebug; sglang has no such code to revert" in done.stderr


def test_a_stop_string_that_is_complete_early_in_what_a_verify_accepted_is_missed() -> None:
    """SGLang's own bug, mended by its pull request 23802 after this release, and by us unless that is left out."""
    words = ("request_ends", "--arm", "fixed", "--target")
    code, arm = replayed(*words, UNMENDED)
    assert (code, arm["signature"]) == (1, "ends@stop.string")
    code, arm = replayed(*words, RELEASE)
    assert (code, arm["verdict"]) == (0, "pass")
    assert any("are mended: 23802" in note for note in arm["notes"])


def test_what_a_release_lacks_is_put_in_and_cures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was retracted is prefilled again in chunks, of which one ends in its outputs (28254).

    SGLang is told to retract every ten batches: whether memory makes it do so depends on how fast requests reach it.
    """
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    monkeypatch.setenv("SGLANG_TEST_RETRACT_INTERVAL", "10")
    words = ("retracted_chunk_tail", "--arm", "fixed", "--target")
    code, arm = replayed(*words, UNMENDED)
    assert (code, arm["signature"]) == (1, "mismatch@draft_kv")
    code, arm = replayed(*words, RELEASE)
    assert (code, arm["verdict"]) == (0, "pass")


@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        ("nan_kv_in_use:step=4", "nan@verify.logits"),
        ("slots_leaked:step=4", "pools@"),
        ("bit_flip_draft_kv_in_use:step=4", "mismatch@draft_kv"),
        ("positions_off_by_one:step=4", "oob@draft.forward.positions"),
        ("accept_length_out_of_range:step=4", "oob@accept.num_correct_drafts"),
        ("worker_killed:step=4", "crash:SIGKILL"),
    ],
)
def test_damage_done_inside_is_seen_and_in_the_ledger(fault: str, signature: str) -> None:
    code, arm = replayed("topk_page_table", "--arm", "fixed", "--target", RELEASE, "--fault", fault)
    assert (code, arm["verdict"]) == (1, "fail")
    assert [found for found in arm["violations"] if found["signature"].startswith(signature)]
    assert [(each["fault"], each["changed"]) for each in arm["injections"]] == [(fault.partition(":")[0], True)]


@pytest.mark.parametrize(
    ("scenario", "release"),
    [("multiturn_cache_hit", RELEASE), *(("topk_page_table", release) for release in (RELEASE, *NEWER))],
)
def test_every_tensor_beside_our_engines_differs_by_rounding_alone(scenario: str, release: str) -> None:
    code, answer = diverged(scenario, "--arm", "fixed", "--arm", f"fixed@{release}")
    assert (code, answer["diverged"], answer["reason"]) == (0, False, "")
    assert {"verify.logits", "draft.forward.logits", "accept.predict"} <= set(answer["looked"]["sites"])
    assert answer["rounding"]["shares"] > 100


@pytest.mark.parametrize(
    ("scenario", "number", "site"),
    [("draft_positions", 25015, "draft.forward.positions"), ("chunk_tail", 26329, "draft_prefill.input_ids")],
)
def test_the_first_tensor_that_a_reverted_fix_changes_is_named(
    tmp_path: Path, scenario: str, number: int, site: str
) -> None:
    """Of one request: several may reach a server one by one, and then two runs cut chunks at other places."""
    alone = yaml.safe_load(Path("scenarios", f"{scenario}.yaml").read_text())
    alone["workload"] = [{**alone["workload"][0], "requests": 1}]
    path = tmp_path / "alone.yaml"
    path.write_text(yaml.safe_dump(alone, sort_keys=False))
    code, answer = diverged(str(path), "--arm", "fixed", "--target", RELEASE, "--revert", str(number))
    assert (code, answer["first"]["site"]) == (1, site)
