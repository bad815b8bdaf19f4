"""The memory that a pointer may reach: the tensor that it was made of, and the row of it that it was set to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdebug.kernel_memory.pointers import base_of


@dataclass(frozen=True)
class Extent:
    """Bytes from ``start`` up to ``end``, by plain addresses."""

    start: int
    end: int

    def holds(self, low: int, high: int) -> bool:
        """Return True if the bytes from ``low`` up to ``high`` lie in it."""
        return self.start <= low and high <= self.end


@dataclass(frozen=True)
class Region:
    """What a tag stands for.

    ``argument``: the kernel's name for the tensor. ``about``: its type and shape. ``view``: the tensor's own bytes,
    from its first element to its last; ``storage``: those of the allocation that it is a view of. ``item``: bytes of an
    element; ``pitch``: bytes from a row of dimension 0 to the next, 0 of a tensor without rows; ``width``: the bytes of
    those that are the row's. ``row``: the row that the pointer was set to, if it was.
    """

    tag: int
    argument: str
    about: str
    view: Extent
    storage: Extent
    item: int
    pitch: int = 0
    width: int = 0
    row: int | None = None

    @property
    def window(self) -> Extent:
        """Where the pointer belongs: its row, or all of the tensor."""
        if self.row is None:
            return self.view
        start = self.view.start + self.row * self.pitch
        return Extent(start, min(start + self.width, self.view.end))

    def limits(self) -> tuple[int, int, int]:
        """The window by tagged addresses, and what makes a plain address of one."""
        base, window = base_of(self.tag), self.window
        return base + window.start, base + window.end, base


def region_of(tag: int, argument: str, tensor: Any) -> Region:
    """The region of a tensor: a torch tensor, or what Triton wraps it in to give it another type."""
    tensor = getattr(tensor, "base", tensor) if not hasattr(tensor, "untyped_storage") else tensor
    storage = tensor.untyped_storage()
    start, first, item = storage.data_ptr(), tensor.data_ptr(), tensor.element_size()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1 if tensor.numel() else 0
    rows = len(shape) >= 2 and strides[0] > 0 and shape[0] > 1 and tensor.numel() > 0
    inner = sum((size - 1) * stride for size, stride in zip(shape[1:], strides[1:], strict=True)) + 1
    about = f"{str(tensor.dtype).removeprefix('torch.')} {list(shape)}"
    return Region(
        tag, argument, about, Extent(first, first + reach * item), Extent(start, start + storage.nbytes()), item,
        strides[0] * item if rows and inner <= strides[0] else 0, inner * item,
    )  # fmt: skip
