"""The shadows of tensors: they take in what is stored, and say which loads are not right.

Of a KV pool (``WrittenSlots``): which slots have been written since they were handed out. Slots in front, which padding
writes and reads, always count as written. Of a graph's static buffers (``StampedBuffers``): which replay last wrote an
element. What neither this replay's preparation nor the replay itself has written is of an earlier batch, unless nothing
but the capture ever wrote it. Time is cut into phases, numbered from 1 on: the replays, and what lies between two.
Phase 0 is all until the first batch, captures included. An element's stamp is the phase that last wrote it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from specdebug.kernel_memory.regions import Plain


@dataclass(frozen=True)
class Misread:
    """A load that a shadow objects to: its kind of finding, how many elements or slots, and what makes the words."""

    kind: str
    count: int
    words: Callable[[], str]


class Shadow(Protocol):
    """The shadow of a tensor, by plain addresses in its memory or beside it, which are left out."""

    def stored(self, addresses: Plain) -> None:
        """A kernel has stored there."""

    def loaded(self, addresses: Plain) -> Misread | None:
        """A kernel loads there; returns what is wrong with that."""


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


Spared = Callable[[str], int | None]
"""By the name of a buffer, the first of its elements that may be left over in a replay; None: none may."""


class Phase(NamedTuple):
    """A replay of a runner for a batch; without a runner, what lies between two replays."""

    runner: str
    batch: int

    def __str__(self) -> str:
        return f"{self.runner}'s replay in batch {self.batch}" if self.runner else f"batch {self.batch} beside replays"


class StampedBuffer:
    """The shadow of one buffer. ``ahead``: what the phase before a replay writes into it is for that replay."""

    def __init__(self, name: str, tensor: Tensor, ahead: bool, phases: StampedBuffers) -> None:
        storage = tensor.untyped_storage()
        self.name = name
        self.tensor = weakref.ref(tensor)
        self.item = tensor.element_size()
        with torch.inference_mode(False):  # else it could be written in inference mode alone
            self._stamps = torch.zeros(storage.nbytes() // self.item, dtype=torch.int32)
        self._start = storage.data_ptr()
        self._first = int(tensor.storage_offset())
        self._ahead = ahead
        self._phases = phases

    def wrote(self, tensor: Tensor, put: Callable[[Tensor, int], object] | None = None) -> None:
        """A view of the buffer is written; ``put`` stamps what is written of it, if that is not all."""
        stamps = self._view(tensor)
        if put is None:
            stamps.fill_(self._phases.number)
        else:
            put(stamps, self._phases.number)

    def _view(self, tensor: Tensor) -> Tensor:
        """The stamps of a view of the buffer, in its shape; int32."""
        return self._stamps.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def stored(self, addresses: Plain) -> None:
        self._stamps.numpy()[self._elements(addresses)] = self._phases.number

    def loaded(self, addresses: Plain) -> Misread | None:
        elements = self._elements(addresses)
        return self._judged(elements, self._stamps.numpy()[elements])

    def read(self, tensor: Tensor, chosen: Callable[[Tensor], Tensor] | None = None) -> Misread | None:
        """A view of the buffer is read, or what is ``chosen`` of it; returns what is wrong with that."""
        stamps = self._view(tensor)
        read = stamps if chosen is None else chosen(stamps)
        if not self._phases.replaying or not bool(self._old(read.numpy()).any()):
            return None
        places = torch.arange(len(self._stamps)).as_strided(stamps.shape, stamps.stride(), stamps.storage_offset())
        some = (places if chosen is None else chosen(places)).reshape(-1).numpy()
        return self._judged(some, self._stamps.numpy()[some])

    def _elements(self, addresses: Plain) -> Any:
        elements = (np.ravel(addresses) - self._start) // self.item
        return np.unique(elements[(elements >= 0) & (elements < len(self._stamps))])

    def _old(self, stamps: Any) -> Any:
        return (stamps != 0) & (stamps < self._phases.number - self._ahead)

    def _judged(self, elements: Any, stamps: Any) -> Misread | None:
        if not self._phases.replaying:
            return None
        old = self._old(stamps)
        if old.any() and (first := self._phases.spared(self.name)) is not None:
            old = old & (elements < self._first + first)
        if not old.any():
            return None
        words = partial(self._words, int(elements[old][0]), self._phases.named(int(stamps[old][0])), int(old.sum()))
        return Misread("stale", int(old.sum()), words)

    def _words(self, element: int, writer: Phase, count: int) -> str:
        tensor = self.tensor()
        at = [element - self._first]
        about = ""
        if tensor is not None:
            about = f" ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
            if tensor.is_contiguous() and 0 <= at[0] < tensor.numel():
                at = [int(each) for each in np.unravel_index(at[0], tuple(tensor.shape))]
        many = f"{count} elements, the first {at}" if count > 1 else f"element {at}"
        return f"{many} of {self.name}{about} in {self._phases.now}, last written by {writer}"


class StampedBuffers:
    """All static buffers of the process, and the phase that it is in.

    Attributes:
        number: of the phase.
        replaying: the phase is a replay, whose reads are judged.
        spared: what may be left over in it.
    """

    def __init__(self) -> None:
        self.number = 0
        self.replaying = False
        self.spared: Spared = _none
        self._phases = [Phase("", 0)]
        self._buffers: dict[int, StampedBuffer] = {}

    @property
    def now(self) -> Phase:
        """The phase."""
        return self._phases[self.number]

    def named(self, number: int) -> Phase:
        """The phase of a number."""
        return self._phases[number]

    def add(self, name: str, tensor: Tensor, *, ahead: bool = False) -> None:
        """Shadow a tensor's memory, nothing of which a replay has written yet. Of several tensors in one allocation the
        first gives the name."""
        if tensor.numel() and self.at(tensor.untyped_storage().data_ptr()) is None:
            self._buffers[tensor.untyped_storage().data_ptr()] = StampedBuffer(name, tensor, ahead, self)

    def at(self, start: int) -> StampedBuffer | None:
        """The buffer whose allocation begins at an address."""
        buffer = self._buffers.get(start)
        if buffer is not None and buffer.tensor() is None:  # another allocation may be there by now
            del self._buffers[start]
            return None
        return buffer

    def of(self, tensor: Tensor) -> StampedBuffer | None:
        """The buffer that a tensor is a view of, element by element."""
        if not self._buffers or tensor.device.type != "cpu":
            return None
        buffer = self.at(tensor.untyped_storage().data_ptr())
        return buffer if buffer is not None and buffer.item == tensor.element_size() else None

    def batch(self, number: int) -> None:
        """A batch begins."""
        self._enter(Phase("", number), replaying=False, spared=_none)

    def begin(self, runner: str, spared: Spared) -> None:
        """A replay of a runner is prepared, for the batch that is on."""
        self._enter(Phase(runner, self.now.batch), replaying=True, spared=spared)

    def end(self) -> None:
        """It is over."""
        self.batch(self.now.batch)

    def _enter(self, phase: Phase, *, replaying: bool, spared: Spared) -> None:
        self.number += 1
        self._phases.append(phase)
        self.replaying, self.spared = replaying, spared


def _none(_: str) -> None:
    return None
