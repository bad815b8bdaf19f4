"""SGLang 0.5.23 on several ranks: what serves well passes, what a rank does wrong is named with the rank."""

from __future__ import annotations

import pytest

from tests.engines.replays import replayed

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.23"
ON = ("--arm", "fixed", "--target", RELEASE, "--no-locate")


@pytest.mark.parametrize("name", ["tp2_eagle", "dp2_idle_mtp"])
def test_several_ranks_serve_what_one_does(name: str) -> None:
    code, arm = replayed(f"ranks/{name}", *ON)
    assert (code, arm["verdict"]) == (0, "pass")


@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        ("rank_dead:step=4,rank=1", "crash:SIGKILL@rank1"),
        ("rank_hangs:step=4", "hang@rank1.allreduce"),
        ("collective_skipped:step=4", "hang@rank1.allreduce"),
    ],
)
def test_a_rank_at_fault_is_named(fault: str, signature: str) -> None:
    code, arm = replayed("ranks/tp2_eagle", *ON, "--fault", fault)
    assert (code, arm["signature"]) == (1, signature)


def test_a_rank_that_is_late_is_waited_for() -> None:
    code, arm = replayed("ranks/tp2_eagle", *ON, "--fault", "rank_late:step=4")
    assert (code, arm["verdict"]) == (0, "pass")


def test_logits_that_are_not_counted_make_drafts_worse() -> None:
    code, arm = replayed("ranks/dp2_idle_mtp", *ON, revert=16974)
    assert (code, arm["signature"]) == (1, "mismatch@draft_state")
