"""Plain tables for listings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A borderless table; nothing in a cell is taken for markup."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", header_style="bold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
