"""Several scenarios that were replayed together: one summary for a person, one document, one GitHub summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug import __version__
from specdebug.campaign.loops.baseline import lines_of
from specdebug.campaign.loops.last_failed import as_it_should
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.loops.replays import Replays
from specdebug.report.document import replay_document
from specdebug.report.foreign import shown
from specdebug.report.github import replay_summary
from specdebug.report.tables import Cell, Column, Listing, columns, line
from specdebug.report.terminal import VERDICT_STYLE, render_replay
from specdebug.report.words import counted


def render_replays(answer: Replays) -> RenderableType:
    """The whole story of each scenario that did not do as it should, then a row for each and the closing line."""
    told = [render_replay(replay) for replay in answer.replays if replay.exit_code != 0]
    against = [line(each) for each in lines_of(result for replay in answer.replays for result in replay.results)]
    return Group(*(Group(story, Text("")) for story in told), _table(answer), *against, Text(replays_line(answer)))


def replays_document(answer: Replays) -> dict[str, Any]:
    """All of them as plain data; each scenario is as in the document of one alone."""
    return {
        "specdebug": __version__,
        "exit_code": answer.exit_code,
        "interrupted": answer.interrupted,
        "missing": answer.missing,
        "trouble": None if answer.trouble is None else str(answer.trouble),
        "wall_s": round(answer.wall_s, 3),
        "scenarios": [replay_document(replay) for replay in answer.replays],
    }


def replays_summary(answer: Replays) -> str:
    """All of them as Markdown, for the summary of a GitHub step."""
    return "\n".join(map(replay_summary, answer.replays))


def replays_line(answer: Replays) -> str:
    """The meaning of the exit code, in words."""
    codes = [replay.exit_code for replay in answer.replays if replay.results]
    good, bad = codes.count(0), codes.count(1)
    counts = {"not": bad, "without a verdict": len(codes) - good - bad}
    parts = [f"{good} as they should", *(f"{count} {what}" for what, count in counts.items() if count)]
    if without := sum(len(replay.left_out) for replay in answer.replays):
        parts.append(f"{counted(without, 'arm')} not run on {'its' if without == 1 else 'their'} target")
    line = f"{counted(len(codes), 'scenario')}: {', '.join(parts)} ({answer.wall_s:.1f} s)"
    if answer.missing:
        line += f"; {counted(answer.missing, 'arm')} did not run"
    return f"{line}; interrupted" if answer.interrupted else line


def _table(answer: Replays) -> Listing:
    numbers = columns("arms", "time", right=True)
    heads = (Column("scenario", key=True), *numbers, Column("what did not do as it should"))
    rows: list[Sequence[Cell]] = []
    for replay in answer.replays:
        right = sum(map(as_it_should, replay.results))
        wrong = [_wrong(result) for result in replay.results if not as_it_should(result)]
        wrong += [Text(shown(f"{arm.arm}: {arm.text}"), "yellow") for arm in replay.left_out]
        counted = f"{right} of {len(replay.results)}" if replay.results else ""
        rows.append((replay.scenario.name, counted, f"{replay.wall_s:.1f} s", Text("\n").join(wrong)))
    return Listing(heads, rows, bar=True)


def _wrong(result: ArmResult) -> Text:
    outcome = result.outcome
    text = Text(shown(f"{result.run.arm}: "))
    text.append(outcome.verdict, VERDICT_STYLE[outcome.verdict])
    return text.append(shown(f" {outcome.signature}")) if outcome.signature else text
