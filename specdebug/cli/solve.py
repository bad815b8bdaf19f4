"""``specdebug solve``: from a red log to an answer."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.git import ask
from specdebug.campaign.trials.state import digest_of, own_state
from specdebug.cli import options as opt
from specdebug.cli.output import UNDECIDED, command_line, kept, note, own_folder, tell, write_file
from specdebug.cli.triage import read_log
from specdebug.targets.settings import parse_target

if TYPE_CHECKING:
    from specdebug.apps.solve import LogSetting, StageRun
    from specdebug.apps.triage import CandidateFix
    from specdebug.logs.scan import Scan

LEAST_S = 5.0
"""Seconds for which no stage is begun."""
SEARCHING = "the search over all fixes is not over"
HALF = 0.5
"""The most of the time that is left which a stage takes that others follow."""


class SolveCommand(opt.DeviceOptions, opt.PageOptions, opt.ContentOptions):
    """Find what made a CI job fail, from its log: the fix that is missing, where the run goes wrong, a bundle of it.

    What the log says (triage) leads to scenarios and the engine to try. They are replayed until one fails as the log
    did; bisect names the fix whose revert makes it fail, minimise makes the scenario small, diverge finds the place,
    bundle writes it into one file, and a page tells all of it. With --repo the fixes of the last weeks are tried, too.

    What was done is kept in a folder: the same command goes on where it was stopped, or its time was over. Exit code 0
    when a fix was named that fails as the log did, 1 when the log holds no failure, 125 when none was named for sure.
    """

    example = "solve ci.log --max-time 600"
    held = True
    log: str = opt.argument("A log file; - reads standard input.", default=..., metavar="LOG|-")
    output: Path | None = opt.option(
        "Keep the stages and the findings here; .specdebug/solve-* unless given.", "--output", "-o", metavar="DIR"
    )
    max_time: float = opt.option(
        "Take no longer; what is not done by then is left to the next call.", default=600.0, metavar="SECONDS"
    )
    repo: Path | None = opt.option("Try the fixes that this checkout of the engine got lately, too.", metavar="DIR")
    weeks: int = opt.option("Take the fixes of so many weeks from --repo.", default=4, min=1)

    def run(self) -> int:
        from specdebug.apps.solve import Solution, engine_for
        from specdebug.apps.triage import candidates
        from specdebug.report.solve import solve_report

        self.until = time.monotonic() + (opt.positive(self.max_time, "--max-time") or 0)
        self.check_outputs()
        self.engine()
        if self.target is not None:
            parse_target(self.target)
        _, shown, found = read_log(self.log)
        answer = self.answered = Solution(shown)
        if found.main is None:
            answer.answer = "no failure"
            return tell(solve_report(answer, 1), self)
        self.folder = self._made_folder(found)
        answer.signature = found.main.signature
        best = candidates(found, self.library())
        answer.suspects = [each.toggle.pr for each in best]
        target, other = (self.target, None) if self.target else engine_for(found, best, self.library())
        answer.questions += [] if other is None else [other]
        trouble: SpecDebugError | None = None
        try:
            if self.repo is not None:
                self._mined(target)
            self._search(found, best, target)
            self._follow()
        except SpecDebugError as error:  # what is known is told all the same
            trouble = error
        return self._tell(found, trouble)

    def _tell(self, found: Scan, trouble: SpecDebugError | None) -> int:
        """Tell the answer and what stays open, and return the exit code. Raises ``trouble`` behind it."""
        from specdebug.apps.solve import OpenQuestion, machine_needed
        from specdebug.report.formats import render
        from specdebug.report.solve import solve_report

        answer = self.answered
        left = [each.name for each in answer.stages if each.cut]
        if left or self._over:
            answer.answer = "undecided" if answer.answer == "none" else answer.answer
            what = f"what {' and '.join(dict.fromkeys(left)) or 'the rest'} would tell: it was not done to its end"
            answer.questions.append(OpenQuestion(what, command_line(), "more time, and goes on where it was"))
        gpu = machine_needed(found, "LOG" if self.log == "-" else self.log) if self.device is None else None
        answer.questions += [] if gpu is None else [gpu]
        code = 0 if answer.answer == "culprit" else UNDECIDED
        code = interrupts.exit_code() if interrupts.was_heard() else code
        page = self.folder / "page.html"
        answer.files["page"] = str(page)
        report = solve_report(answer, code)
        return tell(report, self, (page, lambda: render("html", report)), trouble=trouble)

    def _made_folder(self, found: Scan) -> Path:
        """The folder of this log; made, with its parents, if it is not there. Raises SpecDebugError."""
        said = json.dumps(found.facts.to_dict(), sort_keys=True)
        folder = self.output or own_folder() / f"solve-{digest_of(str(found.size), said, *found.findings)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecDebugError(f"{folder}: no folder can be made there: {error.strerror}") from None
        return folder

    # The stages.

    def stage(self, name: str, words: Sequence[str], share: float = 1.0, makes: Path | None = None) -> StageRun:
        """Run a command of ours for at most this share of the time that is left, unless a call before has done so and
        what it ``makes`` is still there."""
        from specdebug.apps.solve import StageRun
        from specdebug.cli.main import run
        from specdebug.report.terminal import text_of

        line = shlex.join(("specdebug", *words))
        file = self.folder / f"{name}-{digest_of(line, self._state())}.json"
        before = self._kept(file) if makes is None or makes.exists() else None
        if before is not None:
            done = before
        elif (left := self.until - time.monotonic()) < LEAST_S:
            done = StageRun(name, line, None, summary="not begun: the time is over", cut=True)
        else:
            note(f"{name}: {line}")
            begun = time.monotonic()
            with kept() as told, interrupts.within(left * share):
                code = run(words)
            report = told.reports[-1] if told.reports else None
            done = StageRun(
                name,
                line,
                code,
                time.monotonic() - begun,
                report.summary if report else told.said[-1] if told.said else "",
                text_of(report.parts) if report else "\n".join(told.said),
                report.document if report else {},
                cut=code == 128 + interrupts.ALARM,
            )
            if (report or code in (0, 1)) and not (done.cut or interrupts.was_heard()):
                write_file(file, json.dumps(dataclasses.asdict(done), default=str))
        self.answered.stages.append(done)
        return done

    def _kept(self, file: Path) -> StageRun | None:
        """What a call before kept of a stage; None where it kept nothing that can be read."""
        from specdebug.apps.solve import StageRun

        try:
            return dataclasses.replace(StageRun(**json.loads(file.read_text(encoding="utf-8"))), kept=True)
        except (OSError, ValueError, TypeError):
            return None

    def _state(self) -> str:
        """A digest of what decides how a stage comes out, besides its words."""
        from specdebug.campaign.trials.scenario import texts_of

        if not hasattr(self, "_code"):
            self._code = [*map(str, own_state().items())]
        return digest_of(*self._code, *texts_of(self.library().registry.all))

    def _mined(self, target: str) -> None:
        """Make toggles of the fixes that --repo got lately, as far as they fit the engine, and use them from here."""
        from specdebug.apps.solve import OpenQuestion
        from specdebug.campaign.trials.commits import commit_of, top_of

        top = top_of(self.repo or Path())
        if not target:
            self.answered.questions.append(OpenQuestion(f"fixes of {self.repo}: the log is of no release that is here"))
            return
        head = commit_of(top, "HEAD", "repo")
        before = ask(top, "rev-list", "-1", f"--before={self.weeks} weeks ago", head)
        first = before or (ask(top, "rev-list", "--max-parents=0", head) or "").split()[0]
        folder = self.folder / "mined"
        known = {number for toggle in self.library().registry.all for number in toggle.numbers}
        words = ("toggles", "mine", "--repo", str(self.repo), "--range", f"{first}..{head}", "--target", target)
        self.stage("mine", (*words, "-o", str(folder), "--force"), HALF)
        for file in folder.glob("toggles/*.yaml"):
            if int(file.stem) in known:
                file.unlink()
        if any(folder.glob("toggles/*.yaml")):
            self.content = [*(self.content or ()), folder]

    def _search(self, found: Scan, best: Sequence[CandidateFix], target: str) -> None:
        """Try one setting after the other until a fix is named in one that fails as the log did."""
        from specdebug.apps.solve import OpenQuestion, attempts

        alike: list[LogSetting] = []
        done = set[tuple[str, ...]]()
        for attempt in attempts(found, best, self.library(), target, self._from_log(found)):
            asked = (*attempt.command, *attempt.words, attempt.pattern)
            if self._over:
                break
            if asked in done:  # under another name
                continue
            seen = self._seen(attempt, found)
            if attempt.fix is None and seen in ("same", "alike"):
                self.answered.answer, self.answered.attempt = "as it stands", attempt
                what = "which release or commit broke it: it fails here with nothing reverted"
                releases = ("--over", "releases", "--good", "OLD", "--bad", attempt.target or "NEW")
                over = releases if attempt.target else ("--over", "commits", "--good", "REV")
                run = shlex.join(("specdebug", "bisect", *attempt.words[:3], *over))
                self.answered.questions.append(OpenQuestion(what, run))
                return
            if seen == ("passes" if attempt.fix is None else "same"):
                done.add(asked)
                if attempt.fix is not None and self.answered.culprit is None:
                    self._suspect(attempt, attempt.fix, attempt.pattern, 0.0, SEARCHING)
                if self._named(attempt, found):
                    return
            alike += [attempt] if seen == "alike" else []
        for attempt in alike if self.answered.culprit is None else ():
            if not self._over and self.answered.culprit is None:
                self._named(attempt, found)

    @property
    def _over(self) -> bool:
        """No further stage may begin."""
        return interrupts.was_heard() or self.until - time.monotonic() < LEAST_S

    def _seen(self, attempt: LogSetting, found: Scan) -> str:
        """How a run of a setting fits the log: with its fix reverted, if it is one's; a command is not run alone."""
        from specdebug.apps.solve import fit

        if attempt.command:
            return "passes"
        revert = () if attempt.fix is None else ("--revert", str(attempt.fix))
        run = self.stage("replay", ("replay", *attempt.words, *revert, "--no-locate", *self._always))
        return fit(run.document, found)

    @property
    def _always(self) -> list[str]:
        """The words of every stage that runs a scenario."""
        engine = {name: value for name, value in self.engine().items() if name != "target"}
        return [*opt.engine_words(engine), *self.content_words()]

    def _named(self, attempt: LogSetting, found: Scan) -> bool:
        """Search the registry for the fix whose revert makes a setting fail; return True if it fails as the log did."""
        from specdebug.apps.solve import recognised

        follow = ("--signature", attempt.pattern) if attempt.pattern else ()
        words = (*attempt.words, *follow, *self._always)
        command = (*self.content_words(), "--", *attempt.command)
        run = self.stage("bisect", ("bisect", *(command if attempt.command else words)))
        told, answer = run.document, self.answered
        best: Mapping[str, Any] = next(iter(told.get("posterior") or ()), {"culprits": []})
        if told.get("verdict") == "culprit":
            same = bool(attempt.command) or recognised(told["signature"], found)
            doubt = "" if same else "its failure here is another one, of the kind of the log's"
            self._suspect(attempt, int(told["culprits"][0]["id"]), told["signature"], told["probability"], doubt)
            return same
        if not run.cut and answer.attempt is attempt:  # it is acquitted
            answer.answer, answer.culprit, answer.attempt = "none", None, None
        elif run.cut and best["culprits"] and answer.culprit is None:
            self._suspect(attempt, int(best["culprits"][0]), attempt.pattern, best["probability"], SEARCHING)
        return False

    def _suspect(self, attempt: LogSetting, number: int, failure: str, probability: float, doubt: str) -> None:
        """Take a fix for the likeliest: without a doubt, or if there is none without one."""
        answer = self.answered
        if answer.answer != "culprit":
            answer.culprit = next(each for each in self.library().registry.all if number in each.numbers)
            answer.attempt, answer.failure, answer.probability, answer.doubt = attempt, failure, probability, doubt
            answer.answer = "suspect" if doubt else "culprit"

    def _follow(self) -> None:
        """Make the scenario of a named fix small, find where its run parts from a sound one, and bundle it."""
        from specdebug.apps.solve import functions_of, showing

        answer = self.answered
        if answer.culprit is None or answer.attempt is None or interrupts.was_heard():
            return
        attempt, number = answer.attempt, str(answer.culprit.pr)
        answer.next_step = shlex.join(("specdebug", "toggles", "show", number, *self.content_words()))
        answer.place["functions"] = functions_of(answer.culprit, attempt.target)
        if attempt.command:
            shown = showing(answer.culprit, self.library(), attempt.target)
            if shown is None:
                return
            attempt = shown
        small, bundle = self.folder / "small.yaml", self.folder / "culprit.specdebug"
        revert, always = ("--revert", number), self._always
        follow = ("--signature", answer.failure) if attempt is answer.attempt else ()
        words = ("minimise", *attempt.words, *revert, *follow, "-o", str(small), *always)
        made = self.stage("minimise", words, HALF, small)
        apart = self.stage("diverge", ("diverge", *attempt.words, *revert, *always), HALF)
        answer.place |= {
            name: value for name, value in (apart.document.get("first") or {}).items() if value is not None
        }
        whole = (*attempt.words, *revert)
        least = (str(small), *attempt.on) if made.document.get("output") else whole
        self.stage("bundle", ("bundle", *least, "-o", str(bundle), "--force", *always), 1.0, bundle)
        answer.files |= {name: str(path) for name, path in (("small", small), ("bundle", bundle)) if path.exists()}

    def _from_log(self, found: Scan) -> Path | None:
        """A scenario of the log's launch flags; None where it shows none that our engine takes."""
        from specdebug.apps.triage import scenario_text

        file = self.folder / "from-log.yaml"
        try:
            write_file(file, scenario_text(found.facts, self.answered.log))
        except SpecDebugError:
            return None
        return file
