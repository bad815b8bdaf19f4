"""What names mean: folders of scenarios, and content that lies beside a scenario."""

from pathlib import Path

import pytest

from specdebug.base.errors import ContentError
from specdebug.scenario.library import Library

ROOT = Path(__file__).resolve().parents[2]
MINI = (ROOT / "tests" / "cli" / "mini.yaml").read_text()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(library: Library, *named: str) -> str:
    with pytest.raises(ContentError) as caught:
        library.gather(named)
    return str(caught.value)


def test_a_scenario_s_name_comes_before_a_folder_s(tmp_path: Path) -> None:
    for name in ("cache_hit", "mine"):
        (tmp_path / name).mkdir()
    library = Library()
    assert not library.is_folder("cache-hit")
    assert library.is_folder("./cache_hit")
    assert library.is_folder("mine")
    assert "mine: holds no scenario (*.yaml)" in refusal(library, "mine")


def test_all_files_that_are_wrong_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\n")
    (tmp_path / "worse.yaml").write_text("name: x\nengine: {modle: tiny}\n")
    with pytest.raises(ContentError) as caught:
        Library().gather(["worse.yaml", "bad.yaml", "cache_hit", "gone.yaml"])
    told = [str(problem).partition(":")[0] for problem in caught.value.problems]
    assert told == sorted(told)
    assert set(told) == {"bad.yaml", "gone.yaml", "worse.yaml"}
    assert told.count("worse.yaml") > 1
    assert refusal(Library(), "gone.yaml").startswith("gone.yaml: no such file")


def own_content(folder: Path, text: str) -> Path:
    """A scenario in a content folder of its own, with a probe pack and a fix of its own."""
    for kind in ("scenarios", "toggles", "probes"):
        (folder / kind).mkdir(parents=True)
    (folder / "probes" / "ours.yaml").write_text((ROOT / "probes" / "graph.yaml").read_text())
    toggle = next(path for path in (ROOT / "toggles").glob("*.yaml") if "pr: 25015" in path.read_text())
    (folder / "toggles" / "ours.yaml").write_text(toggle.read_text().replace("25015", "99901"))
    file = folder / "scenarios" / "mine.yaml"
    file.write_text(text)
    return file


PACK = MINI.replace("arms:\n", "probes: [ours]\narms:\n", 1)
FIX = MINI.replace("revert: [25015]", "revert: [99901]")


@pytest.mark.parametrize(("text", "what"), [(PACK, "no probe pack 'ours'"), (FIX, "no toggle for PR 99901")])
@pytest.mark.parametrize("option", ["--content", "--specdebug-content"])
def test_content_beside_a_scenario_is_named_not_used(tmp_path: Path, text: str, what: str, option: str) -> None:
    file = own_content(tmp_path / "our own", text)
    said = refusal(Library((), option), str(file))
    assert what in said
    beside = tmp_path / "our own"
    assert said.endswith(
        f"; toggles/ and probes/ in {beside} would be used with {option} '{beside}', or SPECDEBUG_PATH={beside}"
    )
    assert [scenario.name for scenario in Library([beside]).gather([str(file)])] == ["mini"]
