"""What an engine's process writes to a file: a tape of its batches, in full what passes its sites. A disk that is full
ends the writing, never the engine."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from specdebug.targets.inside.words import say

LARGEST = 8 << 30
"""Bytes after which nothing more is written."""
AHEAD = 64
"""Batches that a GPU may be ahead of the file; it waits at the next."""
_NO_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types that numpy lacks; float32 holds their values."""

_Record = tuple[dict[str, Any], Tensor | None]


class Records(Protocol):
    """Takes the records of a tape: facts, and of a site a tensor on the host. ``failed``: it takes no more."""

    failed: bool

    def write(self, facts: dict[str, Any], tensor: Tensor | None) -> None: ...

    def flush(self) -> None:
        """Have what was written outlive this process."""


class Tape:
    """Makes records of an engine's batches and hands them on: into a :class:`TapeFile`, or what takes them otherwise.

    Everything is kept at once. What a GPU computes comes to the host and into the file in a thread, so that the engine
    waits for neither.
    """

    def __init__(self, records: Records) -> None:
        self._file = records
        self._later: _Later | None = None
        self._begun = False

    @property
    def recording(self) -> bool:
        """True while a batch is computed."""
        return self._begun and not self._file.failed

    def begin(
        self, number: int, kind: str, rids: Sequence[str], lens: Sequence[int] = (), **places: Sequence[int]
    ) -> None:
        """A batch of these requests is computed from now on. ``kind``: prefill, plain or speculative. ``lens``: of a
        prefill, the tokens of each. ``starts`` and ``totals``, where prompts are cut otherwise than by our engine: of
        each, the position of the first and how many tokens the whole prefill is of."""
        self._begun = True
        told = {name: list(each) for name, each in places.items()}
        self._put({"batch": number, "kind": kind, "rids": list(rids), "lens": list(lens), **told})

    def end(self) -> None:
        """The batch is computed."""
        self._begun = False
        self._hand_over()

    def add(self, site: str, tensor: Tensor) -> None:
        """A tensor passes a site of the batch, rows first."""
        if not self.recording:
            return
        values = tensor.detach()
        if values.device.type != "cpu":
            self._later = self._later or _Later(self._file)
            values = values.clone()
        self._put({"site": site, "dtype": str(values.dtype).removeprefix("torch.")}, values)

    def ended(self, rid: str, decodes: int) -> None:
        """A request has ended. ``decodes``: of the decode steps that computed it, how many were of use; an engine that
        schedules ahead makes one more."""
        self._put({"ended": rid, "decodes": decodes})
        self._hand_over()

    def left_out(self, rid: str, why: str) -> None:
        """From here on nothing more of a request is written. ``why``: in words that follow its name."""
        self._put({"left_out": rid, "why": why})
        self._hand_over()

    def wait(self) -> None:
        """Return once the file holds all that has passed."""
        if self._later is not None:
            self._later.queue.join()

    def _put(self, facts: dict[str, Any], tensor: Tensor | None = None) -> None:
        if self._later is None:
            self._file.write(facts, tensor)
        else:
            self._later.batch.append((facts, tensor))

    def _hand_over(self) -> None:
        """Have the file hold all that was written: the engine may be killed next."""
        if self._later is None:
            self._file.flush()
        else:
            self._later.hand_over()


class TapeFile:
    """Writes records to the file at ``path``, which the first batch makes, so the process that has batches. Each is a
    line of JSON; one of a tensor is followed by as many bytes as it says. ``failed``: nothing more is written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.failed = False

    def write(self, facts: dict[str, Any], tensor: Tensor | None) -> None:
        """Write a record, of a tensor on the host or of none."""
        if self.failed:
            return
        body: Any = b""
        if tensor is not None:
            array = array_of(tensor)
            body = array.reshape(-1).view("u1").data
            facts |= {"numpy": array.dtype.str, "shape": list(array.shape)}
            facts |= {"bytes": len(body)} if len(body) else {}
        try:
            if self._file is None:
                self._file = open(self._path, "ab")  # noqa: SIM115 - the engine's end closes it
            if self._file.tell() + len(body) > LARGEST:
                raise OSError(f"it has {LARGEST >> 30} GiB")
            self._file.write(json.dumps(facts, separators=(",", ":")).encode() + b"\n")
            self._file.write(body)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Give all that was written to the system."""
        if self._file is not None and not self.failed:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failed = True
        say(f"recording ends, {self._path}: {error.strerror or error}")


def array_of(tensor: Tensor) -> np.ndarray:
    """The values of a tensor on the host, as a tape's file has them, rows first."""
    values = (tensor.float() if tensor.dtype in _NO_NUMPY else tensor).contiguous()
    found: np.ndarray = (values if values.dim() else values.reshape(1)).numpy()
    return found


class _Later:
    """Writes what lies on a GPU, batch by batch, in a thread. ``batch``: the records of the one that is computed."""

    def __init__(self, file: Records) -> None:
        self._file = file
        self.batch: list[_Record] = []
        self.queue: queue.Queue[tuple[list[_Record], torch.cuda.Event]] = queue.Queue(AHEAD)
        threading.Thread(target=self._run, name="tape", daemon=True).start()

    def hand_over(self) -> None:
        """The batch is whole; wait if there are too many."""
        batch, self.batch = self.batch, []
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record()
        self.queue.put((batch, computed))

    def _run(self) -> None:
        copying = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        while True:
            batch, computed = self.queue.get()
            try:
                with torch.cuda.stream(copying):
                    copying.wait_event(computed)
                    for facts, tensor in batch:
                        self._file.write(facts, None if tensor is None else tensor.cpu())
                self._file.flush()
            except RuntimeError as error:  # the device is lost
                self._file.failed = True
                say(f"recording ends: {' '.join(str(error).split())[:200]}")
            finally:
                self.queue.task_done()


Event = dict[str, Any]
"""What was seen of a request in a batch: ``what`` is ``prefilled`` or ``verified``; the rest is by name."""


def kept(tensor: Tensor) -> Tensor:
    """A copy on the host, which is written once."""
    return tensor.detach().to("cpu", copy=True)
