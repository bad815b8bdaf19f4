"""Raw access to a tensor's storage, as a device pointer has it.

Nothing checks that a CUDA or Triton kernel's offsets stay inside the tensor it was handed. The references in this
package make the same accesses with these helpers, so an overrun lands in the next row, then in the next buffer of the
same arena. Leaving the allocation raises :class:`IllegalAddress`.
"""

from torch import Tensor

from specdebug.engine.errors import IllegalAddress


def flat_storage(tensor: Tensor) -> Tensor:
    """The whole allocation behind ``tensor`` as a 1-D tensor of its dtype."""
    return tensor.as_strided((_size(tensor),), (1,), 0)


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _block_leaves(tensor: Tensor, offset: int, length: int, site: str) -> IllegalAddress:
    return _leaves(tensor, f"elements [{offset}, {offset + length})", (offset, offset + length), site)


def _offsets_leave(tensor: Tensor, offsets: Tensor, site: str) -> IllegalAddress:
    first, last = int(offsets.min()), int(offsets.max())
    return _leaves(tensor, f"offsets {first}..{last}", (first, last + 1), site)


def _leaves(tensor: Tensor, used: str, reached: tuple[int, int], site: str) -> IllegalAddress:
    """The error for an access to elements [first, past) of a tensor."""
    size, start = tensor.element_size(), tensor.storage_offset()
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    row = tensor.stride(0) if tensor.dim() > 1 else 1
    arena = {
        "buffers": [[site.rpartition(".")[2], start * size, (start + last + 1) * size, row * size]],
        "size": tensor.untyped_storage().nbytes(),
        "reached": [(start + each) * size for each in reached],
    }
    return IllegalAddress(site, f"{used} of a buffer of {tensor.numel()} leave its allocation", arena)


def raw_block(tensor: Tensor, offset: int, length: int, site: str) -> Tensor:
    """View ``length`` elements, writable and 1-D, from ``offset`` elements after the tensor's first.
    Raises IllegalAddress if the block is not inside the tensor's allocation."""
    start = tensor.storage_offset() + offset
    if start < 0 or length < 0 or start + length > _size(tensor):
        raise _block_leaves(tensor, offset, length, site)
    return tensor.as_strided((length,), (1,), start)


def raw_store(tensor: Tensor, offset: int, values: Tensor, site: str) -> None:
    """Write 1-D ``values`` from ``offset`` elements after the tensor's first.

    Raises IllegalAddress if the end of ``values`` leaves the allocation; as on a device, what comes before it is
    written.
    """
    start = tensor.storage_offset() + offset
    inside = min(values.numel(), _size(tensor) - start)
    if start >= 0 and inside > 0:
        tensor.as_strided((inside,), (1,), start).copy_(values[:inside])
    if start < 0 or inside < values.numel():
        raise _block_leaves(tensor, offset, values.numel(), site)


def raw_scatter(tensor: Tensor, offsets: Tensor, values: Tensor, site: str) -> None:
    """Write ``values`` at int64 ``offsets`` from the tensor's first element, in order.
    Raises IllegalAddress if an offset is not inside the tensor's allocation."""
    if offsets.numel() == 0:
        return
    index = offsets.reshape(-1) + int(tensor.storage_offset())
    try:
        flat_storage(tensor).scatter_(0, index, values.reshape(-1).to(tensor.dtype))
    except (RuntimeError, IndexError) as error:
        raise _offsets_leave(tensor, offsets, site) from error


def raw_gather(tensor: Tensor, offsets: Tensor, site: str) -> Tensor:
    """Read the elements at int64 ``offsets`` from the tensor's first element, in the shape of ``offsets``.
    Raises IllegalAddress if an offset is not inside the tensor's allocation."""
    index = offsets.reshape(-1)
    start = int(tensor.storage_offset())
    if start:
        index = index + start
    try:
        return flat_storage(tensor).index_select(0, index).view(offsets.shape)
    except (RuntimeError, IndexError) as error:
        raise _offsets_leave(tensor, offsets, site) from error
