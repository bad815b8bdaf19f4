"""A kernel that does what no kernel may. Imported where there is a GPU to hurt."""

import torch
import triton
import triton.language as tl


@triton.jit
def _store(pointer, offset):
    tl.store(pointer + offset, 1)


def store_far_away() -> None:
    """Write four TiB behind a tensor, where nothing is mapped. Returns before the device notices."""
    _store[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"), 2**40)
