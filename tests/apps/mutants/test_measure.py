"""The draw, and small measurements for real: what is caught, what survives, and what is known after a stop."""

from __future__ import annotations

import importlib.util
import json
import pickle
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from specdebug.apps.mutants.find import all_mutants
from specdebug.apps.mutants.measure import NodeSource, draw
from specdebug.apps.mutants.sound import FirstDifference, sound_arms
from specdebug.apps.mutants.source import MutantRow, score
from specdebug.apps.mutants.worker import first_other
from specdebug.base.trial import Trial
from specdebug.cli.main import run
from specdebug.scenario.library import Library

MINI = str(Path(__file__).resolve().parents[2] / "cli" / "mini.yaml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECDEBUG_PATH", raising=False)


def row(name: str, *, effective: bool = True, caught: bool = False, by_time: bool = False) -> MutantRow:
    difference = FirstDifference("value", "mini/fixed", 2, "tree.parents") if effective else None
    signature = "hang" if by_time else None
    return MutantRow(
        name, "f.py", "f", 1, "comparison", "", effective, caught, signature, by_time=by_time, difference=difference
    )


def test_a_draw_gives_every_file_its_share_and_repeats() -> None:
    mutants = all_mutants()
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


@pytest.mark.slow
def test_a_node_of_a_cluster_runs_mutants_against_a_sound_engine_of_its_own() -> None:
    arms = sound_arms(Library(), [Library().scenario(MINI)])
    hits_what_drafts_lack = "child is None or ((require_draft_kv or not child.draft_written))"
    (mutant,) = (each for each in all_mutants("radix_cache.py") if hits_what_drafts_lack in each.diff)
    source = pickle.loads(pickle.dumps(partial(NodeSource, tuple(arms), (mutant,))))()
    with closing(source):
        trial = Trial(0, frozenset({mutant.id}), 1)
        source.start(trial)
        ended, result = source.wait()
    row = MutantRow.from_text(result.besides[0])
    assert ended == trial
    assert (row.id, row.caught, row.signature, row.scenario) == (mutant.id, True, "pools@ownership", "mini/plain")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "specdebug[ray]"'
)
def test_a_cluster_finds_what_this_machine_finds(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name, where in (("here", []), ("there", ["--executor", "ray"])):
        command = ["mutants", MINI, "--sample", "3", "--seed", "1", "-j", "1", "--journal", f"{name}.db", "--json"]
        assert run([*command, *where]) == 0
        rows = json.loads(capsys.readouterr().out)["mutants"]
        found.append([{key: value for key, value in row.items() if key != "seconds"} for row in rows])
    assert found[0] == found[1]


def test_a_cluster_s_address_needs_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mutants", MINI, "--ray-address", "auto"]) == 2
    assert "of no use without --executor ray" in capsys.readouterr().err


def test_mutants_can_be_listed_without_running_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mutants", "--list", "--file", "radix_cache.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["file"] for each in found} == {"specdebug/engine/textbook/memory/radix_cache.py"}
    assert run(["mutants", "--list", "--file", "nothing.py"]) == 2
    assert "no file of the engine that is mutated" in capsys.readouterr().err
