"""The tape: an engine's process writes its batches, and in full the tensors that pass its sites, to a file.

The file holds records. Each is a line of JSON; one of a tensor is followed by as many bytes as it says. A server's
batches depend on when requests came, so a second run may not repeat the first: everything is kept at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

import torch
from torch import Tensor

from specdebug.targets.inside.words import say

LARGEST = 8 << 30
"""Bytes after which nothing more is written."""
_NO_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types that numpy lacks; float32 holds their values."""


class Tape:
    """Writes the file at ``path``, which the first batch makes, so the process that has batches.

    A disk that is full, or a file of :data:`LARGEST` bytes, ends the writing and not the engine; a line of the log says
    so.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._begun = False
        self._failed = False

    @property
    def recording(self) -> bool:
        """True while a batch is computed."""
        return self._begun and not self._failed

    def begin(
        self,
        number: int,
        kind: str,
        rids: Sequence[str],
        lens: Sequence[int] = (),
        **places: Sequence[int],
    ) -> None:
        """A batch of these requests is computed from now on. ``kind``: prefill, plain or speculative. ``lens``: of a
        prefill, the tokens of each. ``starts`` and ``totals``, which an engine that cuts prompts otherwise than ours
        tells: of each, the position of the first and how many tokens the whole prefill is of."""
        self._begun = True
        told = {name: list(each) for name, each in places.items()}
        self._write({"batch": number, "kind": kind, "rids": list(rids), "lens": list(lens), **told})

    def end(self) -> None:
        """The batch is computed."""
        self._begun = False
        self._flush()

    def add(self, site: str, tensor: Tensor) -> None:
        """A tensor passes a site of the batch, rows first."""
        if not self.recording:
            return
        values = tensor.detach()
        dtype = str(values.dtype).removeprefix("torch.")
        values = (values.float() if values.dtype in _NO_NUMPY else values).cpu().contiguous()
        if not values.dim():
            values = values.reshape(1)
        array = values.numpy()
        facts = {"site": site, "dtype": dtype, "numpy": array.dtype.str, "shape": list(array.shape)}
        self._write(facts, array.tobytes())

    def ended(self, rid: str, decodes: int) -> None:
        """A request has ended. ``decodes``: of the decode steps that computed it, how many were of use; an engine that
        schedules ahead makes one more."""
        self._write({"ended": rid, "decodes": decodes})
        self._flush()

    def left_out(self, rid: str, why: str) -> None:
        """From here on nothing more of a request is written. ``why``: in words that follow its name."""
        self._write({"left_out": rid, "why": why})
        self._flush()

    def _flush(self) -> None:
        """Have the file hold all that was written: the engine may be killed next."""
        if self._file is not None and not self._failed:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def _write(self, facts: dict[str, Any], body: bytes = b"") -> None:
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "ab")  # noqa: SIM115 - the engine's end closes it
            if self._file.tell() + len(body) > LARGEST:
                raise OSError(f"it has {LARGEST >> 30} GiB")
            facts |= {"bytes": len(body)} if body else {}
            self._file.write(json.dumps(facts, separators=(",", ":")).encode() + b"\n" + body)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        say(f"recording ends, {self._path}: {error.strerror or error}")
