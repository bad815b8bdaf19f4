"""content: which files count, in which order, and what is refused."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from specdebug.base import content
from specdebug.base.content import PATH_VARIABLE, content_files, content_roots, find, shipped_root, words_for
from specdebug.base.errors import ContentError


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up installation instead of this checkout."""
    root = tmp_path / "site" / "specdebug" / "_content"
    for name in (
        "scenarios/cache_hit.yaml",
        "scenarios/graph_padding.yaml",
        "toggles/1.yaml",
        "toggles/README.md",
    ):
        put(root / name)
    monkeypatch.setattr(content, "__file__", str(root.parent / "base" / "content.py"))
    return root


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("name: x\n")
    return path


def refusal(call, *args) -> str:
    with pytest.raises(ContentError) as error:
        call(*args)
    return str(error.value)


def test_the_packaged_copy_comes_before_anything_beside_the_package(shipped):
    put(shipped.parents[1] / "scenarios" / "stray.yaml")
    assert content_roots() == [shipped]
    assert list(content_files("scenarios")) == ["cache_hit", "graph_padding"]


def test_a_checkout_has_no_packaged_copy(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    put(checkout / "scenarios" / "mine.yaml")
    monkeypatch.setattr(content, "__file__", str(put(checkout / "specdebug" / "base" / "content.py")))
    assert shipped_root() == checkout
    assert list(content_files("scenarios")) == ["mine"]
    assert content_files("probes") == {}


@dataclass
class Read:
    path: Path


def test_what_is_the_users_own_is_found_again_by_the_words_for_it(shipped, tmp_path, monkeypatch):
    here, other = (Read(put(tmp_path / root / "toggles" / "501.yaml")) for root in ("work/mine", "other"))
    within = Read(put(tmp_path / "b.specdebug").joinpath("toggles", "501.yaml"))
    monkeypatch.chdir(tmp_path / "work")
    ours, loose = Read(shipped / "toggles" / "1.yaml"), Read(put(tmp_path / "work" / "loose.yaml"))
    every = [ours, here, other, within, loose]
    words = words_for(every)
    assert words == ["--content", str(tmp_path / "other"), "--content", "mine"]
    assert content_roots(words[1::2])[1:] == [tmp_path / "other", tmp_path / "work" / "mine"]
    monkeypatch.setenv(PATH_VARIABLE, "../other")
    assert words_for(every) == ["--content", "mine"]
    assert words_for([ours]) == []


def test_a_folder_of_scenarios_is_a_pack_that_is_part_of_their_names(shipped):
    inner = put(shipped / "scenarios" / "sub" / "cache_hit.yaml")
    put(shipped / "toggles" / "sub" / "1.yaml")
    assert list(content_files("scenarios")) == ["cache_hit", "graph_padding", "sub/cache_hit"]
    assert find("scenarios", "sub/cache-hit") == inner
    assert find("scenarios", "cache-hit") == shipped / "scenarios" / "cache_hit.yaml"
    assert "sub/1" not in content_files("toggles")
    assert refusal(find, "scenarios", "sub/cache_hot").startswith(
        "sub/cache_hot: no such file; did you mean 'cache_hit'?"
    )


def test_missing_and_empty_folders_are_refused(tmp_path, monkeypatch):
    missing = tmp_path / "missing"
    assert refusal(content_roots, [missing]) == f"{missing}: the content folder does not exist"
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "empty"))
    text = refusal(content_roots)
    assert f"the content folder of {PATH_VARIABLE} holds none of probes/, toggles/, scenarios/" in text


def test_one_name_in_two_roots_names_both_files(tmp_path, shipped):
    twin = put(tmp_path / "one" / "scenarios" / "cache-hit.yaml")
    text = refusal(content_files, "scenarios", [tmp_path / "one"])
    assert text == f"{twin}: has the same name as {shipped / 'scenarios' / 'cache_hit.yaml'}; rename one of them"
    put(shipped / "toggles" / "1.yml")
    assert "has the same name as" in refusal(content_files, "toggles")
