"""GPU core dumps: nothing unless asked for, a file of the worker's own when asked, and no endless wait for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdebug.workers import coredump
from specdebug.workers.coredump import VARIABLE, arrange_coredump, wait_for_coredump


@pytest.mark.parametrize("wish", [None, "", "0", "off", "No"])
def test_without_a_wish_the_driver_is_told_nothing(wish: str | None) -> None:
    environment = {} if wish is None else {VARIABLE: wish}
    before = dict(environment)
    assert arrange_coredump("a-b", environment) is None
    assert environment == before


def test_a_wish_sets_the_driver_up_for_a_small_dump_that_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = {VARIABLE: "1"}
    path = arrange_coredump("topk/kv indices", environment)
    assert path == str(tmp_path / "specdebug" / "coredumps" / f"topk-kv-indices-{os.getpid()}.nvcudmp")
    assert Path(path).parent.is_dir()
    assert environment["CUDA_COREDUMP_FILE"] == path
    assert environment["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
    assert environment["CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION"] == "0"
    assert "skip_abort" in environment["CUDA_COREDUMP_GENERATION_FLAGS"].split(",")


def test_a_folder_can_be_named(tmp_path: Path) -> None:
    path = arrange_coredump("s-fixed", {VARIABLE: str(tmp_path / "here" / "there")})
    assert path is not None
    assert Path(path).parent == tmp_path / "here" / "there"


class Clock:
    """Time that passes by sleeping; at each sleep the next size of the file is written."""

    def __init__(self, path: Path, sizes: list[int]) -> None:
        self.now, self.path, self.sizes = 0.0, path, sizes

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.sizes:
            self.path.write_bytes(bytes(self.sizes.pop(0)))


def test_a_dump_is_waited_for_until_it_stops_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(tmp_path / "dump", [0, 10, 20, 30])
    monkeypatch.setattr(coredump, "time", clock)
    wait_for_coredump(str(clock.path))
    assert clock.path.stat().st_size == 30
    assert clock.now < 1.0


def test_a_dump_that_never_comes_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(tmp_path / "dump", [])
    monkeypatch.setattr(coredump, "time", clock)
    wait_for_coredump(str(clock.path))
    assert clock.now == pytest.approx(10.0, abs=0.1)
