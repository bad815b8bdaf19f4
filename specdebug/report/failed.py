"""The head of a replay: what failed, with the fixes that were taken out, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from specdebug.campaign.loops.replay import ArmResult, Replay, as_it_should
from specdebug.report.parts import Line, Part, Plot, Preformatted, Section, Styled, lines
from specdebug.report.toggles import edit_lines
from specdebug.report.words import ended

MAX_FAILED = 4
"""Arms that failed, at the top of a page."""


def failed_first(replay: Replay) -> list[Section]:
    """What failed, for the top of a page: of each arm that did, the signature, the fixes taken out with their lines,
    and commands to run next. A failure that was expected is good news."""
    failed = sorted((each for each in replay.results if each.outcome.verdict == "fail"), key=as_it_should)
    if not failed:
        return []
    from specdebug.report.html.stages import stage_row

    parts: list[Part] = []
    for each in failed[:MAX_FAILED]:
        outcome = each.outcome
        inner: list[Part] = [Line(ended(outcome.verdict, outcome.signature), "bold")]
        if (row := stage_row(outcome)) is not None:
            inner.append(Plot(row, "The stages of a step: the first wrong one, and arrows to where more was seen."))
        for toggle in each.run.toggles:
            inner += lines(filter(None, (f"without fix {toggle.pr}: {toggle.title}", toggle.url)))
            for patch in toggle.patches:
                inner.append(Preformatted("\n".join(edit_lines(patch)), f"fix {toggle.pr} taken out of {patch.target}"))
        inner.append(Preformatted("\n".join(_commands(replay, each)), "commands to run next"))
        met = each.met is not None and as_it_should(each)
        parts.append(
            Section(each.run.shown, inner, chips=[Styled("as expected", "pass") if met else Styled("fail", "fail")])
        )
    if len(failed) > MAX_FAILED:
        parts.append(Line(f"and {len(failed) - MAX_FAILED} more arms, below"))
    return [Section("What failed", parts)]


def _commands(replay: Replay, result: ArmResult) -> list[str]:
    """What to run next of an arm that failed."""
    words = [str(replay.scenario.path), "--arm", result.run.arm]
    reverts = ["--revert", ",".join(map(str, result.run.added_reverts))] if result.run.added_reverts else []
    shows = [f"specdebug toggles show {toggle.pr}" for toggle in result.run.toggles]
    search = [] if shows else [f"specdebug bisect {shlex.join(words)}"]
    return [*shows, *search, f"specdebug flake {shlex.join([*words, *reverts])}"]


def what_was_seen(replay: Replay) -> Iterator[str]:
    """One sentence on the first revert that showed, beside the arm without it, and the command to run next."""
    shown = (each for each in replay.results if each.run.toggles and each.outcome.verdict == "fail")
    without = (each for each in replay.results if not each.run.toggles and each.outcome.verdict == "pass")
    if (seen := next(shown, None)) is None or (sound := next(without, None)) is None:
        return
    toggle, told, means = seen.run.toggles[0], seen.outcome, [each.outcome.metrics for each in (sound, seen)]
    step = "" if told.where_step is None else f" at step {told.where_step}"
    before, after = ((one.accept_hit or one.accept_mean) for one in means)
    fell = ""
    if before is not None and after is not None:
        hits = " after a cache hit" if means[0].accept_hit is not None else ""
        fell = f"; accept length{hits} {before:.2f} with the fix, {after:.2f} without"
    yield f"seen: without fix {toggle.pr} ({toggle.title}) {told.signature}{step}{fell}"
    yield f"next: specdebug toggles show {toggle.pr}   # the fix, and the lines that were taken out"
