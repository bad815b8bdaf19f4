"""A whole release: which rows, which verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.base.content import shipped_root
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.patching.drift import check, open_dist
from specdebug.patching.drift.check import engines
from specdebug.patching.toggles import load_registry, load_toggle
from tests.patching.drift.releases import METADATA, registry, release, toggle, wheel


def test_one_row_a_fix_of_either_registry(tmp_path: Path) -> None:
    known = registry(toggle(tmp_path, 3), toggle(tmp_path, 1, match="width = count"), toggle(tmp_path, 2, "<1.2"))
    report = check(release(tmp_path), known)
    rows = [(row.pr, row.registry, row.status) for row in report.rows]
    assert rows == [
        (1, "ours", "stale"),
        (2, "ours", "not-for-version"),
        (3, "ours", "fits"),
        (11, "upstream", "fits"),
        (12, "upstream", "stale"),
    ]
    assert report.exit_code == 1
    documents = [json.loads(json.dumps(row.to_dict())) for row in report.rows]
    assert documents[0]["nearest"] == "width = count * self.topk"
    assert documents[0]["where"] == "toyserve/flow.py:6"
    assert documents[0]["problems"][0]["written"].startswith(f"{tmp_path}/1.yaml:")
    assert documents[1]["why"] == "patches are for <1.2"
    assert (documents[2]["where"], documents[2]["nearest"]) == ("toyserve/flow.py:6", None)


def test_the_verdict(tmp_path: Path) -> None:
    fits, stale, other = toggle(tmp_path, 1), toggle(tmp_path, 2, match="gone"), toggle(tmp_path, 3, ">=2")
    dist = release(tmp_path)
    assert check(dist, registry(fits, other)).exit_code == 0  # its own stale revert is not ours to mend
    assert check(dist, registry(fits, stale, other)).exit_code == 1
    assert check(dist, registry(other)).exit_code == 125


@pytest.mark.parametrize(
    ("version", "fitting"),
    [("1.2.0", 1), ("1.2.0rc1", 0), ("1.2.0.post1", 1), ("1.3.dev5+gabc", 1), ("1.3", 0), ("1.2.9", 1)],
)
def test_ranges_read_versions_as_packaging_does(tmp_path: Path, version: str, fitting: int) -> None:
    path = wheel(tmp_path, metadata=METADATA.replace("1.2.0", version))
    known = registry(toggle(tmp_path, 1, ">=1.2,<1.3" if "dev" not in version else ">=1.2"))
    assert check(open_dist(path, {"toyserve"}), known).count("ours", "fits") == fitting


def test_two_ranges_of_one_toggle_must_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "5.yaml"
    toggle(tmp_path, 5)
    text = path.read_text()
    both = text + text[text.index('    ">=1"') :].replace(">=1", ">=1.1,<9")
    path.write_text(both)
    with pytest.raises(ContentError, match=r"5.yaml:14:\d+: toyserve 1.2.0 is in two version ranges, '>=1' and '>=1.1"):
        check(release(tmp_path), registry(load_toggle(path)))


def test_an_engine_nobody_knows(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"requests/__init__.py": ""}, "Name: requests\nVersion: 2.31\n\n")
    known = registry(toggle(tmp_path, 1))
    with pytest.raises(
        SpecDebugError, match=r"is requests 2.31: no toggle has patches for 'requests'; known: specdebug, toy"
    ):
        check(open_dist(path, engines(known)), known)


def test_this_engine_can_be_checked_too() -> None:
    """The checkout is a source tree like any other, and every toggle of its own fits it."""
    known = load_registry()
    report = check(open_dist(shipped_root(), engines(known)), known)
    assert {row.pr for row in report.rows if row.status == "fits"} == set(known.toggles)
    assert {row.pr for row in report.rows if row.status == "not-for-version"} == set(known.elsewhere)
    assert report.exit_code == 0
