"""Outcomes by night: a folder with a file a night, a line for each thing that ran, and what stands out in the last one.

A thing is an arm of a scenario, a toggle of ``toggles verify``, or whatever ``flake``, ``bisect``, ``eval`` or ``faults
verify`` was about. A failure that its scenario expects is good."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.base.files import replace_file
from specdebug.base.schema import Item
from specdebug.base.yamlio import as_json, parse_json
from specdebug.workers.machine_failure import blamed

LEAST_NIGHTS = 5
"""Earlier nights that a band of accept lengths takes."""
_SPREADS, _LEAST_SHARE = 4.0, 0.02
"""A band's half width: so many standard deviations, and at least that part of the median."""
_OF_NORMAL = 1.4826  # the standard deviation of a normal distribution, in median deviations
_NIGHT = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class NightLine:
    """The runs of one thing in one night. ``bad``: of its ``runs``, those that were not as they should be;
    ``unknown``: those without a verdict. ``signatures``: of the bad ones. ``accept``: the mean accept length."""

    night: str
    name: str
    runs: int
    bad: int = 0
    unknown: int = 0
    signatures: tuple[str, ...] = ()
    accept: float | None = None

    @classmethod
    def read(cls, item: Item) -> NightLine:
        table = item.table(required=("night", "name", "runs"), optional=("bad", "unknown", "signatures", "accept"))
        counts = {name: table[name].integer(low=0) for name in ("runs", "bad", "unknown") if name in table}
        accept = table.get("accept")
        return cls(
            table["night"].text(pattern=_NIGHT.pattern),
            table["name"].text(),
            signatures=tuple(each.text() for each in table["signatures"].items()) if "signatures" in table else (),
            accept=None if accept is None or accept.is_null else accept.number(low=0),
            **counts,
        )


def lines_of(document: Any, night: str, path: str) -> list[NightLine]:
    """The lines of a JSON document that one of our commands wrote. Raises ContentError for any other."""
    try:
        found = list(_lines(document, night))
    except (KeyError, TypeError, AttributeError):
        found = []
    if not found:
        told = "replay, toggles verify, faults verify, flake, bisect or eval, written with --json or --json-file"
        raise ContentError(f"is no document of {told}", Where(path))
    return found


def _lines(document: Any, night: str) -> Iterator[NightLine]:
    if isinstance(document, list):  # toggles verify
        for row in document:
            name = f"toggle {row['pr']} ({row['scenario']})"
            bad = 0 if row["live"] or row["untested"] else 1
            yield NightLine(night, name, 1, bad, int(row["untested"]), ("rotten",) * bad)
    elif document.get("toggles"):  # toggles verify -- CMD
        for row in document["toggles"]:
            name, state = f"toggle {row['pr']} ({document['what']})", row["state"]
            bad = int(state == "rotten")
            yield NightLine(night, name, 1, bad, int(state not in ("live", "rotten")), (state,) * bad)
    elif "scenarios" in document:
        for each in document["scenarios"]:
            yield from _lines(each, night)
    elif "arms" in document:
        for arm in document["arms"]:
            good = arm["met"] if arm["met"] is not None else arm["verdict"] == "pass"
            unknown = not good and arm["verdict"] == "unknown"
            signature = arm["signature"] or f"{arm['verdict']}, not as expected"
            yield NightLine(
                night,
                f"{document['scenario']}::{arm.get('shown', arm['arm'])}",
                1,
                int(not good and not unknown),
                int(unknown),
                () if good or unknown else (signature,),
                arm["metrics"]["accept_mean"],
            )
    elif "claim" in document:  # flake
        names = tuple(each["signature"] for each in document["signatures"] if each["measured"])
        yield NightLine(night, document["what"], document["runs"], document["failures"], document["untestable"], names)
    else:
        name = str(document.get("what") or ("faults verify" if "rows" in document else "eval"))
        code = document["exit_code"]
        verdict = str(document.get("verdict", "failed"))
        yield NightLine(night, name, 1, int(code == 1), int(code not in (0, 1)), (verdict,) if code == 1 else ())


class Nights:
    """The nights of a folder. Raises ContentError for a line that is none, SpecDebugError for a file that cannot be
    read."""

    def __init__(self, folder: Path, since: str = "") -> None:
        self.folder, self.since = folder, since
        self._lines: list[NightLine] = []
        for path in sorted(folder.glob("*.jsonl")):
            if path.stem >= since:
                self._lines += self._read(path)

    @staticmethod
    def _read(path: Path) -> Iterator[NightLine]:
        try:
            rows = path.read_bytes().splitlines()
        except OSError as error:
            raise SpecDebugError(f"cannot read {path}: {error.strerror}") from None
        for number, row in enumerate(rows, 1):
            yield NightLine.read(parse_json(row, str(path), number).root)

    @property
    def nights(self) -> list[str]:
        return sorted({line.night for line in self._lines})

    @property
    def things(self) -> list[Thing]:
        """Every thing that ran, those with something to say of the last night first."""
        names = dict.fromkeys(line.name for line in self._lines)
        every = [Thing(name, [each for each in self._lines if each.name == name]) for name in names]
        last = self.nights[-1] if self._lines else ""
        return sorted(every, key=lambda each: (not each.wrong_in(last), each.name))

    @property
    def exit_code(self) -> int:
        """1 where the last night has a failure or an accept length out of its band, 125 where it has no verdict."""
        if not self._lines:
            return 125
        last = [line for line in self._lines if line.night == self.nights[-1]]
        if any(thing.wrong_in(self.nights[-1]) for thing in self.things):
            return 1
        return 125 if all(line.unknown == line.runs for line in last) else 0


@dataclass(frozen=True)
class Thing:
    """One thing's lines, night after night."""

    name: str
    lines: Sequence[NightLine]

    @cached_property
    def by_night(self) -> Mapping[str, NightLine]:
        """A line a night: runs of one night are added up, its accept length is their mean."""
        found: dict[str, NightLine] = {}
        for night in sorted({each.night for each in self.lines}):
            same = [each for each in self.lines if each.night == night]
            accepts = [each.accept for each in same if each.accept is not None]
            found[night] = NightLine(
                night,
                self.name,
                sum(each.runs for each in same),
                sum(each.bad for each in same),
                sum(each.unknown for each in same),
                tuple(dict.fromkeys(name for each in same for name in each.signatures)),
                sum(accepts) / len(accepts) if accepts else None,
            )
        return found

    @property
    def counts(self) -> tuple[int, int]:
        """Failures that were not expected, and runs with a verdict, of all nights."""
        return sum(each.bad for each in self.lines), sum(each.runs - each.unknown for each in self.lines)

    @property
    def first_nights(self) -> dict[str, str]:
        """The first night of each signature, the oldest first."""
        first: dict[str, str] = {}
        for night, line in self.by_night.items():
            for name in line.signatures:
                first.setdefault(name, night)
        return first

    def band(self, night: str) -> tuple[float, float] | None:
        """Accept lengths that are no news in a night, by those of the good nights before it; None where there are too
        few, for a band of two or three nights guards nothing."""
        before = [each.accept for at, each in self.by_night.items() if at < night and each.accept and not each.bad]
        if len(before) < LEAST_NIGHTS:
            return None
        middle = median(before)
        spread = _OF_NORMAL * median(abs(each - middle) for each in before)
        half = max(_SPREADS * spread, _LEAST_SHARE * middle)
        return middle - half, middle + half

    def out_of_band(self, night: str) -> bool:
        """Return True if a night accepted less or more than its band has."""
        line, band = self.by_night.get(night), self.band(night)
        return (
            line is not None and line.accept is not None and band is not None and not band[0] <= line.accept <= band[1]
        )

    def wrong_in(self, night: str) -> bool:
        """Return True if a night has a failure of it that was not expected, or an accept length out of its band."""
        line = self.by_night.get(night)
        return line is not None and (line.bad > 0 or self.out_of_band(night))


def check_night(night: str, option: str) -> None:
    """Raise SpecDebugError for what is no date."""
    if not _NIGHT.fullmatch(night):
        raise SpecDebugError(f"{option} must be a date such as {datetime.date.today()}, got {night!r}")


def add(folder: Path, files: Sequence[Path], night: str) -> Counter[str]:
    """Append what some documents tell to a night's file; returns how many lines each file gave. Raises ContentError,
    with nothing written, for a file that is no such document; SpecDebugError for one that cannot be read or written."""
    check_night(night, "--night")
    gave, rows = Counter[str](), list[NightLine]()
    for file in files:
        try:
            document = parse_json(file.read_bytes(), str(file)).data
        except OSError as error:
            raise SpecDebugError(f"cannot read {file}: {error.strerror}") from None
        found = lines_of(document, night, str(file))
        gave[str(file)] += len(found)
        rows += found
    path = folder / f"{night}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        text = "".join(as_json({name: each for name, each in asdict(row).items() if each}) + "\n" for row in rows)
        replace_file(path, before + text.encode())
    except OSError as error:
        raise blamed(SpecDebugError, f"cannot write {path}: {error.strerror}", error) from None
    return gave


def plain(history: Nights) -> dict[str, Any]:
    """All of it as plain data."""
    last = history.nights[-1] if history.nights else ""
    return {
        "nights": history.nights,
        "things": [
            {
                "name": thing.name,
                "bad": thing.counts[0],
                "runs": thing.counts[1],
                "wrong": thing.wrong_in(last),
                "band": thing.band(last),
                "first_nights": thing.first_nights,
                "nights": [asdict(each) for each in thing.by_night.values()],
            }
            for thing in history.things
        ],
    }
