"""Two real releases of SGLang, where they have been downloaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from specdebug.patching.drift import check, open_dist
from specdebug.patching.drift.check import engines
from specdebug.patching.toggles import load_registry

VARIABLE = "SPECDEBUG_SGLANG_WHEELS"
REGISTERED = {25015, 26329, 26972, 27338, 27360, 27460}


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no folder with sglang wheels")
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_ours_fit_and_two_of_its_own_are_stale(version: str) -> None:
    (path,) = Path(os.environ[VARIABLE]).glob(f"sglang-{version}-*.whl")
    known = load_registry()
    report = check(open_dist(path, engines(known)), known)
    status = {(row.registry, row.pr): row.status for row in report.rows}
    assert {pr for (owner, pr), said in status.items() if owner == "ours" and said == "fits"} == REGISTERED
    assert {pr for (owner, pr), said in status.items() if owner == "upstream" and said == "stale"} == {27338, 27460}
    assert {pr for owner, pr in status if owner == "upstream"} == REGISTERED
    assert report.exit_code == 0
    assert not [name for name in sys.modules if name.partition(".")[0] == "sglang"]
