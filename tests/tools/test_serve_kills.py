"""Rounds of ``tools/serve_kills.py``: one of each kind."""

from __future__ import annotations

import random

import pytest

from tools.serve_kills import KINDS, Kind, play


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_server_whose_engine_ends_keeps_its_promises(kind: Kind) -> None:
    assert play(kind, random.Random(0)) <= kind.allowed_s
