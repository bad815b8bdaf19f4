"""SGLang and vLLM on several ranks: what serves well passes, what a rank does wrong is named with the rank."""

from __future__ import annotations

import pytest

from tests.engines.replays import replayed

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.23"
ON = ("--arm", "fixed", "--target", RELEASE, "--no-locate")


@pytest.mark.parametrize(
    "name",
    [
        "tp2_eagle",
        "dp2_idle_mtp",
        "dp2_eager_extend",
        "pp2_eagle",
        "pp2_full",
        "pd_eagle",
        "pd_queue",
        "pd_dp_mtp",
        "pd_nixl",
    ],
)
def test_several_ranks_serve_what_one_does(name: str) -> None:
    code, arm = replayed(f"ranks/{name}", *ON)
    assert (code, arm["verdict"]) == (0, "pass")


def test_rows_of_a_request_that_was_prefilled_beside_may_be_handed_over() -> None:
    code, arm = replayed("ranks/pd_eagle", *ON, "--seed", "4")
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


@pytest.mark.parametrize(
    ("number", "scenario", "signature"),
    [
        (16974, "dp2_idle_mtp", "mismatch@draft_state"),
        (16310, "dp2_eager_extend", "mismatch@draft_state"),
        (9817, "pd_queue", "pools@ownership"),
        (12206, "pd_queue", "ends@stop.token"),
        (29405, "pp2_full", "work@vain"),
    ],
)
def test_a_fix_of_ranks_shows_where_it_is_taken_out(number: int, scenario: str, signature: str) -> None:
    code, arm = replayed(f"ranks/{scenario}", *ON, revert=number)
    assert (code, arm["signature"]) == (1, signature)


@pytest.mark.parametrize("target", ["vllm==0.32.0", "vllm/v2==0.32.0", RELEASE])
def test_chains_on_two_ranks(target: str) -> None:
    code, arm = replayed("ranks/tp2_chains", "--arm", "fixed", "--target", target, "--no-locate")
    assert (code, arm["verdict"], len(set(arm["rank_traces"].values()))) == (0, "pass", 1)


@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        ("rank_dead:step=4", "crash:SIGKILL@rank1"),
        ("rank_behind", "hang@rank1.allreduce"),
        ("collective_twice:step=4", "hang@rank1.allreduce"),
    ],
)
def test_a_rank_of_vllm_at_fault_is_named(fault: str, signature: str) -> None:
    code, arm = replayed("ranks/tp2_chains", "--arm", "fixed", "--target", "vllm==0.32.0", "--fault", fault)
    assert (code, arm["signature"]) == (1, signature)
