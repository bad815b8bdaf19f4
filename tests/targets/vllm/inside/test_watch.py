"""What is wanted besides serving is put in place, or it is said why not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.diverge.tape import TapeRecording
from specdebug.targets.vllm.inside.watch import CannotWatch, watch
from tests.targets.vllm.inside.fake_runner import Runner

ENGINE = {"speculative_config": {"num_speculative_tokens": 3}}


def thread(runner: Any) -> Any:
    return SimpleNamespace(runner=runner, name_of=lambda rid: rid.removesuffix("-suffix"))


def test_nothing_is_wrapped_where_nothing_is_wanted() -> None:
    runner = Runner()
    watch(thread(runner), {"engine": ENGINE, "tape": None})
    assert vars(runner).keys() == vars(Runner()).keys()


def test_a_tape_is_written(tmp_path: Path) -> None:
    runner = Runner()
    watch(thread(runner), {"engine": ENGINE, "tape": str(tmp_path / "t")})
    runner.add("0123abcd-a", [1, 2, 3])
    runner.step(**{"0123abcd-a": 3})
    (step,) = TapeRecording(tmp_path / "t", branches=1, nodes=4).steps
    assert step.rids == ("a",)


def test_a_runner_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotWatch, match="cannot be watched"):
        watch(thread(SimpleNamespace()), {"engine": ENGINE, "tape": str(tmp_path / "t")})
