"""Every test starts and ends without an observer. Needs Triton's interpreter, which ``tests/conftest.py`` asks for."""

import os
from collections.abc import Iterator

import pytest

from specdebug import kernel_memory
from specdebug.kernel_memory.finding import KernelRule
from specdebug.kernel_memory.watch import Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    """All kernels are looked at, and what is found is recorded."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run compiled here")
    yield kernel_memory.begin([KernelRule("*")])
    kernel_memory.end()
