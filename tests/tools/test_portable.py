"""The runner of tests under other processors' arithmetic: what it sets, what it calls too near, when it fails."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from rich.console import Console

from tools import portable
from tools.portable import (
    CORES,
    FIXED,
    NUMERICAL,
    PATH_OF_SEARCH,
    ROOT,
    SHORT,
    Result,
    Setting,
    nearest,
    numpy_features,
    settings,
    table,
)

PASSED = Result(
    Setting(), "torch AVX2, Haswell, 1 threads", 0, "3 passed in 1.00s", (), (0.2, "tests/a.py:3"), "d1", 1.0
)


def test_a_prefix_of_the_fixed_settings_comes_first_and_more_are_drawn_all_different() -> None:
    assert settings(3, seed=1) == list(FIXED[:3])
    many = settings(24, seed=1)
    assert many[: len(FIXED)] == list(FIXED)
    assert len(set(many)) == 24
    assert many == settings(24, seed=1) != settings(24, seed=2)


def test_the_fixed_settings_meet_every_choice_with_both_thread_counts() -> None:
    assert len(set(FIXED)) == len(FIXED)
    for field, choices in (("cpu", portable.CPU), ("numpy", portable.NUMPY)):
        assert {getattr(setting, field) for setting in FIXED} == set(choices)
    assert len({setting.core for setting in FIXED} & set(CORES)) >= 3
    pairs = {(setting.cpu, setting.threads) for setting in FIXED}
    assert pairs == {(cpu, threads) for cpu in portable.CPU for threads in (1, 2)}


def test_every_test_that_is_played_is_there() -> None:
    assert [path for path in (*SHORT, *NUMERICAL, PATH_OF_SEARCH) if not (ROOT / path).exists()] == []


def test_a_setting_names_each_library_s_variable() -> None:
    features = {"own": "", "v3": "X86_V4", "v2": "X86_V3 X86_V4"}
    played = Setting("avx2", "Zen", "AVX2", "v2", 2).environment(features)
    assert played == {
        "ATEN_CPU_CAPABILITY": "avx2",
        "OPENBLAS_CORETYPE": "Zen",
        "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
    }
    assert set(Setting().environment(features)) == {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}


def test_numpy_is_asked_to_switch_off_only_what_it_knows() -> None:
    """An unknown name in the variable is an ImportWarning, and an ImportError in some versions."""
    from numpy._core import _multiarray_umath as umath

    table = numpy_features()
    assert set(table["own"].split()) <= set(table["v3"].split()) <= set(table["v2"].split())
    assert set(table["v2"].split()) <= set(umath.__cpu_dispatch__)


def test_the_nearest_comparison_of_all_processes_is_told(tmp_path: Path) -> None:
    file = tmp_path / "0.margins"
    assert nearest(file) == (0.0, "")
    lines = [{"tests/a.py:3": [0.2, "t"]}, {"tests/a.py:3": [0.4, "t"], "tests/b.py:9": [1e5, "expects a difference"]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert nearest(file) == (0.4, "tests/a.py:3")


@pytest.mark.parametrize(
    ("other", "status"),
    [
        ({}, 0),
        ({"status": 1, "failed": ("FAILED tests/a.py::test_x",)}, 1),
        ({"nearest": (portable.TOO_NEAR + 0.01, "tests/a.py:3")}, 1),
        ({"path": "d2"}, 1),
    ],
    ids=["all well", "a test fails", "too near to a tolerance", "another path"],
)
def test_it_fails_for_what_another_processor_may_change(
    other: dict[str, object],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = iter([PASSED, replace(PASSED, **other)])  # type: ignore[arg-type]
    monkeypatch.setattr(portable, "run", lambda *_: next(results))
    monkeypatch.setattr("sys.argv", ["portable", "--settings", "2", "--logs", str(tmp_path), "--seed", "7"])
    assert portable.main() == status
    told = capsys.readouterr().out
    assert "--seed 7" in told
    assert ("different paths" in told) == ("path" in other)


def test_the_table_says_what_was_asked_and_what_is_in_force() -> None:
    out = io.StringIO()
    Console(width=200, file=out).print(table([replace(PASSED, setting=FIXED[1])]))
    text = out.getvalue()
    for words in ("core=Haswell", "torch AVX2, Haswell", "3 passed", "0.20 tests/a.py:3", "d1"):
        assert words in text


def test_fixed_settings_differ_pairwise_in_more_than_threads() -> None:
    for one, other in combinations(FIXED, 2):
        assert replace(one, threads=1) != replace(other, threads=1)


@pytest.mark.slow
def test_a_run_takes_in_failures_margins_and_what_is_in_force(tmp_path: Path) -> None:
    """Tests of a folder outside: one that passes narrowly and one that fails."""
    (tmp_path / "test_it.py").write_text("def test_well(): pass\ndef test_ill(): assert 0\n")
    result = portable.run(FIXED[1], [str(tmp_path)], 1, 5, tmp_path / "0.log")
    assert not result.fine
    assert [line.rpartition("::")[2] for line in result.failed] == ["test_ill"]
    assert "1 failed, 1 passed" in result.tally
    assert "torch DEFAULT" in result.took
    assert "1 threads" in result.took


def test_a_core_that_this_processor_cannot_play_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from numpy._core import _multiarray_umath as umath

    played = Setting("own", "SkylakeX", "", "own", 1)
    for has in (True, False):
        monkeypatch.setattr(umath, "__cpu_features__", {**umath.__cpu_features__, "AVX512F": has})
        assert portable.playable("SkylakeX") is has
        assert ("OPENBLAS_CORETYPE" in played.environment({"own": ""})) is has
    assert portable.playable("NEOVERSEN1"), "what nobody knows here is the library's to refuse"
