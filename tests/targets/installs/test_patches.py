"""An arm's reverts as patches for an installed release: only what fits its files goes to its processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specdebug.base.content import shipped_root
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.patching.toggles import Toggle, load_toggle
from specdebug.targets.installs import fit as module
from specdebug.targets.installs.fit import added_sites, mends_of, patches_of, read_sites
from specdebug.targets.installs.store import Installed
from specdebug.targets.sglang.inside.probes import _Probes

TOGGLE = """
pr: 77
title: widen the rows
url: https://example.org/pull/77
family: rows
symptom: none here
patches:
  sglang:
    ">=0.5.13,<0.5.14":
      - target: sglang.rows:width
        edits: [{match: return 3, replacement: return 2}]
"""


@pytest.fixture
def toggle(tmp_path: Path) -> Toggle:
    (tmp_path / "77.yaml").write_text(TOGGLE)
    return load_toggle(tmp_path / "77.yaml")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "rows.py").write_text("def width():\n    return 3\n")
    monkeypatch.setattr(module, "_package", lambda python, name: package)
    return package


def release(tmp_path: Path, version: str = "0.5.13") -> Installed:
    return Installed(tmp_path, "sglang", version, "cpu", sys.executable, False)


def test_patches_that_fit_are_plain_data(tmp_path: Path, toggle: Toggle, package: Path) -> None:
    (fix,) = patches_of(release(tmp_path), [toggle])
    assert fix["pr"] == 77
    (patch,) = fix["patches"]
    assert (patch["module"], patch["qualname"]) == ("sglang.rows", "width")
    assert [edit["id"] for edit in patch["edits"]] == ["77#1"]
    assert patches_of(release(tmp_path), []) == []


def test_a_release_that_is_another_now_is_refused_with_the_nearest_place(
    tmp_path: Path, toggle: Toggle, package: Path
) -> None:
    (package / "rows.py").write_text("def width():\n    return 4\n")
    with pytest.raises(SpecDebugError, match=r"77 does not fit sglang==0\.5\.13 in .*nearest is .*rows\.py:2"):
        patches_of(release(tmp_path), [toggle])


def test_a_release_that_a_fix_has_no_patches_for(tmp_path: Path, toggle: Toggle, package: Path) -> None:
    with pytest.raises(
        SpecDebugError, match=r"77 cannot be reverted in sglang==0\.5\.14: patches are for >=0\.5\.13,<0"
    ):
        patches_of(release(tmp_path, "0.5.14"), [toggle])


def test_a_package_is_where_its_environment_imports_it_from() -> None:
    assert module._package(sys.executable, "json").name == "json"
    with pytest.raises(SpecDebugError, match="cannot import no_such_engine any more"):
        module._package(sys.executable, "no_such_engine")


def test_a_checkout_between_two_releases_takes_the_patches_of_the_one_before_if_they_fit(
    tmp_path: Path, toggle: Toggle, package: Path
) -> None:
    checkout = release(tmp_path, "0.5.14.dev57+gabc1234")  # in no range: it is neither 0.5.13 nor 0.5.14
    (fix,) = patches_of(checkout, [toggle])
    assert fix["pr"] == 77
    (package / "rows.py").write_text("def width():\n    return 4\n")
    with pytest.raises(SpecDebugError, match=r"77 does not fit sglang==0\.5\.14\.dev57\+gabc1234 in .*sglang"):
        patches_of(checkout, [toggle])
    with pytest.raises(SpecDebugError, match=r"77 cannot be reverted in sglang==0\.5\.18\+gabc1234: patches are for"):
        patches_of(release(tmp_path, "0.5.18+gabc1234"), [toggle])


MEND = """
pr: {pr}
title: narrow the rows
url: https://example.org/pull/{pr}
family: rows
symptom: wide rows
mends: [sglang]
patches:
  sglang:
    ">=0.5.13,<0.5.14":
      - target: sglang.rows:{name}
        edits: [{{match: return {old}, replacement: return 1}}]
"""


def mend(tmp_path: Path, pr: int, name: str, old: int) -> Toggle:
    (tmp_path / f"{pr}.yaml").write_text(MEND.format(pr=pr, name=name, old=old))
    return load_toggle(tmp_path / f"{pr}.yaml")


def test_a_mend_of_what_is_reverted_is_left_out_and_says_so(tmp_path: Path, toggle: Toggle, package: Path) -> None:
    found = mends_of(release(tmp_path), [toggle], [mend(tmp_path, 78, "width", 3)])
    assert found.numbers == ()
    assert [each.startswith("78 is not mended: ") for each in found.left_out] == [True]


FILE = """
engine: toyserve
patches:
  ">=1,<2":
    - {target: "toyserve.a:f", edits: [{match: return 1, replacement: "probe()\\nreturn 1"}]}
"""


def toyserve(version: str) -> Installed:
    return Installed(Path("x"), "toyserve", version, "cpu", "python", False)


def test_a_release_gets_the_patches_of_its_range(tmp_path: Path) -> None:
    (tmp_path / "toyserve.yaml").write_text(FILE)
    (patch,) = added_sites(toyserve("1.5"), tmp_path)
    assert (patch.target, patch.owner, [edit.id for edit in patch.edits]) == (
        "toyserve.a:f",
        "probe sites",
        ["sites#1"],
    )
    assert added_sites(toyserve("2.0"), tmp_path) == ()
    assert added_sites(toyserve("1.5"), tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("old", "new"), [("engine: toyserve", "engine: other"), (">=1,<2", "one"), ("match:", "mach:")]
)
def test_a_malformed_file_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "toyserve.yaml").write_text(FILE.replace(old, new))
    with pytest.raises(ContentError):
        read_sites(tmp_path / "toyserve.yaml")


def test_every_shipped_call_is_one_that_there_is() -> None:
    files = list((shipped_root() / "probes" / "sites").glob("*.yaml"))
    assert files
    for file in files:
        for patches in read_sites(file).values():
            for edit in (edit for patch in patches for edit in patch.edits):
                (call,) = (line for line in edit.replacement.splitlines() if "__specdebug_probes__" in line)
                assert hasattr(_Probes, call.partition("__.")[2].partition("(")[0])
                assert [line for line in edit.replacement.splitlines() if line != call] == edit.match.splitlines()
