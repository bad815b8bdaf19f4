"""The table of what probes cost says of each row with a bound if it is met."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.gpu import probes
from benchmarks.gpu.bounds import Bound
from benchmarks.gpu.probes import Row

ROWS = (
    Row("fast", "us", 1.0, 0.9, 1.1, 30.0, 29.0, 31.0, 30.0, 28.0, 32.0, Bound(at_least=22)),
    Row("slow", "us", 1.0, 0.9, 1.1, 10.0, 9.0, 11.0, 10.0, 9.0, 11.0, Bound(at_least=22)),
    Row("free", "us", 1.0, 0.9, 1.1),
    Row("alone", "TB/s", 2.9, 2.8, 3.0, bound=Bound(at_least=2.7)),
)


def test_each_row_says_if_its_bound_is_met(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a card")
    Console(width=150).print(probes.show(ROWS))
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    lines = {line.split()[1]: line for line in told if " us " in line or "TB/s" in line}
    assert "at least 22 │ met" in lines["fast"]
    assert "at least 22 │ MISSED" in lines["slow"]
    assert "met" not in lines["free"]
    assert "at least 2.7 │ met" in lines["alone"]


def test_a_bound_is_of_the_ratio_where_there_is_one() -> None:
    assert [row.bounded for row in ROWS] == [30.0, 10.0, 1.0, 2.9]
    assert [str(bound) for _, bound in probes._BATCHES if bound is not None] == ["at least 22", "at least 9"]
