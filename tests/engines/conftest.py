"""The releases that these tests run on must be installed."""

from __future__ import annotations

import pytest

from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import StoreError, find_installed, store_folder


@pytest.fixture(scope="module", autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    try:
        for release in (request.module.RELEASE, *getattr(request.module, "NEWER", ())):
            find_installed(store_folder(None), parse_release(release))
    except StoreError as error:
        pytest.fail(f"{error} (make test-engines does)")
