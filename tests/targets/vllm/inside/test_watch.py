"""What is wanted besides serving is put in place, or it is said why not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug import async_probe
from specdebug.targets.inside.words import facts_in
from specdebug.targets.vllm.inside.watch import watch
from tests.targets.vllm.inside.fake_runner import VOCABULARY, Runner
from tests.targets.vllm.inside.test_books import scheduler

ENGINE = {"speculative_config": {"num_speculative_tokens": 3}}


def thread(runner: Any) -> Any:
    return SimpleNamespace(
        runner=runner, name_of=lambda rid: rid.removesuffix("-suffix"), scheduler=scheduler(), after_step=None
    )


def test_the_scheduler_s_books_are_looked_at_after_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    made = thread(Runner())
    watch(made, {"engine": ENGINE})
    made.after_step()
    assert capsys.readouterr().err == ""
    made.scheduler.kv_cache_manager.block_pool.blocks[2].ref_cnt = 7
    made.after_step()
    assert "found pools@locks at step 2: block 2 has ref_cnt 7" in capsys.readouterr().err


def test_those_of_a_large_pool_are_not_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    made = thread(Runner())
    made.scheduler.kv_cache_manager.block_pool.blocks *= 200
    watch(made, {"engine": ENGINE})
    assert made.after_step is None
    assert "more than 1024 blocks" in capsys.readouterr().err


def test_those_of_a_release_that_has_others_are_not_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    made = thread(Runner())
    del made.scheduler.deferred_frees
    watch(made, {"engine": ENGINE})
    assert made.after_step is None
    assert "this release has others" in capsys.readouterr().err


def test_probes_are_live_by_the_rules_of_the_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=64, num_gpu_blocks=4),
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY),
    )
    runner = Runner()
    made = thread(runner)
    made.config = config
    rules = [{"glob": "draft.forward.positions", "mode": "record", "kinds": ["oob"]}]
    tell_reached = watch(made, {"engine": ENGINE, "probes": rules})
    runner.add("a", [1, 2, 3])
    runner.step(a=3)
    tell_reached()
    (told,) = [facts for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]
    assert told["reached"] == {"draft.forward.positions": 2}
    async_probe.configure("off")


def test_a_runner_of_another_kind_is_served_with_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch(thread(SimpleNamespace()), {"engine": ENGINE, "tape": str(tmp_path / "t")})
    (told,) = [facts["lost"] for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]
    assert told["what"].endswith("but of vLLM's model runner V1")
    assert not told["stand_in"]
