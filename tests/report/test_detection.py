"""What caught which fault, as data and as a page."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from specdebug.report.detection import Cell, DetectionMatrix, Injected
from specdebug.report.html.heatmap import heat_map

MATRIX = DetectionMatrix(
    (
        Injected("kv_nan", 0, True, {"nan@target.logits": 0, "lossless": 2}),
        Injected("kv_nan", 1, True, {"nan@target.logits": 1}),
        Injected("kv_nan", 2, False, {}),
        Injected("late<write>", 0, True, {}),
        Injected("late<write>", 1, True, {"lossless": 4}),
        Injected("never", 0, False, {}),
    )
)


def test_the_matrix_counts_effective_injections_only() -> None:
    assert MATRIX.classes == ["kv_nan", "late<write>", "never"]
    assert MATRIX.detectors == ["lossless", "nan@target.logits"]
    assert MATRIX.cell("kv_nan", "nan@target.logits") == Cell(2, 2, 0.5, 1)
    assert MATRIX.cell("kv_nan") == Cell(2, 2, 0.5, 1)
    assert MATRIX.cell("late<write>") == Cell(2, 1, 4.0, 4)
    assert MATRIX.cell("never") == Cell(0, 0, None, 0)
    assert MATRIX.sole == {"nan@target.logits": ["kv_nan"], "lossless": ["late<write>"]}
    assert [(row.fault, row.seed) for row in MATRIX.missed] == [("late<write>", 0)]


def test_the_heat_map_has_a_cell_for_each_pair_that_met_and_one_for_any() -> None:
    drawn = heat_map(MATRIX)
    assert drawn is not None
    root = ET.fromstring(drawn)
    tips = [group.get("data-tip") or "" for group in root.iter("g")]
    assert len(tips) == 3 + 2 + 1
    assert "kv_nan by nan@target.logits: 2 of 2\nafter 0.5 steps in the mean, 1 at most" in tips
    assert "late<write> by any: 1 of 2\nafter 4 steps in the mean, 4 at most" in tips
    assert "never by any: no effective injection" in tips
    assert heat_map(DetectionMatrix(())) is None
