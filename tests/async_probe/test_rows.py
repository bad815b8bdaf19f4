"""Rows that programs wrote in any order come out as findings in program order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from specdebug.async_probe.rows import (
    COLUMNS,
    TAG_ENTRY,
    TAG_JOB,
    TAG_PART,
    RawFinding,
    intact,
    merge,
)


def _row(
    ticket: int,
    *,
    origin: int = 1,
    launch: int = 0,
    entry: int = 0,
    job: int = 0,
    part: int = 0,
    index: int = 0,
    value: int = 0,
    count: int = 1,
) -> list[int]:
    tag = entry << TAG_ENTRY | job << TAG_JOB | part << TAG_PART
    row = [ticket + 1, origin, launch, 7, tag, index, value, count, 0]
    assert len(row) == COLUMNS
    return row


@given(st.data())
def test_findings_do_not_depend_on_which_program_came_first(data: st.DataObject) -> None:
    """Launches follow each other; within one, programs draw tickets in any order."""
    launches, expected = [], []
    for number in range(data.draw(st.integers(0, 4))):
        shares = []
        for job in range(data.draw(st.integers(1, 3))):
            for part in range(data.draw(st.integers(1, 2))):
                places = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True))
                counts = [data.draw(st.integers(1, 9)) for _ in places]
                entry = number * 10 + job * 2 + part
                shares += [
                    {"entry": entry, "job": job, "part": part, "index": place, "value": place + 1, "count": count}
                    for place, count in zip(places, counts, strict=True)
                ]
                expected.append(RawFinding(entry, 7, min(places), min(places) + 1, sum(counts), 0.0))
        random.Random(data.draw(st.integers(0, 99))).shuffle(shares)
        launches.append((-3, number) if data.draw(st.booleans()) else (number + 1, 0))
        launches[-1] = (*launches[-1], shares)  # type: ignore[assignment]
    rows, ticket = [], 100
    for origin, launch, shares in launches:  # type: ignore[misc]
        for share in shares:
            rows.append(_row(ticket, origin=origin, launch=launch, **share))
            ticket += 1
    assert merge(rows) == expected
    assert merge(reversed(rows)) == expected


def test_launches_that_lack_rows_are_left_out() -> None:
    stale = _row(3)
    table = [_row(20), _row(21), _row(22, origin=2), stale, stale, _row(25, origin=4), _row(26, origin=5)]
    assert intact(table, 20, more=False) == [table[0], table[1], table[5], table[6]]
    assert intact(table, 20, more=True) == [table[0], table[1], table[5]]
    assert intact([stale, _row(21)], 20, more=False) == [_row(21)]
    assert intact([], 20, more=True) == []
