"""Fixes that can be reverted: the list, one in full, the matrix of their verification, their check on a release."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from specdebug.apps.mining.missing import STATES, KnownFix
from specdebug.apps.mining.siblings import Sibling
from specdebug.base.content import words_for
from specdebug.patching.drift import DriftReport, FixRow
from specdebug.patching.drift.check import UNDECIDED
from specdebug.patching.toggles import Detection, Toggle
from specdebug.report.listings import listing
from specdebug.report.parts import Column, FactList, Line, Part, Report, Style, Styled, lines, plain, table
from specdebug.report.words import counted, replaced
from specdebug.verdict.outcome import EXIT_CODES, not_engine_code

if TYPE_CHECKING:  # a list of fixes is told without torch
    from specdebug.campaign.loops.verify import LatentCheck, Matrix, ToggleCheck
    from specdebug.patching.source import Patch

MATRIX = (
    Column("PR", "key", lambda check: check.toggle.pr),
    Column("state", "key", lambda check: _state(check)),
    Column("scenario", "key", lambda check: check.toggle.detected_by.scenario),
    Column("plan", of=lambda check: f"({check.backend})" if check.keeps_backend else check.backend),
    Column("stated signature", of=lambda check: check.toggle.detected_by.signatures),
    Column("applied: silent", "right", lambda check: f"{check.silent} of {len(check.applied)}"),
    Column("reverted: detected", "right", lambda check: f"{check.detected} of {len(check.reverted)}"),
)
MAX_PROBLEMS = 5
"""Problems of one toggle that are spelt out."""
_STYLES: dict[str, Style] = {
    "fits": "pass",
    "stale": "fail",
    "not-for-version": "dim",
    "has": "pass",
    "lacks": "fail",
    "unknown": "dim",
}


def toggle_document(toggle: Toggle) -> dict[str, Any]:
    """A toggle as plain data."""

    def detection(stated: Detection) -> dict[str, Any]:
        return plain(stated, "scenario signatures")

    return {
        **plain(toggle, "pr aliases title url family symptom"),
        "description": " ".join(toggle.description.split()),
        "detected_by": detection(toggle.detected_by) if toggle.patches else None,
        "also_detected_by": [detection(each) for each in toggle.also_detected_by],
        "path": str(toggle.path),
        "patches": [
            {"target": patch.target, "edits": [plain(edit, "id match replacement") for edit in patch.edits]}
            for patch in toggle.patches
        ],
        "foreign": {engine: list(versions) for engine, versions in toggle.foreign.items()},
        "mends": sorted(toggle.mends),
    }


def _stated(toggle: Toggle) -> tuple[str, ...]:
    return tuple(dict.fromkeys(signature for one in toggle.detections for signature in one.signatures))


def toggle_list(toggles: Sequence[Toggle]) -> Report:
    """One row a fix: its numbers, its title with the scenarios and signatures that show it beneath, its family."""

    def title(toggle: Toggle) -> list[str | Styled]:
        scenarios = ", ".join(one.scenario for one in toggle.detections)
        shown = f"{scenarios}: {', '.join(_stated(toggle))}" if toggle.patches else _without(toggle)
        return [toggle.title, Styled(shown, "dim")]

    heads = (
        Column("PR", "prose", lambda toggle: ", ".join(map(str, toggle.numbers))),
        Column("title", "prose", title),
        Column("family", "prose", lambda toggle: toggle.family),
    )
    return listing("toggles list", [table(toggles, *heads, bar=True)], list(map(toggle_document, toggles)))


def _without(toggle: Toggle) -> str:
    """Say where a fix is that has no scenario of this engine."""
    others = ", ".join(engine for engine in toggle.foreign if engine not in toggle.mends)
    mended = [f"mends {', '.join(sorted(toggle.mends))}"] if toggle.mends else []
    return "; ".join([*([f"in {others}"] if others else []), *mended])


def toggle_shown(toggle: Toggle) -> Report:
    """The facts, then the edits that revert it, as a diff."""
    facts: dict[str, str] = {"also": ", ".join(map(str, toggle.aliases)), "url": toggle.url}
    facts |= {"family": toggle.family, "symptom": toggle.symptom}
    if toggle.patches:
        facts["scenario"] = ", ".join(one.scenario for one in toggle.detections)
        facts["signature"] = " or ".join(_stated(toggle))
    facts["file"] = str(toggle.path)
    if any(engine not in toggle.mends for engine in toggle.foreign):
        facts["try it"] = (
            shlex.join(["specdebug", "run", "--revert", str(toggle.pr), *words_for([toggle]), "--"]) + " COMMAND"
        )
    facts |= {
        engine: ("mended in " if engine in toggle.mends else "patched in ") + (" or ".join(versions) or "any version")
        for engine, versions in toggle.foreign.items()
    }
    said = " ".join(toggle.description.split())
    parts: list[Part] = [
        Line(f"{toggle.pr}  {toggle.title}"),
        Line(""),
        FactList({k: v for k, v in facts.items() if v}),
    ]
    parts += [Line(""), Line(said)] if said else []
    done = "mended" if toggle.mends and not toggle.patches else "reverted"
    for patch in patches_of(toggle):
        parts += [Line(""), Line(f"{done} in {patch.target}:", fold=False)]
        parts += lines((f"  {each}" for each in edit_lines(patch)), fold=False)
    return listing("toggles show", parts, toggle_document(toggle))


def patches_of(toggle: Toggle) -> Sequence[Patch]:
    """A fix's patches for our engine; of one that only other engines have, those for the last range stated of each."""
    elsewhere = [patch for versions in toggle.foreign.values() for patch in list(versions.values())[-1]]
    return toggle.patches or elsewhere


def edit_lines(patch: Patch) -> list[str]:
    """The lines that a patch takes out, each after ``- ``, and those that it puts in, after ``+ ``."""
    texts = [pair for edit in patch.edits for pair in (("-", edit.match), ("+", edit.replacement))]
    return [f"{sign} {each}" for sign, text in texts if text.strip() for each in text.rstrip().split("\n")]


def matrix_report(matrix: Matrix, latent: Sequence[LatentCheck] = ()) -> Report:
    """One row a toggle and scenario that shows it, problems of rotten ones, latent ones with their guards.

    A plan in parentheses is the scenario's own where another was asked for: the fix lies in that plan.
    """
    checks, summary = matrix.checks, _matrix_line(matrix.checks, latent)
    told: list[Line] = []
    for check in checks:
        told += lines((f"{check.toggle.pr} {problem}" for problem in check.problems[:MAX_PROBLEMS]), "fail")
        if len(check.problems) > MAX_PROBLEMS:
            told.append(Line(f"{check.toggle.pr} and {len(check.problems) - MAX_PROBLEMS} more", "fail"))
    for one in latent:
        said = f"latent: {one.guard} guards it; {one.why}" if one.guard else one.problem
        told.append(Line(f"{one.toggle.pr} {said}", "" if one.guard else "fail"))
    parts = not_engine_code(outcome for check in checks for outcome in check.outcomes)
    gone = any(check.problem for check in latent)
    code = EXIT_CODES["fail"] if gone and matrix.exit_code in (0, EXIT_CODES["unknown"]) else matrix.exit_code
    return Report(
        command="toggles verify",
        title="fixes",
        summary=summary,
        exit_code=code,
        document=[*(check.to_dict() for check in checks), *(check.to_dict() for check in latent)],
        parts=(
            table(checks, *MATRIX, bar=True),
            *told,
            *lines(replaced(parts), "dim"),
            Line(summary),
        ),
    )


def _state(check: ToggleCheck) -> Styled:
    if check.live:
        return Styled("live", "pass")
    return Styled("untested", "unknown") if check.untested else Styled("rotten", "fail")


def _matrix_line(checks: Sequence[ToggleCheck], latent: Sequence[LatentCheck]) -> str:
    numbers = {check.toggle.pr for check in checks}
    lacking = {check.toggle.pr for check in checks if not check.live}
    untested = lacking - {check.toggle.pr for check in checks if not check.live and not check.untested}
    said = f"{len(numbers - lacking)} of {len(numbers)} toggles live"
    said += f", {len(untested)} untested" if untested else ""
    said += f", {len(latent)} latent" if latent else ""
    return " ".join([said, *sorted({place for check in checks if (place := _place(check))})])


def _place(check: ToggleCheck) -> str:
    """Device and dtype, unless they are the plainest."""
    stack = next((r.outcome.stack for r in (*check.applied, *check.reverted) if r.outcome.stack), None)
    if stack is None or (stack["device"] == "cpu" and stack["dtype"] == "float32"):
        return ""
    if stack["executor"] == "server":
        return f"on a server ({stack['name']}), {stack['dtype']}"
    return f"on {stack['device']} ({stack['name']}), {stack['dtype']}"


def drift_report(report: DriftReport) -> Report:
    """The check of one release: one row a fix, every stale edit with the lines nearest to it."""

    def where(row: FixRow) -> str | list[str]:
        if row.status == "fits":
            return [str(place) for place in row.places]
        edits = len(row.problems) + len(row.places)
        return row.why or f"{len(row.problems)} of {edits} edits do not fit"

    def count(registry: Literal["ours", "upstream"]) -> str:
        return f"{report.count(registry, 'fits')} fit, {report.count(registry, 'stale')} stale"

    heads = (
        Column("PR", "key", lambda row: row.pr),
        Column("registry", "key", lambda row: "ours" if row.registry == "ours" else "its own"),
        Column("status", "key", lambda row: Styled(row.status, _STYLES[row.status])),
        Column("where", "prose", where),
    )
    evidence: list[Line] = []
    for problem in (problem for row in report.rows for problem in row.problems):
        evidence.append(Line(f"{problem.written}: {problem.what}", "fail"))
        if problem.near is not None:
            evidence.append(Line(f"  nearest is {problem.near.where}"))
            evidence += [Line(f"    {one}", "fail" if one.startswith("-") else "pass") for one in problem.near.diff]
    has_own = any(row.registry == "upstream" for row in report.rows)
    own = f"its own {count('upstream')}" if has_own else "it has no reverts of its own"
    others = f"{report.count('ours', 'not-for-version')} not for this version"
    undecided = "; no patch of ours is for this release" if report.exit_code == UNDECIDED else ""
    summary = Line(f"{report.dist}: ours {count('ours')}, {others}; {own}{undecided}")
    document = [row.to_dict() for row in report.rows]
    return listing("toggles check", [table(report.rows, *heads), *evidence, summary], document, report.exit_code)


def missing_report(dist: str, fixes: Sequence[KnownFix]) -> Report:
    """Which known fixes a release has: a row a fix, those that it lacks first. Exit code 1 when it lacks one."""
    heads = (
        Column("PR", "key", lambda row: row.pr),
        Column("fix", "key", lambda row: Styled(row.state, _STYLES[row.state])),
        Column("shown by", "key", lambda row: row.scenario),
        Column("what", "prose", lambda row: [row.title, *filter(None, [row.where or row.why])]),
    )
    counts = ", ".join(f"{state} {sum(row.state == state for row in fixes)}" for state in STATES)
    lacks = any(row.state == "lacks" for row in fixes)
    code = 1 if lacks else UNDECIDED if not fixes else 0
    summary = Line(f"{dist}: {counts} of {len(fixes)} known fixes" if fixes else f"no fix is known of {dist}")
    document = [plain(row, "pr title state where scenario why") for row in fixes]
    return listing("toggles missing", [table(fixes, *heads), summary], document, code)


def siblings_report(fix: str, dist: str, found: Sequence[Sibling]) -> Report:
    """Places that look like the code before a fix, the likest first, each with its reasons."""

    def why(row: Sibling) -> list[str | Styled]:
        return [row.function.partition(":")[2], *(Styled(f"{name}: {what}", "dim") for name, what in row.why.items())]

    heads = (
        Column("score", "key", lambda row: f"{row.score:.2f}"),
        Column("place", "prose", lambda row: row.where),
        Column("function, and why", "prose", why),
    )
    said = f"{dist}: {counted(len(found), 'place')} like the code before {fix}"
    document = [plain(row, "where function score why") for row in found]
    return listing("toggles siblings", [table(found, *heads), Line(said)], document)
