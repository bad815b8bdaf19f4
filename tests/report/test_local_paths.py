"""Paths of this machine do not leave it; routes of servers, fractions and addresses stay as they are."""

from __future__ import annotations

import pytest

from specdebug.report.words import without_local_paths


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/tmp/a/venv/lib/python3.11/site-packages/sglang/srt/x.py:3", "sglang/srt/x.py:3"),
        ('File "/tmp/some/run.py", line 3', 'File ".../run.py", line 3'),
        ("its log is /tmp/some/server.log, which", "its log is .../server.log, which"),
        ("--model-path=/tmp/models/tiny/ --x", "--model-path=.../tiny --x"),
        ("PATH=/tmp/a/bin:/usr/bin", "PATH=.../bin:.../bin"),
    ],
)
def test_a_path_is_shortened(text: str, told: str) -> None:
    assert without_local_paths(text) == told
