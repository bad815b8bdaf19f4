"""Which slots of a buffer have been written since they were handed out: the shadow of a KV pool.

A buffer's dimension 0 is its slots. A slot counts as written once anything was stored to it, and as unwritten again
when it is given back. Slots in front, which padding writes and reads, always count as written.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from specdebug.kernel_memory.pointers import Plain
from specdebug.kernel_memory.shadows import Misread

Slots = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class SlotBuffer:
    """One buffer. ``tensor``: it, as long as it lives; ``start``: its address; ``pitch``: bytes of a slot; ``written``:
    bool [slots]; ``dummy``: slots in front that are padding's."""

    name: str
    tensor: weakref.ref[Tensor]
    start: int
    pitch: int
    written: Slots
    dummy: int

    def stored(self, addresses: Plain) -> None:
        self.written[self._touched(addresses)] = True

    def loaded(self, addresses: Plain) -> Misread | None:
        return self.misread(self._touched(addresses))

    def misread(self, slots: Any) -> Misread | None:
        """Some slots are read; returns what is wrong with that."""
        missing = self.unwritten(slots)
        return Misread("unwritten", len(missing), partial(words_of, self, missing)) if len(missing) else None

    def unwritten(self, slots: Any) -> Any:
        """Of some slots, those that nothing has written; those that the buffer has not are left out."""
        slots = self.own(np.asarray(slots))
        return slots[~self.written[slots]]

    def own(self, slots: Any) -> Any:
        """Those of some slots that the buffer has."""
        return slots[(slots >= 0) & (slots < len(self.written))]

    def _touched(self, addresses: Plain) -> Any:
        """The slots that some plain addresses lie in; those outside the buffer are left out."""
        return self.own(np.unique((addresses - self.start) // self.pitch))


class WrittenSlots:
    """All buffers of the process that share one numbering of slots."""

    def __init__(self) -> None:
        self._buffers: dict[int, SlotBuffer] = {}

    def add(self, name: str, buffer: Tensor, dummy: int) -> None:
        """Shadow a buffer [slots, ...], none of whose slots is written yet but the first ``dummy``."""
        written = np.zeros(buffer.shape[0], dtype=bool)
        written[:dummy] = True
        pitch = buffer.stride(0) * buffer.element_size()
        self._buffers[buffer.data_ptr()] = SlotBuffer(
            name, weakref.ref(buffer), buffer.data_ptr(), pitch, written, dummy
        )

    def of(self, address: int) -> SlotBuffer | None:
        """The buffer that begins at an address."""
        shadow = self._buffers.get(address)
        if shadow is not None and shadow.tensor() is None:  # another tensor may lie there by now
            del self._buffers[address]
            return None
        return shadow

    def wrote(self, buffer: Tensor, slots: Tensor) -> None:
        """Slots of a buffer are written. What is no slot of it was told when it was written to."""
        if shadow := self.of(buffer.data_ptr()):
            shadow.written[shadow.own(slots.reshape(-1).numpy())] = True

    def moved(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        """Slots of all buffers are about to be copied; returns what is called when they are: a copy of what nothing has
        written is not written either."""
        to, come = target.reshape(-1).numpy(), source.reshape(-1).numpy()
        states = []
        for shadow in self._buffers.values():
            there = (np.minimum(to, come) >= 0) & (np.maximum(to, come) < len(shadow.written))
            states.append((shadow, to[there], shadow.written[come[there]]))

        def done() -> None:
            for shadow, slots, state in states:
                shadow.written[slots] = state
                shadow.written[: shadow.dummy] = True

        return done

    def forget(self, slots: Tensor | None = None) -> None:
        """Slots of all buffers are given back; None: all of them."""
        for shadow in self._buffers.values():
            shadow.written[slice(None) if slots is None else shadow.own(slots.reshape(-1).numpy())] = False
            shadow.written[: shadow.dummy] = True


def words_of(shadow: SlotBuffer, slots: Any) -> str:
    """What is said of slots that were read and not written."""
    many = f"{len(slots)} slots, the first {slots[0]}" if len(slots) > 1 else f"slot {slots[0]}"
    return f"{many} of {shadow.name}, not written since handed out"
