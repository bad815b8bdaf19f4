"""Probes are process-wide: every test starts and ends with them off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdebug import async_probe


@pytest.fixture(autouse=True)
def _probes_off() -> Iterator[None]:
    async_probe.configure("off")
    yield
    async_probe.configure("off")
