"""The code of a checkout in the place of a release's own: what is linked, what is written, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.targets.installs import fit, trees
from specdebug.targets.installs.store import Installed
from specdebug.targets.installs.trees import forget, laid_over
from tests.campaign.trials.repositories import git

RELEASE = {
    "__init__.py": "",
    "_version.py": "version = 1\n",
    "srt/__init__.py": "",
    "srt/core.so": "compiled",
    "srt/steps.py": "steps = 1\n",
    "srt/same/__init__.py": "",
    "srt/same/of.py": "of = 1\n",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    package = tmp_path / "site" / "sglang"
    write(package, RELEASE)
    monkeypatch.setattr(fit, "_package", lambda python, name: package)
    trees._laid.cache_clear()
    return Installed(tmp_path / "record", "sglang", "0.5.23", "cpu", sys.executable, True)


def checkout(tmp_path: Path, **changes: str) -> Path:
    """A repository of the release's sources, with changes by module of ``srt``, beside a link and a file of its own."""
    top = tmp_path / "checkout"
    sources = {name: text for name, text in RELEASE.items() if name != "_version.py" and not name.endswith(".so")}
    write(top / "python" / "sglang", sources | {f"srt/{name}.py": text for name, text in changes.items()})
    if not (top / ".git").exists():
        (top / "python" / "sglang" / "srt" / "link.py").symlink_to("steps.py")
        git("init", "-q", "-b", "main", str(top))
    git("-C", str(top), "add", "-A")
    git("-C", str(top), "commit", "-q", "-m", "change")
    return top


def code_of(here: Installed) -> dict[str, str]:
    package = Path(here.tree) / "sglang"
    found = {name: (package / name).read_text() for name in RELEASE if (package / name).exists()}
    return found | {path.name: path.read_text() for path in (package / "srt").iterdir() if path.is_file()}


def test_files_as_they_are_stand_beside_what_the_release_has_built(here: Installed, tmp_path: Path) -> None:
    top = checkout(tmp_path, steps="steps = 2\n")
    laid = laid_over(here, str(top))
    code = code_of(laid)
    assert (code["srt/steps.py"], code["srt/core.so"], code["_version.py"]) == (
        "steps = 2\n",
        "compiled",
        "version = 1\n",
    )
    write(top / "python/sglang/srt", {"steps.py": "steps = 3\n", "same/new.py": ""})
    assert code_of(laid)["srt/steps.py"] == "steps = 3\n", "it is a link"
    assert (Path(laid.tree) / "sglang/srt/same/new.py").exists()
    write(top / "python/sglang/srt", {"new.py": "new = 1\n"})
    trees._laid.cache_clear()  # as in a process to come
    assert code_of(laid_over(here, str(top)))["new.py"] == "new = 1\n"
    assert fit.package_of(laid) == Path(laid.tree) / "sglang"


def test_of_a_commit_only_what_differs_is_written(here: Installed, tmp_path: Path) -> None:
    top = checkout(tmp_path)
    good = git("-C", str(top), "rev-parse", "HEAD")
    checkout(tmp_path, steps="steps = 2\n", more="more = 1\n")
    (top / "python/sglang/srt/steps.py").write_text("not committed")
    before, after = laid_over(here, str(top), good), laid_over(here, str(top), "HEAD")
    assert code_of(before)["srt/steps.py"] == "steps = 1\n"
    code = code_of(after)
    assert [code[name] for name in ("srt/steps.py", "more.py", "srt/core.so", "srt/same/of.py", "link.py")] == [
        *("steps = 2\n", "more = 1\n", "compiled", "of = 1\n", "steps = 2\n"),
    ]
    package = Path(after.tree) / "sglang"
    assert (package / "srt/same").is_symlink(), "a folder alike is the release's"
    assert not (package / "srt").is_symlink()
    assert "more.py" not in code_of(before)
    assert before.release == after.release == here.release

    forget(here, [good, Path(after.tree).name])
    assert not Path(before.tree).exists()
    assert not Path(after.tree).exists()
    assert code_of(laid_over(here, str(top), "HEAD")) == code


@pytest.mark.parametrize(
    ("tree", "commit", "told"),
    [
        ("nowhere", None, r"target\.tree: there is no folder .*nowhere"),
        ("site/sglang", None, r"target\.tree: .* has no package sglang, nor have its folders python and src"),
        ("checkout", "0123abc", r"target\.commit: no commit 0123abc in .*checkout"),
        ("site", "HEAD", r"target\.commit: no commit HEAD in"),
        ("other", "HEAD", r"target\.commit: [0-9a-f]{12} of .*other has no package sglang"),
    ],
)
def test_what_is_no_checkout_of_it(here: Installed, tmp_path: Path, tree: str, commit: str | None, told: str) -> None:
    checkout(tmp_path)
    git("init", "-q", str(tmp_path / "other"))
    git("-C", str(tmp_path / "other"), "commit", "-q", "--allow-empty", "-m", "nothing")
    with pytest.raises(SpecDebugError, match=told):
        laid_over(here, str(tmp_path / tree), commit)


def test_a_folder_that_another_process_made_meanwhile_is_taken(
    here: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = checkout(tmp_path)
    rename: Callable[[Path, Path], Path] = Path.rename

    def late(self: Path, place: Path) -> Path:
        (place / "sglang").mkdir(parents=True)
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", late)
    assert Path(laid_over(here, str(top), "HEAD").tree).is_dir()
    assert not [path for path in (here.folder / trees.TREES).iterdir() if path.name.startswith(".")]
