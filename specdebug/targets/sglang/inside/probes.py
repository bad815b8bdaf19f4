"""SGLang's probes as ours: its ``maybe_detect_*`` functions get other code where they are, which calls
:mod:`specdebug.async_probe` by our names of the sites."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specdebug import async_probe
from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.sglang.inside.seats import Seat
from specdebug.targets.sglang.sites import site_of

_NAME = "__specdebug_probes__"
PROBES = "probes"


class _Calls:
    """Takes upstream's calls, whose own modules go on where a look of ours fails; what a probe asserts is raised."""

    def __init__(self, look: EngineLook) -> None:
        self._probes = _Probes()
        self._look = look

    def __getattr__(self, name: str) -> Callable[..., None]:
        probe = getattr(self._probes, name)
        return lambda *given: self._look.attempt(lambda: probe(*given), None)


class _Probes:
    """Our probes, by the names of upstream's own."""

    def nan(self, tensor: Any, words: str) -> None:
        async_probe.maybe_detect_nan(tensor, site_of(words))

    def inf(self, tensor: Any, words: str) -> None:
        async_probe.maybe_detect_inf(tensor, site_of(words))

    def oob(self, tensor: Any, low: int, high: int, words: str) -> None:
        async_probe.maybe_detect_oob(tensor, low, high, site_of(words))

    def page_aligned(self, tensor: Any, page_size: int, words: str) -> None:
        if page_size > 1:
            async_probe.maybe_detect_page_aligned(tensor, page_size, site_of(words))

    # Sites that upstream has no probe at: the calls are added by ``probes/sites/sglang.yaml``.

    def draft_positions(self, batch: Any, step: int) -> None:
        """Forward ``step`` of a draft is at L + step. Rows that a graph is padded with have the length 1."""
        positions, lengths = batch.positions, batch.seq_lens
        lengths = lengths.repeat_interleave(positions.numel() // lengths.numel())
        base = torch.where(lengths > 1, lengths, positions - step)
        async_probe.maybe_detect_oob(positions, step, step + 1, "draft.forward.positions", base)

    def expand_page_table(self, page_table: Any, cache_loc: Any, page_size: int) -> None:
        """The slots of a branch, in order, lie on no more pages than its row of the table has columns."""
        pages = cache_loc // page_size
        used = (pages[:, 1:] != pages[:, :-1]).sum(1) + 1
        async_probe.maybe_detect_oob(used, 0, page_table.shape[1] + 1, "draft.expand_page_table")

    def draft_kv_indices(self, kv_indptr: Any, kv_indices: Any) -> None:
        """The slots of all branches fit the row of each forward of the draft; the last step has none."""
        ends = kv_indptr[:-1, -1]
        async_probe.maybe_detect_oob(ends, 0, kv_indices.shape[1] + 1, "draft.kv_indices")

    def accepted(self, predict: Any, accept_index: Any, num_correct_drafts: Any, batch: Any) -> None:
        """What a verify has decided: 0 where no token was accepted; a path has a place for the root and each step."""
        vocab_size = batch.model_config.vocab_size
        async_probe.maybe_detect_oob(predict, 0, vocab_size, "accept.predict")
        async_probe.maybe_detect_oob(accept_index, -1, predict.numel(), "accept.accept_index")
        async_probe.maybe_detect_oob(num_correct_drafts, 0, accept_index.shape[1], "accept.num_correct_drafts")

    def chunk_tail(self, tail_tokens: Any, batch: Any) -> None:
        """Behind a chunk that is not the prompt's last comes the prompt's next token."""
        if (token := batch.chunked_req_next_prompt_token) is None:
            return
        for number, request in enumerate(batch.reqs):
            if request is batch.chunked_req:
                behind = tail_tokens[number : number + 1]
                async_probe.maybe_detect_oob(behind, int(token), int(token) + 1, "draft_prefill.input_ids")


# Their code is run with upstream's globals, so the one name that they use is a builtin.
def _nan(tensor: Any, msg: str = "") -> None:
    __specdebug_probes__.nan(tensor, msg)  # type: ignore[name-defined]  # noqa: F821


def _inf(tensor: Any, msg: str = "") -> None:
    __specdebug_probes__.inf(tensor, msg)  # type: ignore[name-defined]  # noqa: F821


def _oob(indices: Any, low: int, high: int, msg: str) -> None:
    __specdebug_probes__.oob(indices, low, high, msg)  # type: ignore[name-defined]  # noqa: F821


def _page_aligned(indices: Any, page_size: int, msg: str) -> None:
    __specdebug_probes__.page_aligned(indices, page_size, msg)  # type: ignore[name-defined]  # noqa: F821


BECOME: Mapping[str, Any] = {
    "maybe_detect_nan": _nan,
    "maybe_detect_inf": _inf,
    "maybe_detect_oob": _oob,
    "maybe_detect_page_aligned": _page_aligned,
}
"""Upstream's probes, and the functions whose code and defaults they get."""
PROBE_SEATS = {name: Seat(PROBES, (f"srt.utils.async_probe:{name}",)) for name in BECOME}


def probe() -> None:
    """Have upstream's probes call ours, where they are; raises NoSeat where upstream lacks one."""
    setattr(builtins, _NAME, _Calls(EngineLook(PROBES)))
    for name, ours in BECOME.items():
        theirs = getattr(*PROBE_SEATS[name].find())
        theirs.__code__, theirs.__defaults__ = ours.__code__, ours.__defaults__
