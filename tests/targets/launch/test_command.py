"""The command that starts a server: what it is told of the arm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.patching.toggles import NOTHING, Toggle
from specdebug.targets.base import OverThere
from specdebug.targets.launch.command import StartCommand, command_of
from specdebug.targets.launch.target import LaunchTarget
from specdebug.targets.settings import LaunchedServer


def reverting(*numbers: int, **more: Any) -> OverThere:
    """An arm that reverts fixes of these numbers, which have no edits."""
    toggles = (Toggle(number, (), "", "", "", "", "", NOTHING, (), {}, Path("t.yaml")) for number in numbers)
    return OverThere(tuple(toggles), **more)


OPTIONS: dict[str, Any] = {
    "model": "tiny",
    "page_size": 4,
    "speculative": {"algorithm": "EAGLE", "num_steps": 2},
    "memory": {"guards": True},
}


def made(text: str, there: OverThere | None = None, **settings: Any) -> StartCommand:
    return command_of(LaunchedServer(command=text, **settings), OPTIONS, 7, there or OverThere())


def test_our_own_server_gets_the_options_the_reverts_and_the_probes_as_flags() -> None:
    there = reverting(27338, 10846, probes=("default", "kv"), mode="record", content=("/mine",))
    words = made("serve", there).words
    assert words[:2] == (sys.executable, "-I")
    assert words[words.index("serve") :][:3] == ("serve", "--port", "{port}")
    said = " ".join(words)
    for part in (
        "--model-path tiny", "--page-size 4", "--speculative-num-steps 2", "--memory-guards", "--random-seed 7",
        "--revert 27338,10846", "--probes default", "--probes kv", "--mode record", "--content /mine",
    ):  # fmt: skip
        assert part in said


def test_another_s_command_gets_a_port_and_the_reverts_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "1")
    command = made("run --at '127.0.0.1:{port}' --page-size 8", reverting(27338), env={"A": "b"})
    assert command.on(5) == ["run", "--at", "127.0.0.1:5", "--page-size", "8"]
    assert (command.env["SGLANG_DEBUG_REVERT_PR"], command.env["A"]) == ("27338", "b")
    assert "SGLANG_DEBUG_REVERT_PR" not in made("run {port}").env


def test_words_that_no_shell_could_read() -> None:
    with pytest.raises(SpecDebugError, match=r"target\.launch: No closing quotation"):
        made("run '{port}")


def test_options_of_our_own_server_are_checked_before_it_is_started() -> None:
    target = LaunchTarget(LaunchedServer(command="serve"))
    with pytest.raises(SpecDebugError, match="page_sze"):
        target.asked({"page_sze": 4})
    assert target.asked(OPTIONS).unused == ()
    assert LaunchTarget(LaunchedServer(command="run {port}")).asked(OPTIONS).unused == ("page_size", "memory")
