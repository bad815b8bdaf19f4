"""Outcomes by night for a reader: what is new in the last one, and a plot of each thing."""

from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup

from specdebug import __version__
from specdebug.apps.history import Nights, Thing, plain
from specdebug.report.html import svg
from specdebug.report.parts import Column, Line, Part, Plot, Report, Section, Styled, lines, table, verdict_of
from specdebug.report.words import counted
from specdebug.search.intervals import clopper_pearson

CONFIDENCE = 0.95
TOP, BOTTOM, STRIP, ALONE = 30, 150, 186, 16
"""Heights in a plot: of its accept lengths, and of the strip of nights below them; ``ALONE``: where there are none."""


def history_report(history: Nights, folder: Path) -> Report:
    """All nights of a folder; its exit code is that of the last one."""
    nights, things = history.nights, history.things
    last = nights[-1] if nights else ""
    wrong = [thing for thing in things if thing.wrong_in(last)]
    since = f" since {history.since}" if history.since else ""
    summary = f"{folder}: no night{since} is kept here; --add FILE.json keeps one"
    said = f"{counted(len(wrong), 'thing')} not as it should be" if wrong else "all as it should be"
    if nights:
        summary = f"{last}: {said}, of {len(things)} in {counted(len(nights), 'night')} since {nights[0]}"
    code, news = history.exit_code, [*_news(wrong, last)]
    heads = (
        Column("what", "key", lambda thing: thing.name),
        Column("last night", of=lambda thing: _last(thing, last)),
        Column("failed", "right", lambda thing: rate(*thing.counts)),
        Column("accept length", "right", lambda thing: _accept(thing, last)),
        Column("failures, since when", "prose", lambda thing: _first(thing)),
    )
    return Report(
        command="history",
        title=str(folder),
        summary=summary,
        exit_code=code,
        document={"specdebug": __version__, "exit_code": code, **plain(history)},
        parts=[*([table(things, *heads)] if things else []), *lines(news), Line(summary)],
        chips=[Styled(said if code in (0, 1) else "no verdict", verdict_of(code))],
        page=lambda: [
            *([Section("What is wrong", [*lines(news)])] if news else []),
            Section("All nights", [table(things, *heads)]),
            *(Section(thing.name, [_plot(thing, nights)], chips=[_last(thing, last)]) for thing in things),
        ],
    )


def rate(bad: int, runs: int) -> str:
    """``2 of 30: 6.7% (0.8% to 22%)``."""
    if not runs:
        return "no verdict"
    span = clopper_pearson(bad, runs, CONFIDENCE)
    return f"{bad} of {runs}: {bad / runs:.1%} ({span.low:.1%} to {span.high:.1%})"


def _last(thing: Thing, night: str) -> Styled:
    line = thing.by_night.get(night)
    if line is None:
        return Styled("did not run", "unknown")
    if line.bad:
        return Styled(f"{line.bad} of {line.runs} failed", "fail")
    if thing.out_of_band(night):
        return Styled("accept length out of its band", "fail")
    return Styled("no verdict", "unknown") if line.unknown == line.runs else Styled("good", "pass")


def _accept(thing: Thing, night: str) -> str:
    line, band = thing.by_night.get(night), thing.band(night)
    if line is None or line.accept is None:
        return ""
    return f"{line.accept:.2f} ({'too few nights' if band is None else f'{band[0]:.2f} to {band[1]:.2f}'})"


def _first(thing: Thing) -> str:
    return "; ".join(f"{name} since {night}" for name, night in thing.first_nights.items())


def _news(wrong: list[Thing], last: str) -> Iterator[str]:
    for thing in wrong:
        for name in thing.by_night[last].signatures:
            first = thing.first_nights[name]
            yield f"{thing.name}: {name}, {'new tonight' if first == last else f'first seen on {first}'}"
        if thing.out_of_band(last):
            yield f"{thing.name}: accept length {_accept(thing, last)}"


def _plot(thing: Thing, nights: list[str]) -> Part:
    """Accept lengths with their band, and below them a strip of the nights."""
    x = svg.across(0, max(len(nights), 1))
    told = [(at, thing.by_night[night]) for at, night in enumerate(nights) if night in thing.by_night]
    accepts = [(at, line.accept) for at, line in told if line.accept is not None]
    parts, strip, top = list[Markup](), STRIP if accepts else ALONE, 0.0
    if accepts:
        top = float(TOP)
        bands = {at: band for at, night in enumerate(nights) if (band := thing.band(night)) is not None}
        every = [value for _, value in accepts] + [end for band in bands.values() for end in band]
        low, high = min(every), max(every)
        y = svg.Scale(low - 0.1 * (high - low + 0.1), high + 0.1 * (high - low + 0.1), BOTTOM, TOP)
        parts.append(svg.y_axis(y, "accept length"))
        ends = [[(x(at + 0.5), y(band[end])) for at, band in bands.items()] for end in (0, 1)]
        if bands:
            parts.append(svg.polyline([*ends[0], *reversed(ends[1])], "polygon", class_="band"))
        parts.append(svg.polyline([(x(at + 0.5), y(value)) for at, value in accepts], class_="culprit c1"))
        parts += [svg.dot(x(at + 0.5), y(value), 3, "culprit c1") for at, value in accepts]
    for at, line in told:
        style = "fail" if line.bad else "untestable" if line.unknown == line.runs else "pass"
        parts.append(svg.rect(x(at) + 1, strip - 8, x(at + 1) - x(at) - 2, 16, class_=f"trial {style}"))
    tips = [
        (
            x(at),
            x(at + 1),
            "\n".join([line.night, f"{line.bad} of {line.runs} failed", *line.signatures, _accept(thing, line.night)]),
        )
        for at, line in told
    ]
    label = f"{thing.name}: {rate(*thing.counts)} over {counted(len(told), 'night')}"
    ends_said = [
        svg.text(svg.LEFT, strip + 28, nights[0], class_="tick"),
        svg.text(svg.WIDTH - svg.RIGHT, strip + 28, nights[-1], class_="tick", text_anchor="end"),
    ]
    drawn = svg.drawing(strip + 40, label, *parts, *ends_said, svg.hits(tips, top, strip + 10))
    keys = [("good", "t-pass"), ("failed", "t-fail"), ("no verdict", "t-untestable")]
    return Plot(drawn, label, keys)
