"""A fix that is latent in an engine is looked for by its guard; one whose guard is gone is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.campaign.loops import verify
from specdebug.campaign.loops.verify import check_latent
from specdebug.patching.toggles import Toggle, load_registry
from specdebug.targets.installs.store import Installed


@pytest.fixture
def here() -> Installed:
    return Installed(Path("/env"), "sglang", "0.5.13", "cpu", "/env/bin/python", ours=True)


@pytest.fixture
def fix() -> Toggle:
    return load_registry().find("27460")


def test_a_guard_that_is_there_is_named(here: Installed, fix: Toggle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "place_of", lambda *_: ("sglang/srt/a.py:7", ""))
    others = [each for each in load_registry().all if each.pr != fix.pr]
    (check,) = check_latent(here, [fix, *others])
    assert (check.guard, check.problem) == ("sglang/srt/a.py:7", "")
    plain = check.to_dict()
    assert (plain["pr"], plain["latent"], plain["live"], plain["problems"]) == (27460, True, False, [])


def test_a_guard_that_is_gone_is_a_problem(here: Installed, fix: Toggle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "place_of", lambda *_: (None, "match text not found"))
    (check,) = check_latent(here, [fix])
    assert check.guard is None
    assert check.problem.startswith("its guard is not in sglang==0.5.13, so it may be live")
    assert check.to_dict()["problems"] == [check.problem]
