"""The Triton twin packs what the reference packs, and writes nothing else."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.kernels import pack_mask as reference


@pytest.mark.parametrize(
    ("lengths", "q_len"),
    [
        ([1], 1),
        ([7, 0, 9], 3),
        ([5, 64, 1, 33], 8),
        ([300, 2, 777], 13),  # more bytes than one program packs at once
    ],
)
def test_it_packs_what_the_reference_packs(device: torch.device, lengths: list[int], q_len: int) -> None:
    from specdebug.engine.kernels.triton.pack_mask import pack_mask

    sizes = torch.tensor(lengths) * q_len
    mask_indptr = sizes.cumsum(0) - sizes
    kv_indptr = torch.cat([torch.zeros(1, dtype=torch.int32), torch.tensor(lengths).cumsum(0).int()])
    bits = torch.rand(int(sizes.sum()) + 11, generator=torch.Generator().manual_seed(len(lengths))) < 0.5
    outs = []
    for place, pack in ((torch.device("cpu"), reference.pack_mask), (device, pack_mask)):
        packed = torch.full((reference.packed_size(bits.numel(), len(lengths)),), 0xAA, dtype=torch.uint8)
        packed, packed_indptr = packed.to(place), torch.full((len(lengths),), -1, dtype=torch.int32, device=place)
        pack(bits.to(place), mask_indptr.to(place), kv_indptr.to(place), q_len, packed, packed_indptr)
        outs.append((packed.cpu(), packed_indptr.cpu()))
    assert torch.equal(outs[0][0], outs[1][0])
    assert torch.equal(outs[0][1], outs[1][1])
