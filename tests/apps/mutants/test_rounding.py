"""Which differences of a mutant are rounding: by values kept of both runs, and in a real measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdebug.apps.mutants.find import ROOT, Mutant
from specdebug.apps.mutants.measure import MutantSearch
from specdebug.apps.mutants.sound import LOOKED_AT, beyond_rounding, chosen, sound_arms, to_keep
from specdebug.apps.mutants.source import MutantRow
from specdebug.campaign.trials.journal import Journal
from specdebug.diverge.align import Difference
from specdebug.diverge.recording import Descriptor, Share
from specdebug.scenario.library import Library

ARM = sound_arms(Library(), [Library().scenario("graph_padding")])


def differing(step: int, site: str = "draft.forward.logits") -> Difference:
    share = Share(step, 3, 0, Descriptor(site, "float32", (0,), (2,)), "a.0", 0, 1)
    return Difference("value", step, site, "a.0", share, share)


def kept(folder: Path, step: int, values: list[float]) -> None:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{step}-3.npy", np.array([values, values], np.float32))


def test_of_each_site_the_first_is_looked_at_and_others_over_the_whole_run() -> None:
    found = [differing(step, site) for step in range(1000) for site in ("one", "other")]
    for site in ("one", "other"):
        steps = [each.step for each in chosen(found) if each.site == site]
        assert len(steps) == LOOKED_AT
        assert steps[0] == 0
        assert steps[-1] > 900
    assert to_keep(chosen(found[:3])) == ((0, 3, "one"), (0, 3, "other"), (1, 3, "one"))


def test_the_first_wider_than_rounding_is_named(tmp_path: Path) -> None:
    for step, gap in ((1, 0.0), (2, 1e-7), (3, 1e-2), (4, 1.0)):
        kept(tmp_path / "sound", step, [1.0, 0.5])
        kept(tmp_path / "mutant", step, [1.0 + gap, 0.5])
    found = [differing(step) for step in (4, 3, 2, 1)]
    first = beyond_rounding(found, ARM[0], tmp_path / "sound", tmp_path / "mutant")
    assert first is not None
    assert first.step == 3
    assert beyond_rounding(found[2:], ARM[0], tmp_path / "sound", tmp_path / "mutant") is None


class _Rows:
    def __init__(self) -> None:
        self.rows: list[MutantRow] = []

    def sound(self, done: int, of: int) -> None:
        pass

    def counted(self, row: MutantRow, done: int, of: int, kept: bool) -> None:
        self.rows.append(row)


def scaled(by: str) -> Mutant:
    """A change that no operator makes: what attention gives is scaled."""
    old = "return out.reshape(*shape, dim)[..., :value_dim], logsum.reshape(shape) if lse else None"
    new = old.replace("value_dim],", f"value_dim] * {by},")
    file = "engine/textbook/attention/executor.py"
    line = next(n for n, each in enumerate((ROOT / file).read_text().splitlines(), 1) if old in each)
    return Mutant(file, "AttentionPass.run", line, by, 1, (line, line), (old,), new, (old, new))


@pytest.mark.slow
def test_a_hair_of_difference_is_rounding_and_a_wrong_value_is_not(tmp_path: Path) -> None:
    rows = _Rows()
    with Journal(tmp_path / "journal", "identity", "about") as journal:
        MutantSearch(ARM, [scaled("1.0000002"), scaled("1.001"), scaled("2.0")], 0, 0, 1).run(journal, rows)
    found = {row.operator: (row.effective, row.caught, row.rounding) for row in rows.rows}
    assert found["1.0000002"] == (False, False, True)
    assert found["1.001"][::2] == (True, False)
    assert found["2.0"] == (True, True, False)
