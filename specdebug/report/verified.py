"""Fixes verified by a command: a row a fix, why one is not live, and how to see each failure again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug import __version__
from specdebug.base import interrupts
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.command import SEED_VARIABLE
from specdebug.campaign.trials.verified import FixTried, VerifiedBy, last_line
from specdebug.report.parts import Column, Line, Report, Style, Styled, lines, table
from specdebug.report.words import ended, shown
from specdebug.verdict.outcome import EXIT_CODES

_STYLES: dict[str, Style] = {"live": "pass", "rotten": "fail", "not tried": "unknown", "untested": "unknown"}
FIXES = (
    Column("PR", "key", lambda fix: fix.toggle.pr),
    Column("state", "key", lambda fix: Styled(fix.state, _STYLES[fix.state])),
    Column("title", "prose", lambda fix: fix.toggle.title),
    Column("trials reverted", "right", lambda fix: len(fix.trials)),
    Column("failed with", of=lambda fix: fix.shown_by[1].signature if fix.shown_by else None),
)


@dataclass(frozen=True)
class CommandAsked:
    """The question: ``line`` makes the command line that runs the command with fixes reverted, ``proven``: it counts
    that their lines ran."""

    command: Sequence[str]
    trials: int
    proven: bool
    line: Callable[[Iterable[str]], str]

    def again(self, trial: Trial) -> str:
        """The line that runs a trial again."""
        return f"{SEED_VARIABLE}={trial.seed} {self.line(trial.reverted)}"


def trial_line(trial: Trial, result: TrialResult) -> str:
    """The line of progress after a trial."""
    switched = f"{' and '.join(trial.reverted)} reverted" if trial.reverted else "nothing reverted"
    return f"trial {trial.number}: {ended(result.outcome, result.signature)}, {switched}, {result.seconds:.1f} s"


def verified_report(found: VerifiedBy, asked: CommandAsked) -> Report:
    """The exit code is 1 where the command fails with nothing reverted, or passes though a fix's lines ran reverted;
    125 where a fix was not tried or nothing could be tested; 0 where every fix is live."""
    states = [fix.state for fix in found.fixes]
    failed = "rotten" in states or (found.bad is not None and found.bad[1].outcome == "fail")
    live = bool(states) and set(states) == {"live"}
    code = EXIT_CODES["fail" if failed else "pass" if live else "unknown"]
    code = interrupts.exit_code() if found.reason == "interrupted" else code
    code = code if found.trouble is None else found.trouble.exit_code
    summary = _summary(found, asked)
    problems = [Line(f"{fix.toggle.pr} {fix.problem}", _STYLES[fix.state]) for fix in found.fixes if fix.problem]
    return Report(
        command="toggles verify",
        title=f"fixes by {shown(asked.line(()))}",
        summary=summary,
        exit_code=code,
        document=_document(found, asked, code),
        parts=(
            *([table(found.fixes, *FIXES, bar=True)] if found.fixes else ()),
            *problems,
            *lines((f"{number} is left out: {why}" for number, why in found.left.items()), "dim"),
            *lines(_told(found, asked), fold=False),
            Line(summary),
        ),
        seconds=sum(
            result.seconds for _, result in (*found.applied, *(one for fix in found.fixes for one in fix.trials))
        ),
    )


def _told(found: VerifiedBy, asked: CommandAsked) -> Iterator[str]:
    if not asked.proven:
        yield "unproven (--no-proof): nothing shows that a reverted line ran"
    if found.bad is not None:
        yield f"reproduce: {asked.again(found.bad[0])}"
    yield from (f"reproduce {fix.toggle.pr}: {asked.again(fix.shown_by[0])}" for fix in found.fixes if fix.shown_by)


def _summary(found: VerifiedBy, asked: CommandAsked) -> str:
    cut = {"": "", "interrupted": "interrupted: ", "trouble": "stopped: "}[found.reason]
    if found.bad is not None:
        result = found.bad[1]
        if result.outcome == "untestable":
            return f"{cut}cannot be tested with nothing reverted: {last_line(result)}"
        return f"{cut}fails with nothing reverted: {result.signature}; no fix can be verified by it"
    counts = [
        f"{sum(fix.state == state for fix in found.fixes)} {state}" for state in ("rotten", "not tried", "untested")
    ]
    live = f"{sum(fix.state == 'live' for fix in found.fixes)} of {len(found.fixes)} toggles live"
    live = live if found.fixes else "no fix was tried"
    passed = f"passes {len(found.applied)} of {asked.trials} times with nothing reverted"
    return cut + "; ".join([", ".join([live, *(each for each in counts if not each.startswith("0 "))]), passed])


def _document(found: VerifiedBy, asked: CommandAsked, code: int) -> dict[str, Any]:
    def trial(one: tuple[Trial, TrialResult] | None) -> dict[str, Any] | None:
        if one is None:
            return None
        result = one[1]
        return {"outcome": result.outcome, "signature": result.signature, "reproduce": asked.again(one[0])}

    def row(fix: FixTried) -> dict[str, Any]:
        said = {"pr": fix.toggle.pr, "title": fix.toggle.title, "state": fix.state, "problem": fix.problem}
        return {**said, "trials": len(fix.trials), "silent": fix.silent, "shown_by": trial(fix.shown_by)}

    return {
        "specdebug": __version__,
        "what": asked.line(()),
        "exit_code": code,
        "reason": found.reason,
        "trouble": None if found.trouble is None else str(found.trouble),
        "proof": "proven" if asked.proven else "waived",
        "applied": {"trials": len(found.applied), "of": asked.trials, "bad": trial(found.bad)},
        "toggles": [row(fix) for fix in found.fixes],
        "left": dict(found.left),
    }
