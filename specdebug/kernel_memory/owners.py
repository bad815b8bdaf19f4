"""Whose memory an address is: the live tensors of the process, found through the garbage collector.

A look is taken when an address comes up that no known tensor holds, among the youngest objects first, and at most one a
launch at those of each age, because no tensor is made while a kernel runs.
"""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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
