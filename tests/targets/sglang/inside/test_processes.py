"""Processes that are forked where they would be spawned."""

from __future__ import annotations

import multiprocessing

import pytest

from specdebug.targets.sglang.inside.processes import fork_for_spawn


def test_only_spawning_becomes_forking(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[str | None, bool]] = []
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda method, force: chosen.append((method, force)))
    assert fork_for_spawn() == "multiprocessing.set_start_method"
    for method in ("spawn", "forkserver", None):
        multiprocessing.set_start_method(method, force=True)
    assert chosen == [("fork", True), ("forkserver", True), (None, True)]
