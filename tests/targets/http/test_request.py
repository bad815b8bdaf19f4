"""What a verify accepted, of what answers count."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.targets.http.request import accept_lengths_of


@pytest.mark.parametrize(
    ("meta", "lengths"),
    [
        ({}, ()),
        ({"spec_verify_ct": 0}, ()),
        ({"spec_verify_ct": 3, "spec_accept_histogram": [1, 0, 2]}, (3, 3, 1)),
        ({"spec_verify_ct": 3, "spec_correct_drafts_histogram": [0, 3]}, (2, 2, 2)),
        ({"spec_verify_ct": 3, "completion_tokens": 9}, (3, 3, 2)),
        ({"spec_verify_ct": 3, "completion_tokens": 2}, (1, 1, 1)),
    ],
)
def test_accept_lengths(meta: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert accept_lengths_of(meta, meta.get("completion_tokens", 0)) == lengths
