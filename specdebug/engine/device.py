"""The two crossings between host and device that serving needs, neither of which stalls the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(values: Sequence[object] | np.ndarray, device: torch.device) -> Tensor:
    """A tensor of ``values`` (int64, float32 or bool as numpy's or torch's own rules say) on ``device``; for a GPU the
    copy is queued, through pinned memory, and the host goes on."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.tensor(values)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class Readback:
    """A copy to the host, queued where it is made; :meth:`wait` stalls the host until it is there, and no longer."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: Any = None
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            cuda: Any = torch.cuda  # torch annotates only some of its CUDA classes
            self._event = cuda.Event()
            self._event.record()

    def wait(self) -> list[list[int]]:
        """The rows of a 2-D integer tensor."""
        if self._event is not None:
            self._event.synchronize()
        rows: list[list[int]] = self._host.tolist()
        return rows
