"""What the system says of kills for lack of memory, whichever way it counts them."""

from __future__ import annotations

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
