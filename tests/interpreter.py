"""The device that Triton kernels are tested on: a GPU, or a CPU under Triton's interpreter.

A conftest imports ``device`` to offer it to its folder. Interpreted kernels take milliseconds per program, so cases are
small; they also cannot compute with bfloat16, which numpy does not know.
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Skips where Triton is not installed."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def float_types() -> list[torch.dtype]:
    """What a pool may hold and kernels can compute with here."""
    natively = [torch.bfloat16] if torch.cuda.is_available() else []
    return [torch.float32, torch.float16, *natively]
