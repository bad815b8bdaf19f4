"""The state that a hunt's scenarios are judged in."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.apps.hunt.hunting import hunt_state
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.state import differences
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target


def test_it_is_the_same_until_something_changes() -> None:
    library = Library()
    state = hunt_state("embedded", (), library)
    assert hunt_state("embedded", (), library) == state
    assert {"specdebug", "fixes", "probe packs"} <= state.keys()
    assert differences(state, hunt_state("embedded", (25015,), library)) == ["fixes changed"]
    with pytest.raises(SpecDebugError, match="990015"):
        hunt_state("embedded", (990015,), library)


def test_a_server_that_is_started_is_of_the_files_that_its_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "serve.sh"
    script.write_text("exec engine --port {port}")
    target = parse_target("{launch: 'sh serve.sh {port}'}")
    before = hunt_state(target, (), Library())
    script.write_text("exec engine --port {port} --new")
    assert "serve.sh changed" in differences(before, hunt_state(target, (), Library()))


def test_a_release_is_of_the_fixes_that_mend_it(tmp_path: Path) -> None:
    (tmp_path / "toggles").mkdir()
    shipped = next(each for each in Library().registry.all if "sglang" in each.mends)
    text = shipped.path.read_text().replace(f"pr: {shipped.pr}", "pr: 990001", 1)
    (tmp_path / "toggles/990001.yaml").write_text(text)
    target = parse_target("sglang==0.5.13")
    assert "fixes changed" in differences(
        hunt_state(target, (), Library()), hunt_state(target, (), Library([tmp_path]))
    )
