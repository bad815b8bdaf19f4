"""The stand-in that ``test_cuda_deaths.py`` serves, on a CPU, where it can do little that is bad."""

import pytest

from specdebug.campaign.loops import replay as replaying
from tests.run.cuda_victims import BAD_STEP, outcomes


def test_the_good_one_passes_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "TARGET", "tests.run.cuda_victims:play")
    outcome = outcomes(["good"], "cpu")["good"]
    assert (outcome.verdict, outcome.violations) == ("pass", ()), outcome
    assert outcome.stack["device"] == "cpu"


def test_what_was_found_in_the_step_that_c_plus_plus_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "TARGET", "tests.run.cuda_victims:play")
    outcome = outcomes(["terminated"], "cpu")["terminated"]
    assert [found.signature for found in outcome.violations] == ["oob@verify.input_ids", "crash:SIGABRT"]
    assert (outcome.signature, outcome.where_step) == ("oob@verify.input_ids", BAD_STEP)
    assert len(outcome.requests[0].output_ids) == BAD_STEP - 1
