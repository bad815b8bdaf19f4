"""Damage to ``req_to_token``: which slot holds which position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdebug.faults.shot import NotHere, Shot, fault_class

if TYPE_CHECKING:
    from specdebug.engine.textbook.request import Request

FAMILY = "rows"

TABLE = "req_to_token"


@fault_class(FAMILY, "before", "corrupts", needs=("reserve",))
def req_to_token_swapped(shot: Shot) -> None:
    """A committed position's cell and that of a reserved one change places: what is read there was never written."""
    request, position = _position(shot, [each for each in shot.batch if each.kv_len < each.kv_allocated])
    reserved = shot.rng.randrange(request.kv_len, request.kv_allocated)
    cell, other = shot.view.slot(request, position), shot.view.slot(request, reserved)
    shot.edit(shot.view.table, (request.row, position), other, TABLE)
    shot.edit(shot.view.table, (request.row, reserved), cell, TABLE)


@fault_class(FAMILY, "before", "corrupts")
def req_to_token_flipped(shot: Shot) -> None:
    """One bit of a committed position's cell is flipped: it names another slot of the pool."""
    request, position = _position(shot)
    cell, slots = shot.view.slot(request, position), shot.view.memory.target.size
    others = [cell ^ (1 << bit) for bit in range(16) if cell ^ (1 << bit) < slots]
    shot.edit(shot.view.table, (request.row, position), shot.rng.choice(others), TABLE)


@fault_class(FAMILY, "before", "corrupts")
def req_to_token_out_of_range(shot: Shot) -> None:
    """A committed position's cell names a slot behind the pool."""
    request, position = _position(shot)
    beyond = shot.view.memory.target.size + shot.rng.randrange(100)
    shot.edit(shot.view.table, (request.row, position), beyond, TABLE)


@fault_class(FAMILY, "before", "corrupts")
def req_to_token_of_another(shot: Shot) -> None:
    """A committed position's cell names a slot of another request."""
    request, position = _position(shot)
    others = [each for each in shot.batch if each is not request and each.kv_allocated]
    if not others:
        raise NotHere("no other request runs")
    other = shot.rng.choice(others)
    slot = shot.view.slot(other, shot.rng.randrange(other.protected_len, other.kv_allocated))
    shot.edit(shot.view.table, (request.row, position), slot, TABLE)


@fault_class(FAMILY, "before", "corrupts", needs=("tree", "pages"))
def misaligned_loc(shot: Shot) -> None:
    """The first cell of the page that a prefix ends in names a slot that begins no page."""
    page = shot.view.config.page_size
    among = [each for each in shot.batch if each.speculative and each.kv_len % page]
    request = shot.pick(among, "no prefix of a request that speculates ends inside a page")
    first = request.kv_len - request.kv_len % page
    shot.edit(shot.view.table, (request.row, first), shot.view.slot(request, first) + 1, TABLE)


@fault_class(FAMILY, "release", "corrupts", needs=("pages", "radix"), addressed_by=("request",))
def misaligned_release(shot: Shot) -> None:
    """The slots that a request gives back begin with a slot that begins no page."""
    page = shot.view.config.page_size
    request = shot.pick(shot.wrapped.args)
    settled = request.kv_len + 1 - shot.view.cache.beyond
    cached = settled - settled % page if shot.wrapped.options["keep"] else 0
    first = max(request.protected_len, cached)
    if first >= request.kv_allocated:
        raise NotHere(f"{request.rid} has nothing to give back")
    shot.edit(shot.view.table, (request.row, first), shot.view.slot(request, first) + 1, TABLE)


@fault_class(FAMILY, "before", "corrupts", needs=("guards",))
def row_overrun(shot: Shot) -> None:
    """A cell behind the end of a request's row is written, as a reservation longer than the row would."""
    request = shot.pick(why="no request runs")
    shot.edit(shot.view.req_to_token.cells, (request.row, shot.view.table.shape[1]), 1, TABLE)


@fault_class(FAMILY, "before", "corrupts", needs=("speculative", "graphs", "guards", "ragged"), addressed_by=())
def buffer_overrun(shot: Shot) -> None:
    """The word behind a draft runner's static kv_indices is written, as by a list that is too long."""
    buffers = shot.view.buffers("draft" if shot.view.eagle.runners.draft is not None else "extend")
    name = "draft.kv_indices" if shot.view.spec.drafting == "head" else "extend.kv_indices"
    buffer = buffers[name]
    beyond = buffer.as_strided((1,), (1,), buffer.storage_offset() + buffer.numel())
    shot.edit(beyond, (0,), 1, f"{name}+0")


def _position(shot: Shot, among: Sequence[Request] | None = None) -> tuple[Request, int]:
    """A request that decodes, and one of its committed positions, of slots of its own if it has any."""
    running = shot.batch if among is None else among
    request = shot.pick([each for each in running if each.kv_len], "no request with committed KV runs")
    return request, shot.rng.randrange(min(request.protected_len, request.kv_len - 1), request.kv_len)
