"""Every near-tie, everything that is wrong, what was met, and the table, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from benchmarks.lossless.play import MET
from benchmarks.lossless.tally import OPTIONS, NearTie, Row, together
from specdebug.report.parts import Table, columns
from specdebug.report.terminal import Listing


def render(rows: Sequence[Row], title: str) -> RenderableType:
    """All of it."""
    by_worker = [(key, list(group)) for key, group in groupby(rows, lambda row: (row.worker, row.dtype))]
    totals = [together(group) for _, group in by_worker]
    each = zip(by_worker, totals, strict=True)
    shown = [row for (_, group), total in each for row in ((*group, total) if len(group) > 1 else group)]
    ties = [line for total in totals for line in _listed(total)]
    wrong = [f"WRONG {row.worker} {row.plan} {row.dtype} {line}" for row in rows for line in row.wrong]
    lists = [Text("\n".join([*lines, ""])) for lines in (ties, wrong) if lines]
    return Group(*lists, _met(totals), Text(), _table(shown, title), Text(conclusion(rows)))


def conclusion(rows: Sequence[Row]) -> str:
    """All of it in a line."""
    counts = [sum(getattr(row, name) for row in rows) for name in ("configurations", "requests", "tokens")]
    wrong, ties = sum(len(row.wrong) for row in rows), sum(len(row.ties) for row in rows)
    said = "{:,} configurations, {:,} requests, {:,} tokens".format(*counts)
    return f"{said}: {wrong} wrong, {ties} near-ties"


def _table(rows: Sequence[Row], title: str) -> Listing:
    names = ("worker", "plan", "by", "dtype", "configurations", "requests", "tokens", "accept", "same text")
    heads = [*columns(*names[:4], kind="key"), *columns(*names[4:], "near-ties", "widest", "wrong", "s", kind="right")]
    return Listing(Table(heads, [_cells(row) for row in rows], title))


def _cells(row: Row) -> list[str]:
    widest = max((each.tie for each in row.ties), key=lambda tie: tie.used, default=None)
    return [
        row.worker,
        row.plan,
        row.executor,
        row.dtype,
        str(row.configurations),
        str(row.requests),
        str(row.tokens),
        f"{row.accept_mean:.2f}",
        str(row.same),
        str(len(row.ties)),
        "" if widest is None else f"{widest.margin:.2g} of {widest.allowed:.2g}",
        str(len(row.wrong)),
        f"{row.seconds:.0f}",
    ]


def _met(totals: Sequence[Row]) -> Listing:
    heads = [*columns("worker", "dtype", kind="key"), *columns(*OPTIONS), *columns(*MET, kind="right")]
    return Listing(
        Table(heads, [_met_by(row) for row in totals], "configurations that met it, and the options they had")
    )


def _met_by(row: Row) -> list[str]:
    options = [" ".join(map(str, sorted(row.options[name]))) or "-" for name in OPTIONS]
    return [row.worker, row.dtype, *options, *(str(row.met[name]) for name in MET)]


def _listed(total: Row) -> Iterator[str]:
    """Every near-tie once, with how often it was met: requests share prompts, and so does what follows them."""
    seen: dict[object, list[NearTie]] = {}
    for each in total.ties:
        seen.setdefault(each.place, []).append(each)
    if seen:
        yield f"near-ties of {total.worker} in {total.dtype}, by the float32 model's logits:"
    for same in sorted(seen.values(), key=lambda same: -same[0].tie.used):
        tie = same[0].tie
        apart = f"{tie.margin:.3g} logits apart, {tie.allowed:.2g} allowed"
        times = f", met {len(same)} times" if len(same) > 1 else ""
        yield f"  {same[0].request} output {tie.position}: {tie.token} for {tie.preferred}, {apart}{times}"
