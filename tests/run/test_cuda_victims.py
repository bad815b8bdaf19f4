"""The stand-in that ``test_cuda_deaths.py`` serves: with nothing bad to do, it serves on a CPU."""

from __future__ import annotations

import pytest

from specdebug.loops import replay as replaying
from tests.run.cuda_victims import outcomes


def test_the_good_one_passes_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "TARGET", "tests.run.cuda_victims:play")
    outcome = outcomes(["good"], "cpu")["good"]
    assert (outcome.verdict, outcome.violations) == ("pass", ()), outcome
    assert outcome.stack["device"] == "cpu"
