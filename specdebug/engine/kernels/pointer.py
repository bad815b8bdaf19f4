"""Raw access to a tensor's storage, the way a device pointer sees it.

A CUDA or Triton kernel is given a base pointer and computes offsets; nothing checks that they stay inside the
tensor it was handed. The references in this package use these helpers for exactly those accesses, so that an
overrun lands in the next row, then in the next buffer of the same arena, as it would on a device. Leaving the
allocation altogether raises :class:`IllegalAddress`.
"""

from __future__ import annotations

from torch import Tensor

from specdebug.engine.errors import IllegalAddress


def flat_storage(tensor: Tensor) -> Tensor:
    """The whole allocation behind ``tensor`` as a 1-D tensor of its dtype."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def raw_block(tensor: Tensor, offset: int, length: int, site: str) -> Tensor:
    """``length`` elements starting ``offset`` elements after the tensor's first, as a writable 1-D view.

    Raises:
        IllegalAddress: the block is not inside the tensor's allocation.
    """
    start = tensor.storage_offset() + offset
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    if start < 0 or length < 0 or start + length > size:
        raise IllegalAddress(
            site,
            f"elements [{offset}, {offset + length}) of a buffer of {tensor.numel()} leave its allocation",
        )
    return tensor.as_strided((length,), (1,), start)


def raw_store(tensor: Tensor, offset: int, values: Tensor, site: str) -> None:
    """Write 1-D ``values`` from ``offset`` elements after the tensor's first; what lies inside the allocation lands.

    Raises:
        IllegalAddress: the end of ``values`` does not; as on a device, the damage before it is done by then.
    """
    start = tensor.storage_offset() + offset
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    inside = min(values.numel(), size - start)
    if start >= 0 and inside > 0:
        landing = values if inside == values.numel() else values[:inside]
        tensor.as_strided((inside,), (1,), start).copy_(landing)
    if start < 0 or inside < values.numel():
        raise IllegalAddress(
            site,
            f"elements [{offset}, {offset + values.numel()}) of a buffer of {tensor.numel()} leave its allocation",
        )


def raw_scatter(tensor: Tensor, offsets: Tensor, values: Tensor, site: str) -> None:
    """Write ``values`` at int64 element ``offsets`` from the tensor's first element, in order.

    Raises:
        IllegalAddress: an offset is not inside the tensor's allocation.
    """
    if offsets.numel() == 0:
        return
    flat = flat_storage(tensor)
    index = offsets.reshape(-1) + int(tensor.storage_offset())
    try:
        flat.scatter_(0, index, values.reshape(-1).to(tensor.dtype))
    except (RuntimeError, IndexError) as error:
        low, high = int(offsets.min()), int(offsets.max())
        raise IllegalAddress(
            site, f"offsets {low}..{high} of a buffer of {tensor.numel()} leave its allocation"
        ) from error


def raw_gather(tensor: Tensor, offsets: Tensor, site: str) -> Tensor:
    """Read int64 element ``offsets`` from the tensor's first element; same shape as ``offsets``.

    Raises:
        IllegalAddress: an offset is not inside the tensor's allocation.
    """
    index = offsets.reshape(-1)
    start = int(tensor.storage_offset())
    if start:
        index = index + start
    try:
        return flat_storage(tensor).index_select(0, index).view(offsets.shape)
    except (RuntimeError, IndexError) as error:
        low, high = int(offsets.min()), int(offsets.max())
        raise IllegalAddress(
            site, f"offsets {low}..{high} of a buffer of {tensor.numel()} leave its allocation"
        ) from error
