"""Servers that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.apps.serve.serving import Serving


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    """A speculating server with metrics; a test leaves it idle."""
    with Serving(enable_metrics=True) as server:
        yield server
