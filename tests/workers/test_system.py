"""What the system says of kills for lack of memory, whichever way it counts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.workers import system

VMSTAT = "nr_free_pages 5\noom_kill 9\n"


@pytest.mark.parametrize(
    ("texts", "kills"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "oom 4\noom_kill 3\n"}, 3),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/x\n",
                "sys/fs/cgroup/memory/x/memory.oom_control": "under_oom 0\noom_kill 2\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": VMSTAT}, 9),
        ({"proc/vmstat": VMSTAT}, 9),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({}, None),
    ],
)
def test_kills_are_counted_as_near_to_the_process_as_can_be(
    texts: dict[str, str], kills: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **options: str) -> str:
        if str(path).lstrip("/") not in texts:
            raise FileNotFoundError(path)
        return texts[str(path).lstrip("/")]

    monkeypatch.setattr(Path, "read_text", read)
    assert system.oom_kills() == kills


def test_a_process_is_gone_once_it_has_ended_whether_or_not_anybody_has_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not system.is_gone(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if sys.platform == "linux":
            assert system.is_gone(process.pid)
    assert system.is_gone(process.pid)
    assert not system.is_gone(2**80)
