"""An arena with an overrun: its buffers as boxes in order, and what was reached outside of them."""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from specdebug.report.html import svg
from specdebug.report.words import counted
from specdebug.verdict.outcome import Outcome, Violation

MAX_BUFFERS = 6
"""Boxes drawn: the buffer that was overrun, the one before it, and those behind it."""
MAX_NAME = 18
"""Characters of a buffer's name in its box, its beginning and its end; the tip has all of it."""
_LEFT, _BOX, _GAP, _OUTSIDE = 10.0, 124.0, 26.0, 50.0
_TOP, _BOTTOM, _STRIP, _HEIGHT = 28.0, 80.0, 120.0, 114.0

Buffer = tuple[str, int, int, int]
"""Name, start, end, and the bytes of a row, as a finding's ``arena`` has them (``engine/memory/arena.py``)."""
Edges = Sequence[tuple[int, float]]
"""Bytes with their places across the drawing, which is linear between them."""


def arena_row(outcome: Outcome) -> Markup | None:
    """The arena of the first finding that tells of one, with all that was found in it; None where none does."""
    found = [one for one in outcome.violations if "arena" in one.data]
    if not found:
        return None
    size = found[0].data["arena"]["size"]
    found = [one for one in found if one.data["arena"]["size"] == size]
    every: Sequence[Buffer] = max((one.data["arena"]["buffers"] for one in found), key=len)
    first, past = (pick(one.data["arena"]["reached"][at] for one in found) for pick, at in ((min, 0), (max, 1)))
    before = max(0, sum(end <= first for _, _, end, _ in every) - 2)
    buffers, behind = every[before : before + MAX_BUFFERS], every[before + MAX_BUFFERS :]
    edges = _edges(buffers, behind[0][1] if behind else size, past)
    last, end = edges[2 * len(buffers)]
    scopes = {name.partition(".")[0] for name, *_ in every}
    scope = f"{scopes.pop()}." if len(scopes) == 1 else ""
    note = counted(len(behind), "more buffer") if behind else f"end of the arena ({size:,} B)"
    strips = [one for one in found if one.kind != "guard"]
    guards = [one for one in found if one.kind == "guard" and one.data["arena"]["reached"][0] < last]
    parts = [
        *([svg.text(_LEFT, _TOP - 10, f"{counted(before, 'buffer')} before")] if before else []),
        *(_box(one, left, scope) for one, (_, left) in zip(buffers, edges[::2], strict=False)),
        *(_damage(one, every, edges) for one in guards),
        *(_strip(one, edges, _STRIP + 30 * place) for place, one in enumerate(strips)),
        svg.text(end, _TOP - 10, note, text_anchor="end"),
        svg.line(end, _TOP - 6, end, _BOTTOM + 6, class_="axis"),
    ]
    return svg.drawing(_HEIGHT + 30 * len(strips), "; ".join(one.detail for one in found), *parts)


def _edges(buffers: Sequence[Buffer], end: int, past: int) -> Edges:
    """A box a buffer, the gaps behind them, and what was reached behind the last."""
    lefts = [_LEFT + (_BOX + _GAP) * place for place in range(len(buffers) + 1)]
    placed = zip(buffers, lefts, strict=False)
    edges = [edge for (_, start, stop, _), left in placed for edge in ((start, left), (stop, left + _BOX))]
    outside = [(past, lefts[-1] + _OUTSIDE)] if past > end else []
    return [*edges, (end, lefts[-1]), *outside]


def _across(edges: Edges, byte: int) -> float:
    for (low, left), (high, right) in pairwise(edges):
        if byte <= high:
            return max(edges[0][1], svg.Scale(low, high, left, right)(byte))
    return edges[-1][1]


def _box(buffer: Buffer, left: float, scope: str) -> Markup:
    """A buffer; of its name what stands behind ``scope``, which all have in common."""
    name, start, end, row = buffer
    tip, middle = f"{name}: bytes {start:,} to {end:,}", left + _BOX / 2
    short = name.removeprefix(scope) or name
    shown = short if len(short) <= MAX_NAME else f"{short[:9]}\N{HORIZONTAL ELLIPSIS}{short[10 - MAX_NAME :]}"
    rows = f"{(end - start) // max(row, 1):,} rows of {row:,} B"
    return svg.join(
        (
            svg.rect(left, _TOP, _BOX, _BOTTOM - _TOP, class_="stage clean", data_tip=tip),
            svg.text(middle, _TOP + 22, shown, class_="name", text_anchor="middle", data_tip=tip),
            svg.text(middle, _TOP + 40, rows, text_anchor="middle"),
        )
    )


def _damage(one: Violation, every: Sequence[Buffer], edges: Edges) -> Markup:
    """A guard's damage, in bytes and in rows of the buffer before it."""
    low, high = one.data["arena"]["reached"]
    left, right = _across(edges, low), _across(edges, high)
    row = max(next(row for name, _, _, row in every if name == one.site.partition("->")[0]), 1)
    words = (f"{high - low:,} B", f"{(high - low) / row:.2g} rows")
    red = svg.rect(left, _TOP, right - left, _BOTTOM - _TOP, class_="overrun", data_tip=one.detail)
    places = [(_BOTTOM + 16 + 14 * line, said) for line, said in enumerate(words)]
    told = (svg.text((left + right) / 2, y, said, class_="finding", text_anchor="middle") for y, said in places)
    return svg.join((red, *told))


def _strip(one: Violation, edges: Edges, y: float) -> Markup:
    """What one access reached, below the boxes."""
    low, high = one.data["arena"]["reached"]
    ((name, _, end, row),) = one.data["arena"]["buffers"]
    left, right = _across(edges, low), _across(edges, high)
    said = f"one access to {name}: {high - low:,} B, up to {(high - end) / max(row, 1):.2g} rows behind it"
    words = svg.text(left - 8, y + 10, said, class_="finding", text_anchor="end")
    return svg.join((svg.rect(left, y, right - left, 12, class_="overrun", data_tip=one.detail), words))
