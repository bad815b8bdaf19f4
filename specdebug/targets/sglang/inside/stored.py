"""What SGLang's pools hold as a forward finds it, for recorders: a row for each request. A value that was written,
moved, copied or kept wrongly differs here, before the forward that reads it, and by a name of its own.

``prefix.*``: what a prefill goes on from, cached or computed in chunks before. ``commit.*``: the last positions of a
request whose tokens are certain, as many as a verify has; ``relay.seq_lens``: how many are. ``*.state``: of recurrent
layers; ``snapshot.state``: the buffers in which a request keeps them for the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.inside.guard import Tap, after
from specdebug.targets.sglang.inside.seats import Seat, installed

COPIED = Seat(
    "recurrent state", ("srt.model_executor.model_runner:ModelRunner._maybe_execute_deferred_mamba_cow_and_clear",)
)
"""The method behind which the states that a prefill goes on from are in its requests' own slots."""


class StoredSites:
    """Tells ``add`` a site and a tensor. ``live``: False while nothing is to be told."""

    def __init__(self, add: Callable[[str, Tensor], None], live: Callable[[], bool]) -> None:
        self._add, self._live = add, live
        self._draft: Any = None  # the pool of a draft that keeps keys and values

    def taps(self) -> Iterator[tuple[Any, str, Tap]]:
        """Where the copies of states are tapped; nowhere in a release that has none. Raises NoSeat."""
        if installed().has(COPIED.places[0]):
            yield *COPIED.find(), self.copied

    def before(self, place: str, runner: Any, batch: Any) -> None:
        """A forward begins, which :func:`stages._place` names."""
        pool, lengths = runner.token_to_kv_pool, batch.seq_lens.long()
        cells = runner.req_to_token_pool.req_to_token[batch.req_pool_indices.long()]
        if runner.is_draft_worker:
            self._draft = pool
        match place:
            case "target_prefill":
                lengths = batch.extend_prefix_lens.long()
                self._add("prefix.lens", lengths)
                if lengths.any():
                    self._add("prefix.target_kv", _sums(pool, cells, lengths))
                    if self._draft is not None:
                        self._add("prefix.draft_kv", _sums(self._draft, cells, lengths))
            case "verify" | "block":
                self._add("relay.seq_lens", lengths)
                nodes = batch.input_ids.numel() // max(lengths.numel(), 1)
                kept = "draft_kv" if place == "block" else "target_kv"
                self._add(f"commit.{kept}", _last(pool, cells, lengths, nodes))
                if place == "verify":
                    self._states("commit", runner, batch)

    def drafts(self, runner: Any, batch: Any, nodes: int) -> None:
        """A draft that keeps keys and values begins."""
        if self._live():
            lengths = batch.seq_lens.long()
            self._add("relay.seq_lens", lengths)
            cells = runner.req_to_token_pool.req_to_token[batch.req_pool_indices.long()]
            self._add("commit.draft_kv", _last(runner.token_to_kv_pool, cells, lengths, nodes))

    @after(bound=1)
    def copied(self, _: Any, runner: Any, batch: Any) -> None:
        mode = batch.forward_mode
        if self._live() and not runner.is_draft_worker and mode.is_extend() and not mode.is_target_verify():
            self._states("prefix", runner, batch)

    def _states(self, when: str, runner: Any, batch: Any) -> None:
        rows, slots = batch.req_pool_indices.long(), runner.req_to_token_pool
        if (pool := getattr(slots, "mamba_pool", None)) is None:
            return
        self._add(f"{when}.state", _of_slots(pool, slots.get_mamba_indices(rows).long().unsqueeze(1)))
        if (kept := getattr(slots, "req_index_to_mamba_ping_pong_track_buffer_mapping", None)) is not None:
            self._add("snapshot.state", _of_slots(pool, kept[rows]))


def _of_slots(pool: Any, slots: Tensor) -> Tensor:
    """States and windows in some slots [requests, n] of each request, [requests, ...]."""
    cache, flat = pool.mamba_cache, slots.reshape(-1)
    parts = [each[:, flat].transpose(0, 1).flatten(1).float() for each in (*cache.conv, cache.temporal)]
    return torch.cat(parts, 1).view(len(slots), -1)


def _layers(pool: Any, slots: Tensor) -> Iterator[Tensor]:
    """Keys and values in some slots, a tensor [slots, width] for each layer and kind; zeros where a window has none."""
    if hasattr(pool, "swa_kv_pool"):
        there = pool.translate_loc_from_full_to_swa(slots).long()
        yield from (each * (there > 0).unsqueeze(1) for each in _layers(pool.swa_kv_pool, there.clamp(min=0)))
    pool = getattr(pool, "full_kv_pool", pool)
    for name in ("k_buffer", "v_buffer", "kv_buffer"):
        yield from (each[slots].flatten(1).float() for each in getattr(pool, name, None) or ())


def _last(pool: Any, cells: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Keys and values of each request's last ``count`` positions, [requests, ...], zeros before its first."""
    places = lengths.unsqueeze(1) - count + torch.arange(count, device=lengths.device)
    slots = cells.gather(1, places.clamp(min=0)).long().reshape(-1)
    there = (places >= 0).reshape(-1, 1)
    return torch.cat([each * there for each in _layers(pool, slots)], 1).view(len(lengths), -1)


def _sums(pool: Any, cells: Tensor, lengths: Tensor) -> Tensor:
    """Keys and values of each request's first positions, added up with their places as weights, float64 [requests,
    width]."""
    rows = []
    for own, length in zip(cells, lengths.tolist(), strict=True):
        weights = torch.arange(1, length + 1, device=cells.device, dtype=torch.float64).unsqueeze(1)
        rows.append(torch.cat([(each.double() * weights).sum(0) for each in _layers(pool, own[:length].long())]))
    return torch.stack(rows)
