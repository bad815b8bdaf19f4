"""``specdebug hunt``."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base import interrupts
from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.output import note, progress, tell, workers
from specdebug.report.words import counted
from specdebug.targets.registry import find_target
from specdebug.targets.settings import parse_target
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.records import RecordError

if TYPE_CHECKING:
    from specdebug.apps.hunt.evidence import SeenFailure
    from specdebug.apps.hunt.hunting import Hunt
    from specdebug.report.hunt import HuntAnswer


class HuntCommand(opt.DeviceOptions, opt.ClusterOptions, opt.ResumeOption, opt.JsonOptions, opt.ContentOptions):
    """Draw scenarios for an engine, judge each with every oracle, and make small what fails.

    Page sizes, trees, steps, chunks, cache hits, aborts, retraction, graph sizes, memory pressure, stops and sampling
    are drawn from the seed; every other scenario is also served in a way that must not matter, and the two are
    compared (`specdebug twins`). The same command goes on where it was stopped; a larger --count goes further. Of each
    failure DIR has a scenario, a bundle that `specdebug replay` repeats, and a page to paste upstream.

    Exit code 0 when nothing failed, 1 when something did, 125 when nothing could be judged.
    """

    example = "hunt -o found --target sglang==0.5.23"
    held = True
    output: Path = opt.option("Keep the hunt and its findings here.", "--output", "-o", default=..., metavar="DIR")
    count: int = opt.option("Draw so many scenarios, those of before included.", default=200, min=1)
    seed: int = opt.option("Draw the scenarios from this seed; another seed draws others.", default=0, min=0)
    revert: list[str] | None = opt.revert_option("Take these fixes out of the engine, to see what a hunt makes of it.")
    relation: list[str] | None = opt.option(
        "Serve every scenario in one of these ways, too (repeatable); unless given, every other one in any.",
        metavar="NAME",
        complete=complete.relations,
    )
    max_time: float | None = opt.option("Begin no scenario after so long.", metavar="SECONDS")
    jobs: int | None = opt.trials_at_a_time(
        "Run so many scenarios at a time; unless given, 1, on a cluster as many as it has CPUs."
    )
    small: int = opt.option(
        "Spend so many trials on making each new failure small; 0 leaves them as they are.",
        default=24,
        metavar="TRIALS",
        min=0,
    )

    def run(self) -> int:
        from specdebug.apps.hunt.hunting import Hunt, HuntRunner, HuntSource, hunt_state
        from specdebug.apps.hunt.record import HuntRecord
        from specdebug.apps.twins.plan import relation_of
        from specdebug.report.hunt import HuntAnswer

        self.check_outputs()
        on_ray, longest, engine = self.on_ray, opt.positive(self.max_time), self.engine()
        until = float("inf") if longest is None else time.monotonic() + longest
        target, reverts = parse_target(self.target or "embedded"), opt.numbers_of(self.revert)
        relations = tuple(relation_of(name).name for name in self.relation or ())
        find_target(target)
        library, jobs = self.library(), self.jobs or 1
        about: dict[str, Any] = {"target": str(target), "seed": self.seed, "reverts": list(reverts), **engine}
        about |= {"relations": list(relations)} if relations else {}
        make = partial(HuntSource, target, self.seed, reverts, tuple(library.folders[1:]), engine, relations)
        state = hunt_state(target, reverts, library)
        with HuntRecord(self.output, about, state, anyway=self.resume_anyway) as record:
            if record.differs:
                note(opt.gone_on(counted(len(record.judged), "scenario"), record.differs))
            answer = HuntAnswer(record, str(target), self.seed, self._words(), {}, {}, reverts)
            with workers(1 if on_ray else jobs) as pool:
                runner = HuntRunner(pool, library, target, self.seed, reverts, None, engine, jobs, relations)
                return self._hunt(Hunt(runner, record, partial(self._cluster, make) if on_ray else None), answer, until)

    def _cluster(self, make: Any) -> Any:
        from specdebug.campaign.trials.ray_executor import RaySource

        return RaySource(make(), make, address=self.ray_address, jobs=self.jobs)

    def _hunt(self, hunting: Hunt, answer: HuntAnswer, until: float) -> int:
        """Search, tell the results, write a page of the hunt and one of each failure, and return the exit code."""
        from specdebug.report.hunt import hunt_page, hunt_report, issue_page

        record, trouble = hunting.record, None
        try:
            with progress() as hunting.runner.progress:
                answer = replace(answer, interrupted=hunting.run(range(self.count), until))
            hunting.runner.progress = None  # it is told of scenarios, by their numbers
            if not answer.interrupted:
                answer = _with_evidence(hunting, replace(answer, small=self._make_small(hunting)))
        except RecordError as error:  # what was judged before is kept, and told
            trouble = error
        verdict = "fail" if record.findings else "pass" if record.count("pass") else "unknown"
        code = interrupts.exit_code() if answer.interrupted else EXIT_CODES[verdict]
        report = hunt_report(answer, code if trouble is None else trouble.exit_code)
        whole = (record.folder / "report.md", lambda: hunt_page(answer))
        pages = [(answer.issue_of(one), partial(issue_page, answer, one)) for one in record.findings]
        return tell(report, self, whole, *pages, trouble=trouble)

    def _make_small(self, hunting: Hunt) -> dict[str, Path]:
        """Make the first scenario of each failure small, unless that was done before; return the files by signature."""
        from specdebug.apps.hunt.evidence import shrink, shrunk_path

        small: dict[str, Path] = {}
        for signature, ones in hunting.record.findings.items():
            path = shrunk_path(hunting, ones[0])
            if self.small and not path.exists():
                note(f"making scenario {ones[0].number} small: {signature}")
                shrink(hunting, ones[0], self.small)
            if path.exists():
                small[signature] = path
        return small

    def _words(self) -> str:
        words = ["specdebug", "hunt", "-o", self.output.name or "hunt"]
        words += ["--count", str(self.count), "--seed", str(self.seed)]
        words += ["--target", self.target] if self.target else []
        words += [word for name in self.relation or () for word in ("--relation", name)]
        words += opt.engine_words(self.engine())
        words += ["--resume-anyway"] if self.resume_anyway else []
        return shlex.join([*words, *(["--revert", ",".join(self.revert)] if self.revert else [])])


def _with_evidence(hunting: Hunt, answer: HuntAnswer) -> HuntAnswer:
    """The answer with what each failure's scenario shows when it is run by itself, unless a signal comes."""
    from specdebug.apps.hunt.evidence import gather
    from specdebug.report.replay import replay_document

    every: dict[str, SeenFailure] = {}
    for signature in answer.record.findings:
        file = answer.file_of(signature)
        if not file.exists():
            continue
        note(f"running {file.name} by itself: {signature}")
        seen = gather(hunting, signature, file, replay_document)
        if seen is None:
            return replace(answer, evidence=every, interrupted=True)
        every[signature] = seen
    return replace(answer, evidence=every)
