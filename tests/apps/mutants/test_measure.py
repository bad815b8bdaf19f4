"""The draw, and small measurements for real: what is caught, what survives, and what is known after a stop."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from specdebug.apps.mutants.find import OURS, Mutant
from specdebug.apps.mutants.measure import MutantSearch, draw
from specdebug.apps.mutants.sound import LOOKED_AT, FirstDifference, beyond_rounding, chosen, sound_arms, to_keep
from specdebug.apps.mutants.source import MutantRow, score
from specdebug.apps.mutants.worker import first_other
from specdebug.campaign.trials.journal import Journal
from specdebug.cli.main import run
from specdebug.diverge.align import Difference
from specdebug.diverge.recording import Descriptor, Share
from specdebug.scenario.library import Library

MINI = str(Path(__file__).resolve().parents[2] / "cli" / "mini.yaml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def row(name: str, *, effective: bool = True, caught: bool = False, by_time: bool = False) -> MutantRow:
    difference = FirstDifference("value", "mini/fixed", 2, "tree.parents") if effective else None
    signature = "hang" if by_time else None
    return MutantRow(
        name, "f.py", "f", 1, "comparison", "", effective, caught, signature, by_time=by_time, difference=difference
    )


def test_a_draw_gives_every_file_its_share_and_repeats() -> None:
    mutants = OURS.mutants()
    drawn = draw(mutants, 100, 3)
    assert drawn == draw(list(reversed(mutants)), 100, 3) != draw(mutants, 100, 4)
    shares, counts = Counter(each.file for each in mutants), Counter(each.file for each in drawn)
    assert sum(counts.values()) == len(set(drawn)) == 100
    assert all(abs(counts[file] - 100 * many / len(mutants)) < 1 for file, many in shares.items())
    assert len(draw(mutants, 10**6, 0)) == len(mutants)


def test_rows_are_counted_and_come_back_from_a_journal_as_they_were() -> None:
    rows = [row("a", caught=True), row("b", caught=True, by_time=True), row("c"), row("d", effective=False)]
    total = score("all", rows)
    assert (total.mutants, total.effective, total.caught, total.by_time, total.rate) == (4, 3, 2, 1, 2 / 3)
    assert total.interval.low < 2 / 3 < total.interval.high
    assert [MutantRow.from_text(each.to_text()) for each in rows] == rows
    assert score("none", rows[3:]).rate is None


def test_books_part_at_the_first_step_that_differs() -> None:
    sound = [{"queues": "1", "radix tree": "2"}, {"queues": "3", "radix tree": "4"}]
    assert first_other(sound, sound) is None
    assert first_other(sound, [sound[0], {"queues": "3", "radix tree": "5"}]) == (2, "radix tree")
    assert first_other(sound, sound[:1]) == (2, "steps")


@pytest.mark.slow
def test_a_measurement_for_real_goes_on_where_it_was_and_holds_its_score_to_a_claim(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["mutants", MINI, "--sample", "3", "--seed", "1", "-j", "1"]
    assert run([*command, "--json", "--html", "m.html"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    rows = {each["id"]: each for each in document["mutants"]}
    assert len(rows) == document["sample"] == 3
    assert "3 of 3: " in err
    caught = [each for each in rows.values() if each["caught"]]
    assert caught
    assert all(each["effective"] and each["signature"] and each["scenario"].startswith("mini/") for each in caught)
    assert all(each["diff"].startswith(f"--- {each['file']}\n") for each in caught)
    assert all(each["difference"] for each in rows.values() if each["effective"] and not each["caught"])
    assert document["unreached"]["engine/kernels/trees.py"]["unreached"] > 0
    page = Path("m.html").read_text()
    assert all(name in page for name in rows)
    assert run([*command, "--min-score", "100", "--json"]) == (0 if document["score"]["score"] == 1 else 1)
    out, err = capsys.readouterr()
    assert (json.loads(out)["mutants"], json.loads(out)["resumed"]) == (document["mutants"], 3)
    assert err.count("(in the journal)") == 3


ARM, _ = sound_arms(Library(), [Library().scenario("graph_padding")])


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
    line = next(n for n, each in enumerate((OURS.root / file).read_text().splitlines(), 1) if old in each)
    return Mutant(file, "AttentionPass.run", line, by, 1, (line, line), (old,), new, (old, new))


@pytest.mark.slow
def test_a_hair_of_difference_is_rounding_and_a_wrong_value_is_not(tmp_path: Path) -> None:
    rows = _Rows()
    with Journal(tmp_path / "journal", "identity", "about") as journal:
        MutantSearch(OURS, ARM, [scaled("1.0000002"), scaled("1.001"), scaled("2.0")], 0, 0, 1).run(journal, rows)
    found = {row.operator: (row.effective, row.caught, row.rounding) for row in rows.rows}
    assert found["1.0000002"] == (False, False, True)
    assert found["1.001"][::2] == (True, False)
    assert found["2.0"] == (True, True, False)
