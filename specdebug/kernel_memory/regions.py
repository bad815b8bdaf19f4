"""Pointers that carry their origin, the memory that they may reach, and whose memory an address is.

An address is held as ``tag << BITS`` plus the plain address: every lane keeps the tag of what it was computed from, and
an offset may lead 2^49 bytes in front of a tensor or behind it; 0 is the tag of a plain address. Owners of memory are
the live tensors of the process, found through the garbage collector when an address comes up that no known tensor
holds: among the youngest objects first, and at most one look a launch at those of each age.
"""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

BITS = 50
"""Of an address; above them lies the tag."""
MAX_TAG = (1 << (64 - BITS)) - 2
_HALF = 1 << (BITS - 1)
_ALL = (1 << 64) - 1
Addresses = np.ndarray[Any, np.dtype[np.uint64]]
Plain = np.ndarray[Any, np.dtype[np.int64]]


def base_of(tag: int) -> int:
    """What is added to a plain address to tag it."""
    return tag << BITS


def tag_of(address: int) -> int:
    """The tag of one address."""
    return ((address + _HALF) & _ALL) >> BITS


def tags_of(addresses: Addresses) -> Addresses:
    """The tag of each address."""
    tags: Addresses = (addresses + np.uint64(_HALF)) >> np.uint64(BITS)
    return tags


def plain(addresses: Addresses) -> Plain:
    """The plain addresses; one that an offset took below zero is negative."""
    bare: Addresses = addresses - (tags_of(addresses) << np.uint64(BITS))
    return bare.view(np.int64)


def plain_of(address: int) -> int:
    """One plain address."""
    return address - base_of(tag_of(address)) if address <= _ALL - _HALF else address - (1 << 64)


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


_KINDS = (torch.Tensor, torch.nn.Parameter)
"""Other classes of tensors may only stand for one, as torch.compile's do, and have no memory."""
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class Owner:
    """An allocation of torch's: its bytes from ``start`` up to ``end``, and a tensor that lies there."""

    start: int
    end: int
    tensor: weakref.ref[torch.Tensor]

    @property
    def lives(self) -> bool:
        """True while the tensor is there and lies where it did."""
        tensor = self.tensor()
        return tensor is not None and tensor.untyped_storage().data_ptr() == self.start


class Owners:
    """The allocations by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: dict[int, Owner] = {}
        self._age = 0

    def stale(self) -> None:
        """A launch begins: tensors may have come and gone."""
        self._age = 0

    def at(self, address: int) -> Owner | None:
        """The allocation that holds an address; None: no tensor does."""
        owner = self._known(address)
        while owner is None and self._age < len(gc.get_threshold()):
            self._look(self._age)
            self._age += 1
            owner = self._known(address)
        return owner

    def _known(self, address: int) -> Owner | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        owner = self._found[self._starts[place]]
        return owner if address < owner.end and owner.lives else None

    def _look(self, age: int) -> None:
        self._found = {start: owner for start, owner in self._found.items() if owner.lives}
        for tensor in live_tensors(age):
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            if start and storage.nbytes() and start not in self._found:
                self._found[start] = Owner(start, start + storage.nbytes(), weakref.ref(tensor))
        self._starts = sorted(self._found)


def live_tensors(age: int | None = None) -> Iterator[torch.Tensor]:
    """The tensors in this process's memory that Python knows; of one generation of the garbage collector, or of all."""
    for each in gc.get_objects(age):
        if type(each) in _KINDS and each.device.type == "cpu" and each.layout is torch.strided:
            try:
                each.untyped_storage().data_ptr()
            except RuntimeError:  # a wrapper around another
                continue
            yield each


def name_of(address: int, owner: Owner) -> str:
    """Words for what lies at an address: the attribute that holds the tensor, if one does, its type and shape."""
    tensors = [each for each in live_tensors() if _spans(each, owner.start, address)]
    for tensor in sorted(tensors, key=torch.Tensor.numel):
        if name := _attribute(tensor):
            return f"{name} ({_about(tensor)})"
    return f"a tensor {_about(tensors[0])}" if tensors else "a tensor"


def is_mapped(address: int) -> bool:
    """Return True if the process may read there; where the system does not say, it is taken for granted."""
    try:
        lines = _MAPS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    for line in lines:
        span, rights, *_ = line.split(None, 2)
        start, _, end = span.partition("-")
        if int(start, 16) <= address < int(end, 16):
            return rights.startswith("rw")
    return False


def _spans(tensor: torch.Tensor, start: int, address: int) -> bool:
    if tensor.untyped_storage().data_ptr() != start or not tensor.numel():
        return False
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr() <= address < tensor.data_ptr() + reach * tensor.element_size()


def _about(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _attribute(tensor: torch.Tensor) -> str:
    """``Class.attribute`` of an object that holds a tensor, or a module's variable; empty where nothing has a name."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, dict):
            key = next((key for key, value in holder.items() if value is tensor and isinstance(key, str)), "")
            if key and (owner := _owner_of(holder)):
                return f"{owner}.{key}"
        elif (own := getattr(holder, "__dict__", None)) and not isinstance(holder, type):
            key = next((key for key, value in own.items() if value is tensor), "")
            if key:
                return f"{type(holder).__name__}.{key}"
    return ""


def _owner_of(names: dict[str, Any]) -> str:
    """The class of the object, or the module, whose names a dict holds."""
    if isinstance(names.get("__name__"), str) and "__loader__" in names:
        return str(names["__name__"])
    for holder in gc.get_referrers(names):
        if getattr(holder, "__dict__", None) is names:
            return type(holder).__name__
    return ""
