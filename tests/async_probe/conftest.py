"""Probes are process-wide: every test starts and ends with them off.

Without a GPU the kernels run under Triton's interpreter, which has to be chosen before Triton is imported.
"""

import os
import sys
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

from specdebug import async_probe


@pytest.fixture(autouse=True)
def _probes_off() -> Iterator[None]:
    async_probe.configure("off")
    yield
    async_probe.configure("off")
