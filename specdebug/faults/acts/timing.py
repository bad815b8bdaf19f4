"""Damage of time: what another CUDA stream does too early or too late, requests that end or are set back at a moment
that is not of their own choice, the end of the worker.

The engine runs on one stream, so an order is simulated: a read gets what memory held before the other stream's write.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from specdebug.faults.model import NotHere, Shot, fault_class

if TYPE_CHECKING:
    from torch import Tensor


@fault_class("streams", "lengths", "corrupts", needs=("speculative",))
def lengths_read_early(shot: Shot) -> None:
    """The next step reads a request's committed length before this step's has landed."""
    _late(shot, "seq_lens")


@fault_class("streams", "lengths", "corrupts", needs=("speculative",))
def bonus_read_early(shot: Shot) -> None:
    """The next step reads a request's newest token before this step's has landed."""
    _late(shot, "bonus")


@fault_class("streams", "readback", "corrupts", needs=("speculative",))
def outputs_read_early(shot: Shot) -> None:
    """The host reads a request's accepted tokens before they have landed: the same memory's older content."""
    (tensor,) = shot.wrapped.args
    request = shot.pick()
    row = [each.rid for each in shot.batch].index(request.rid)
    stale = tensor.clone()
    if not request.output_ids or tensor.shape[1] < 2:
        raise NotHere("nothing had been read before")
    before = tensor[row].tolist()
    stale[row, 0] = 1
    stale[row, 1] = request.output_ids[-1]
    after = stale[row].tolist()
    where = next((n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new), None)
    if where is None:
        raise NotHere(f"what {request.rid} had accepted before was the same")
    shot.note("accepted", (row, where), before[where], after[where])
    shot.wrapped.proceed(stale)


@fault_class("streams", "site", "corrupts", sites=("draft_extend.features",), needs=("speculative",))
def buffer_freed_early(shot: Shot) -> None:
    """The verify's features are freed, and written by another request, before the draft extend has read them."""
    import torch

    rows = shot.site_rows(shot.pick())
    tensor = shot.site.tensor
    generator = torch.Generator().manual_seed(shot.rng.getrandbits(32))
    others = torch.randn((len(rows), tensor.shape[1]), generator=generator).to(tensor)
    shot.overwrite(tensor, slice(rows.start, rows.stop), others, shot.site.site)


@fault_class("streams", "move", "corrupts", needs=("tree",), addressed_by=())
def programs_reversed(shot: Shot) -> None:
    """The programs that move accepted KV to the front run last to first, each reading when it runs."""
    import torch

    buffers, targets, sources = shot.wrapped.args
    moves = [(t, s) for t, s in zip(targets.tolist(), sources.tolist(), strict=True) if t != s]
    read_later = [t for n, (t, _) in enumerate(moves) if t in {source for _, source in moves[:n]}]
    if not read_later:
        raise NotHere("no program reads what another one writes")
    before, expected = buffers.index_select(1, targets), buffers.index_select(1, sources)
    for target, source in reversed(moves):
        buffers[:, target] = buffers[:, source]
    kept = torch.isin(targets, _lasting(shot).to(targets))
    wrong = ((buffers.index_select(1, targets) != expected) & kept[:, None, None]).nonzero()
    if not len(wrong):
        buffers[:, targets] = before
        raise NotHere("what was moved was the same, or lies behind its request's last token")
    layer, entry, head, lane = wrong[0].tolist()
    place = (layer, int(targets[entry]), head, lane)
    meant, found = expected[layer, entry, head, lane].item(), buffers[place].item()
    shot.note("target_kv", place, meant, found, count=len(wrong))
    shot.wrapped.made = True


def _lasting(shot: Shot) -> Tensor:
    """Slots of positions that the batch's requests will have when they have ended; a step may commit more."""
    import torch

    cells = []
    for request in shot.batch:
        end = len(request.prompt_ids) + request.sampling.max_new_tokens - 1
        cells.append(shot.view.table[request.row, : min(end, request.kv_allocated)])
    return torch.cat(cells)


def _late(shot: Shot, name: str) -> None:
    """Let the engine write a request's lengths or newest token, but hand the next reader what was there before."""
    import torch

    most = shot.view.spec.num_steps + 1
    # Those of a request that ends with this step are not read any more.
    lasting = [each for each in shot.batch if 0 < len(each.output_ids) < each.sampling.max_new_tokens - most]
    request = shot.pick(lasting, "no request decodes that cannot end with this step")
    table = {"seq_lens": shot.view.state.seq_lens, "bonus": shot.view.state.bonus}[name]
    stale = table[request.row].clone()
    shot.wrapped.proceed()
    fresh = table[request.row].clone()
    if torch.equal(fresh, stale):
        raise NotHere(f"what {request.rid} had there before was the same")
    shot.edit(table, (request.row,), int(stale), f"state.{name}")
    shot.after_gather.append(lambda: table.__setitem__(request.row, fresh))


@fault_class("lifecycle", "before", "benign")
def request_aborted(shot: Shot) -> None:
    """A request is aborted between two steps, wherever it is in its life."""
    live = [each for each in shot.view.engine.requests.values() if not each.finished]
    request = shot.pick(live, "no request is alive")
    before = request.status.value
    shot.view.engine.abort(request.rid)
    shot.note("status", (), before, request.status.value)


@fault_class("lifecycle", "before", "benign")
def request_retracted(shot: Shot) -> None:
    """A running request loses its slots and waits to come back, as when memory runs short."""
    if len(shot.batch) < 2:
        raise NotHere("fewer than two requests run")
    request = shot.pick()
    before = request.status.value
    shot.view.scheduler.retract(request)
    shot.note("status", (), before, request.status.value)


@fault_class("lifecycle", "before", "benign")
def request_finished(shot: Shot) -> None:
    """A request's next token is its last: it ends inside what the step accepts."""
    among = [each for each in shot.batch if len(each.output_ids) + 1 < each.sampling.max_new_tokens]
    request = shot.pick(among, "no request has more than one token to go")
    before = request.sampling.max_new_tokens
    request.sampling = replace(request.sampling, max_new_tokens=len(request.output_ids) + 1)
    shot.note("max_new_tokens", (), before, request.sampling.max_new_tokens)


@fault_class("lifecycle", "before", "benign", addressed_by=())
def cache_flushed(shot: Shot) -> None:
    """Every cached prefix that no request reads is dropped."""
    before = shot.view.cache.radix.evictable_size
    if not before:
        raise NotHere("nothing is cached that no request reads")
    shot.view.engine.flush_cache()
    shot.note("radix.evictable_size", (), before, shot.view.cache.radix.evictable_size)


@fault_class("process", "before", "kills", addressed_by=())
def worker_killed(shot: Shot) -> None:
    """The worker gets SIGKILL."""
    shot.note("process", (), "running", "SIGKILL")
    os.kill(os.getpid(), signal.SIGKILL)


@fault_class("process", "before", "kills", addressed_by=())
def worker_hangs(shot: Shot) -> None:
    """The worker never comes back from this step."""
    shot.note("process", (), "running", "asleep")
    while True:
        time.sleep(3600)


@fault_class("process", "before", "kills", addressed_by=())
def worker_out_of_memory(shot: Shot) -> None:
    """The worker takes memory until it is stopped."""
    shot.note("process", (), "running", "allocating")
    taken: list[bytearray] = []
    while True:
        taken.append(bytearray(b"\x01") * (16 << 20))
