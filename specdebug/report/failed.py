"""The head of a page: what failed, with the fixes that were taken out, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdebug.base.content import words_for
from specdebug.campaign.loops.replay import ArmResult, Replay, as_it_should
from specdebug.patching.toggles import Toggle
from specdebug.report.parts import Line, Part, Plot, Preformatted, Section, Styled
from specdebug.report.toggles import edit_lines, patches_of
from specdebug.report.words import ended

FAIL = Styled("fail", "fail")
STAGES = "The stages of a step. The first wrong one is marked; arrows, if any, lead to where more was seen."
ARENA = "The arena's buffers in order, not to scale. Red is what was reached outside of a buffer."
TREE = "The draft tree of the first wrong step: token ids, the accepted path in bold."
MAX_FAILED = 4
"""Failures at the top of a page."""


@dataclass(frozen=True)
class Failed:
    """One failure.

    Attributes:
        name: what failed.
        told: how, its signature first.
        anchor: of the section that shows it.
        toggles: the fixes that were taken out.
        commands: to be run next.
        site: the words of ``told`` that lead to the section.
        chip: how it stands to what was expected.
        plots: drawings of it.
    """

    name: str
    told: str
    anchor: str
    toggles: Sequence[Toggle]
    commands: Sequence[str]
    site: str = ""
    chip: Styled = FAIL
    plots: Sequence[Plot] = ()


def head(failures: Sequence[Failed]) -> list[Section]:
    """The section at the top of a page; none where nothing failed."""
    listed = set[int]()
    parts: list[Part] = [
        Section(each.name, list(_story(each, listed)), chips=[each.chip]) for each in failures[:MAX_FAILED]
    ]
    if len(failures) > MAX_FAILED:
        parts.append(Line(f"and {len(failures) - MAX_FAILED} more, below"))
    return [Section("What failed", parts)] if parts else []


def _story(one: Failed, listed: set[int]) -> Iterator[Part]:
    """``listed``: the fixes whose lines stand on the page already, which is added to."""
    yield Line(one.told, "bold", links={one.site or one.told: f"#{one.anchor}"})
    yield from one.plots
    for toggle in one.toggles:
        yield Line(f"without fix {toggle.pr}: {toggle.title}", links={f"fix {toggle.pr}": toggle.url})
        for patch in () if toggle.pr in listed else patches_of(toggle):
            yield Preformatted("\n".join(edit_lines(patch)), f"fix {toggle.pr} taken out of {patch.target}")
        listed.add(toggle.pr)
    yield Preformatted("\n".join(one.commands), "commands to run next")


def shows(toggles: Sequence[Toggle]) -> list[str]:
    """The commands that show these fixes."""
    return [shlex.join(["specdebug", "toggles", "show", str(each.pr), *words_for([each])]) for each in toggles]


def failed_arms(replay: Replay) -> list[Failed]:
    """The arms of a replay that failed, first those that were not to. A failure that was expected is good news."""
    from specdebug.report.html.arena import arena_row
    from specdebug.report.html.stages import stage_row
    from specdebug.report.html.tree import tree_plot

    found: list[Failed] = []
    for place, each in sorted(enumerate(replay.results), key=lambda one: as_it_should(one[1])):
        outcome = each.outcome
        if outcome.verdict != "fail":
            continue
        met = each.met is not None and as_it_should(each)
        drawn = ((stage_row(outcome), STAGES), (arena_row(outcome), ARENA), (tree_plot(outcome), TREE))
        found.append(
            Failed(
                each.run.shown,
                ended(outcome.verdict, outcome.signature),
                anchor_of(place),
                each.run.toggles,
                _commands(replay, each),
                outcome.signature or "",
                Styled("as expected", "pass") if met else FAIL,
                [Plot(row, said) for row, said in drawn if row is not None],
            )
        )
    return found


def anchor_of(place: int) -> str:
    """The anchor of the section of an arm, by its place in the replay."""
    return f"arm-{place + 1}"


def _commands(replay: Replay, result: ArmResult) -> list[str]:
    """What to run next of an arm that failed."""
    words = [str(replay.scenario.path), "--arm", result.run.arm]
    reverts = ["--revert", ",".join(map(str, result.run.added_reverts))] if result.run.added_reverts else []
    search = [] if result.run.toggles else [f"specdebug bisect {shlex.join(words)}"]
    content = words_for(result.run.toggles)
    return [*shows(result.run.toggles), *search, f"specdebug flake {shlex.join([*words, *reverts, *content])}"]


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
    yield f"next: {shows([toggle])[0]}   # the fix, and the lines that were taken out"
