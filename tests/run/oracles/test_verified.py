"""What a verify computes: a wrong logit is seen where no token turns, in the step of its verify."""

from typing import Any

import pytest

from specdebug.engine.textbook.speculative import accept as accept_module
from tests.run.oracles.watched import EAGLE, TREE, Watched, prompts

QUIET = {"draft_state": False, "lossless": True}


@pytest.mark.parametrize("temperatures", [(0.0,), (0.0, 0.8, 1.3)])
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_sound_engine_is_silent(shape: dict[str, Any], temperatures: tuple[float, ...]) -> None:
    watched = Watched({**shape, "algorithm": "EAGLE3"}, spec=QUIET)
    assert watched.serve(prompts(40, 75, 20), 30, temperatures=temperatures) == []
    assert watched.judge.bench.looks["verified"] == 3


@pytest.mark.parametrize("each_step", [False, True])
def test_logits_that_turn_no_token_are_seen_in_the_step_that_computed_them(
    monkeypatch: pytest.MonkeyPatch, each_step: bool
) -> None:
    original, calls = accept_module.argmax, [0]

    def louder(logits: Any) -> Any:
        calls[0] += 1
        return original(logits.mul_(1.01) if calls[0] > 2 else logits)

    monkeypatch.setattr(accept_module, "argmax", louder)
    found = Watched(TREE, spec={**QUIET, "each_step": each_step}).serve(prompts(40, 75), 24)
    assert [each.signature for each in found] == ["mismatch@verify.logits"] * 2
    assert {each.step for each in found} == {4}  # a prefill, two sound verifies
    assert {each.data["rid"] for each in found} == {"r0", "r1"}
    assert found[0].data["got"] != pytest.approx(found[0].data["expected"], abs=1e-4)


def test_half_precision_is_not_judged() -> None:
    watched = Watched(EAGLE, spec=QUIET, dtype="bfloat16")
    assert "verified" not in {oracle.name for oracle in watched.judge.oracles}
