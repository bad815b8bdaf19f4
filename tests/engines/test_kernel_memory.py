"""The memory checker on SGLang's own kernels: overruns planted in them, a reverted fix, and no false alarm."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.engines.replays import ROOT, alike, replayed

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.13"
NEWER = ("sglang==0.5.23",)


@pytest.mark.parametrize(("release", "kernels"), [(RELEASE, 15), (*NEWER, 13)])
def test_every_planted_overrun_is_told_by_kernel_and_argument(release: str, kernels: int) -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "planted_overruns.py"), release, "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len({row["kernel"] for row in rows}) == kernels
    for row in rows:
        assert row["sound"] == []
        assert row["told"][0]["signature"] == row["expected"]
        assert {told["signature"].split("@")[1].split(".")[0] for told in row["told"]} == {row["kernel"]}


@pytest.mark.parametrize("release", [RELEASE, *NEWER])
@pytest.mark.parametrize("scenario", ["topk_page_table", "multiturn_cache_hit", "graph_padding", "padding_positions"])
def test_a_sound_engine_gives_no_alarm(release: str, scenario: str) -> None:
    code, arm = replayed(scenario, "--arm", "fixed", "--target", release, "--probes", "kernels")
    assert (code, arm["verdict"]) == (0, "pass"), arm["detail"]


def test_rows_without_topk_are_told_by_the_kernel_that_overruns_them() -> None:
    code, arm = replayed("topk_kv_indices", "--arm", "fixed", "--target", RELEASE, "--probes", "kernels", revert=27338)
    assert (code, arm["signature"]) == (1, "oob@generate_draft_decode_kv_indices.kv_indices")
    assert "behind the end of row 0 of int32 [3, 1280]" in arm["detail"]


@pytest.mark.parametrize(
    ("release", "fix", "first"),
    [
        (RELEASE, 910892, "stale@generate_draft_decode_kv_indices.positions"),
        (*NEWER, 910892, "stale@generate_draft_decode_kv_indices.positions"),
        (RELEASE, 923037, "stale@generate_draft_decode_kv_indices.req_pool_indices"),
    ],
)
def test_padding_that_is_not_cleared_is_told_where_it_is_read(
    release: str, fix: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEBUG_PATH", str(ROOT / "benchmarks" / "planted_stale"))
    code, arm = replayed("padding_positions", "--arm", "fixed", "--target", release, "--probes", "kernels", revert=fix)
    assert (code, arm["signature"]) == (1, first)
    assert "(int64 [" in arm["detail"]
    assert "in draft's replay in batch" in arm["detail"]


@pytest.mark.parametrize("release", [RELEASE, *NEWER])
def test_what_is_spared_in_padding_comes_to_nothing(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEBUG_PATH", str(ROOT / "benchmarks" / "planted_stale"))
    words = ("padding_positions", "--arm", "fixed", "--target", release, "--attention-backend", "triton")
    (code, plain), (other_code, overwritten) = (replayed(*words, revert=fix) for fix in (None, 910001))
    assert (code, other_code) == (0, 0), (plain["detail"], overwritten["detail"])
    assert all(overwritten["reverted_hits"]["910001"].values())
    assert alike(plain, overwritten)
