"""What an engine's processes leave of themselves is shown, and what they could not leave is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.answers import HttpAnswer
from specdebug.targets.http.inside import Inside, NoLook
from specdebug.targets.inside.looks import looks_folder
from specdebug.targets.serving import Lost, NotShown
from specdebug.workers.machine_failure import machine_failure

OPTIONS = {"speculative": {"num_steps": 2, "eagle_topk": 1}}


def inside(
    log: Path, *shows: Any, said: str = "", problems: tuple[str, ...] = (), lost: tuple[Lost, ...] = ()
) -> Inside:
    host: Any = SimpleNamespace(
        log_path=str(log), said=lambda _: said, new_problems=lambda: problems, lost=lambda: lost
    )
    return Inside(host, shows, OPTIONS)


def answer() -> HttpAnswer:
    return HttpAnswer("g0.0", (1, 2), RequestSampling(max_new_tokens=2), True, output_ids=[3, 4])


def test_keys_and_values_are_those_of_the_look(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    looks_folder(str(log)).mkdir()
    keys = torch.arange(12.0).view(1, 3, 2, 2)
    torch.save({"events": [], "kv": {"draft_k": keys, "draft_v": -keys}}, looks_folder(str(log)) / "r-g0.0.look")
    one = inside(log, "kv")
    one.show(None, "r-g0.0", answer(), SimpleNamespace())
    found = one.kv("draft", "g0.0", 1, 3)
    assert torch.equal(found[0], keys[:, 1:3])
    assert torch.equal(found[1], -keys[:, 1:3])


def test_a_look_that_is_missing_is_told_by_the_log_and_is_the_machine_s_if_the_disk_was_full(tmp_path: Path) -> None:
    one = inside(tmp_path / "server.log", "kv", said="looking ends, x.look: No space left on device")
    with pytest.raises(NoLook, match=r"no look of request g0\.0: looking ends") as caught:
        one.show(None, "r-g0.0", answer(), SimpleNamespace())
    failure = machine_failure(caught.value)
    assert failure is not None
    assert failure.cause == "disk"
    with pytest.raises(NoLook, match="its log does not say why"):
        inside(tmp_path / "server.log", "kv").show(None, "r-g0.0", answer(), SimpleNamespace())


def test_what_a_look_that_was_lost_does_not_show_says_so(tmp_path: Path) -> None:
    one = inside(tmp_path / "server.log", "kv", lost=(Lost("requests inside", "moved", "", False),))
    one.show(None, "r-g0.0", answer(), SimpleNamespace())
    with pytest.raises(NotShown):
        one.kv("draft", "g0.0", 0, 1)
    with pytest.raises(NotShown):
        one.draft_state([answer()])


def test_where_only_the_pools_are_shown_no_look_is_wanted(tmp_path: Path) -> None:
    one = inside(tmp_path / "server.log", "pools", problems=("locks: 4 slots are protected",))
    one.show(None, "r-g0.0", answer(), SimpleNamespace())
    assert list(one.new_problems()) == ["locks: 4 slots are protected"]
