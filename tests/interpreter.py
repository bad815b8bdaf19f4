"""The device that Triton kernels are tested on: a GPU, or a CPU under Triton's interpreter.

A conftest imports ``device`` to offer it to its folder. Interpreted kernels take milliseconds per program, so cases are
small; they also cannot compute with bfloat16, which numpy does not know.
"""

from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Skips where Triton is not installed."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return torch.device("cuda")
    _mend_loop_bounds()
    return torch.device("cpu")


def float_types() -> list[torch.dtype]:
    """What a pool may hold and kernels can compute with here."""
    natively = [torch.bfloat16] if torch.cuda.is_available() else []
    return [torch.float32, torch.float16, *natively]


def _mend_loop_bounds() -> None:
    """Since NumPy 2.4 int() refuses arrays of one element, which is what Triton 3.6 gives it for range()'s bounds."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
