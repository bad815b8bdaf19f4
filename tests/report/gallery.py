"""A report of every command, made of names that the caller chooses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdebug.apps.mining.missing import KnownFix
from specdebug.apps.mining.siblings import Sibling
from specdebug.apps.solve import LogSetting, OpenQuestion, Solution, StageRun
from specdebug.apps.triage import CandidateFix, Tried
from specdebug.apps.twins.judge import JudgedPair
from specdebug.apps.twins.plan import TwinPair
from specdebug.apps.twins.run import ScenarioTwins, TwinResult
from specdebug.base.errors import Where
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.compare import compare
from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix, FaultRun
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Replay
from specdebug.campaign.loops.verify import Matrix, ToggleCheck
from specdebug.diverge.align import Difference
from specdebug.diverge.recording import Descriptor, Share
from specdebug.diverge.run import Divergence
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Injection
from specdebug.logs.findings import Finding
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan
from specdebug.patching import Edit, Patch
from specdebug.patching.drift import DriftReport, FixRow
from specdebug.patching.drift.check import EditProblem, Near
from specdebug.patching.toggles import Detection, Toggle
from specdebug.report.bisect import bisect_report
from specdebug.report.compare import compare_report
from specdebug.report.diverge import divergence_report
from specdebug.report.faults import fault_list, fault_shown, faults_report
from specdebug.report.flake import flake_report
from specdebug.report.listings import doctor_report, probe_list, scenario_list, triage_report
from specdebug.report.minimise import Minimisation, minimise_report
from specdebug.report.parts import Report
from specdebug.report.replay import replay_report
from specdebug.report.solve import solve_report
from specdebug.report.toggles import (
    drift_report,
    matrix_report,
    missing_report,
    siblings_report,
    toggle_list,
    toggle_shown,
)
from specdebug.report.twins import twins_report
from specdebug.scenario.grammar import Arm, Expectation, Scenario, TokenPrompt, WorkloadGroup
from specdebug.scenario.packs import ProbePack
from specdebug.scenario.workload import Workload
from specdebug.search.minimise import StageResult, Summary
from specdebug.targets.relations import RELATIONS
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Violation
from specdebug.verdict.twins import Compared, TokenWord, TwinBreak
from tests.report.samples import chooser, culprit_200, sampled, searched

Name = Callable[[str], str]
"""Makes a name of a plain word."""


def report_of_all(name: Name, folder: Path) -> dict[str, Report]:
    """By command, a report that tells of most that it can."""
    return {
        **_of_runs(name),
        **_of_listings(name),
        **_of_toggles(name),
        **_of_searches(name, folder),
        "diverge": _divergence(name),
        "triage": _triage(name),
        "solve": _solve(name),
    }


def outcome(name: Name, verdict: str = "fail") -> Outcome:
    """A run in which several things were found, or none."""
    found = (
        Violation(name("nan"), name("draft.hidden"), 3, f"told by {name('detail')}", 4),
        Violation("crash:SIGSEGV", "", None, f"died of {name('death')}"),
    )
    return Outcome(
        verdict,  # type: ignore[arg-type]
        found[0].signature if verdict == "fail" else None,
        found[0].site if verdict == "fail" else None,
        found[0].detail if verdict == "fail" else "",
        3 if verdict == "fail" else None,
        violations=found if verdict == "fail" else (),
        reasons=(f"because of {name('reason')}",),
        notes=(f"a note on {name('note')}",),
        metrics=Metrics(steps=9, accept_mean=2.31, accept_hit=2.1, accept_cold=2.31, cached_tokens=661, wall_s=1.0),
        requests=(RequestResult(name("request"), "g0", 2, 661, (4, 5), name("text"), accept_lengths=(2, 3)),),
        injections=(Injection("nan_logits", 0, 3, name("request"), name("site"), name("tensor"), (3,), 0.5, "nan"),),
        log_tail=f"the last\nwords of {name('log')}",
    )


def scenario(name: Name) -> Scenario:
    """Two arms."""
    arms = {each: Arm(each) for each in (name("fixed"), name("reverted"))}
    return Scenario(
        name("scenario"),
        description=f"Shows {name('description')}, and says so in as many words as it takes to fill a line.",
        workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
        arms=arms,
        expect={},
        path=Path(name("file")),
    )


def _of_runs(name: Name) -> dict[str, Report]:
    about = scenario(name)
    reverted: Any = (
        SimpleNamespace(
            pr=27338,
            path="27338.yaml",
            numbers=(27338,),
            title=f"a fix {name('title of a fix')}",
            url="",
            patches=(),
            foreign={},
        ),
    )
    expectations = (Expectation(), Expectation("fail", (name("expected@site"),)))
    verdicts = ("fail", "pass")
    results = tuple(
        ArmResult(ArmRun(arm, about, arm, 0, toggles=reverted, expectation=expected), outcome(name, verdict))
        for arm, expected, verdict in zip(about.arms, expectations, verdicts, strict=True)
    )
    left, right = (result.outcome for result in results)
    other = replace(right, requests=(replace(right.requests[0], output_ids=(4, 9)),))
    names = tuple(about.arms)
    checks = [ToggleCheck(toggle(name), results[:1], results[1:], name("plan"))]
    kind = CLASSES["nan_logits"]
    faults = FaultMatrix((CaseCheck(Case(kind), (FaultRun(0, left), FaultRun(1, right))),), ())
    return {
        "replay": replay_report(Replay(about, results, 2.5)),
        "compare": compare_report(
            Replay(about, results, 2.5), compare((names[0], names[1]), (left, other), lambda ids: name(f"t{ids[0]}"))
        ),
        "twins": twins_report([twins(name, about, reverted, left, other)]),
        "toggles verify": matrix_report(Matrix(tuple(checks), False)),
        "faults verify": faults_report(faults, 2.5),
    }


def twins(name: Name, about: Scenario, toggles: Any, left: Outcome, right: Outcome) -> ScenarioTwins:
    """A pair that holds, one that is broken, and one that is not compared."""
    base = ArmRun(next(iter(about.arms)), about, next(iter(about.arms)), 0, toggles=toggles)
    other, none = replace(base, key="twin"), Workload(())
    pairs = [TwinPair(RELATIONS["alone"], base, other=other), TwinPair(RELATIONS["runner"], base, why_not=name("why"))]
    broken = TwinBreak(left.requests[0].rid, "tokens", 1, 5, 9).judged(
        TokenWord(9, 3.0, 0.1, -1.0), TokenWord(9, 0.0, 0.1, -1.0), 1e-3
    )
    place = Divergence((name("one"), name("two")), reason=f"they differ in {name('shape')}")
    judged = [
        JudgedPair(pairs[0], none, (left, right), compared=Compared([], 1, 2, 2, {name("sampled"): name("left out")})),
        JudgedPair(pairs[0], none, (left, right), compared=Compared([broken], 1, 2), reference=name("reference")),
        JudgedPair(pairs[1], none, why=name("why")),
    ]
    return ScenarioTwins(about, tuple(TwinResult(each, place if each.compared.breaks else None) for each in judged))


def _of_listings(name: Name) -> dict[str, Report]:
    packs = [ProbePack(name("pack"), f"Watches {name('watched')} all the time.", "record", (), "p")]
    kinds = {name("site"): [name("kind"), "inf"]}
    return {
        "scenarios list": scenario_list([scenario(name)]),
        "faults list": fault_list(list(CLASSES.values())[:4]),
        "faults show": fault_shown(CLASSES["nan_logits"]),
        "probes list": probe_list(
            packs, kinds, {site: [name("pack")] for site in kinds}, {site: [name("worker")] for site in kinds}
        ),
        "doctor": doctor_report({name("fact"): [name("value"), 3]}, [f"no {name('part')}"]),
    }


def toggle(name: Name) -> Toggle:
    """A fix with one edit."""
    place = Where(name("toggle file"), 3)
    edit = Edit("1#1", f"before {name('line')}", f"after {name('line')}", place, place)
    patch = Patch("toggle 1", name("module"), name("function"), (edit,), place)
    detection = Detection(name("scenario"), (name("nan@site"), name("oob@site")))
    return Toggle(
        1,
        (2,),
        f"mend {name('title')} for good",
        name("url"),
        name("family"),
        name("symptom"),
        f"It said {name('told')}.",
        detection,
        (patch,),
        {},
        Path(name("path")),
    )


def _of_toggles(name: Name) -> dict[str, Report]:
    near = Near(Where(name("near"), 5), ("x",), (f"-{name('gone')}", f"+{name('new')}"), 0.5)
    rows = (
        FixRow(1, "ours", "fits", places=(Where(name("place"), 3), Where(name("other place"), 4))),
        FixRow(2, "ours", "stale", problems=(EditProblem(name("written"), f"lacks {name('lines')}", near),)),
        FixRow(3, "ours", "not-for-version", why=f"is for {name('version')} only"),
    )
    release: Any = name("release")
    return {
        "toggles list": toggle_list([toggle(name)]),
        "toggles show": toggle_shown(toggle(name)),
        "toggles check": drift_report(DriftReport(release, rows)),
        "toggles missing": missing_report(
            name("release"),
            [
                KnownFix(1, name("title"), "lacks", name("where"), name("scenario"), ""),
                KnownFix(2, name("other title"), "unknown", "", "", name("why")),
            ],
        ),
        "toggles siblings": siblings_report(
            name("fix"),
            release,
            [
                Sibling(
                    name("place"), f"module:{name('function')}", 1.5, {"names": name("like"), "part": name("part")}
                ),
                Sibling(name("other place"), f"module:{name('other function')}", 0.5, {"calls": name("callee")}),
            ],
        ),
    }


def _of_searches(name: Name, folder: Path) -> dict[str, Report]:
    def kept_as(word: str) -> str:
        """As a journal has it, which holds no lone surrogates."""
        return name(word).encode("utf-8", "replace").decode()

    def judge(trial: Trial) -> TrialResult:
        told = culprit_200(trial)
        return replace(told, signature=told.signature and kept_as(told.signature), detail=kept_as("evidence"))

    findings, subject, journal = searched(folder, judge, 30)
    found = replace(
        subject,
        what=name("what"),
        labels={each: name(f"fix {each}") for each in subject.labels},
        journal=name("journal"),
        reproduce=lambda culprits, seed: name("reproduce"),
        next_step=lambda culprits, followed: name("next"),
        how_often=name("how often"),
    )
    measured, question, kept = sampled(folder, judge, 20)
    asked = replace(
        question,
        what=name("what"),
        journal=name("journal"),
        reproduce=lambda seed: name("reproduce"),
        bisect=name("bisect"),
    )
    step = StageResult("requests", (name("gone"),), (name("kept"), name("unknown")), (name("unknown"),), 9)
    others = ((name("nan@other"), 2),)
    small: Summary[Any] = Summary("done", None, name("nan@site"), others, (5, 9), (4, 4), (1, 2), (step,), 22, 0)
    with journal, kept:
        return {
            "bisect": bisect_report(findings, found, 0, journal.trials, journal.evidence, chooser, None),
            "flake": flake_report(measured, asked, ["200"], kept.trials, kept.evidence, None),
            "minimise": minimise_report(small, Minimisation(name("what"), 4, name("output"), name("journal"), 0.95), 0),
        }


def _divergence(name: Name) -> Report:
    parts = [
        Share(step, 0, 1, Descriptor(name("site"), "float32", (0,), (6,)), name("request"), 0, step) for step in (3, 4)
    ]
    first = Difference("value", 4, name("site"), name("request"), *parts, text=f"as {name('told')} says")
    ended = replace(outcome(name), violations=())
    arms = (name("left"), name("right"))
    return divergence_report(
        name("scenario"), Divergence(arms, (ended, ended), steps=(9, 9), first=first, after=(first, first))
    )


def _triage(name: Name) -> Report:
    found = Scan(lines=90)
    for number, word in enumerate(("nan@logits", "oob@table")):
        signature = name(word)
        found.findings[signature] = Finding(signature, Strength.CHECK, name("means"), 7 + number, name("line"), 2)
    found.facts.backend, found.facts.arm = name("backend"), name("arm")
    best = CandidateFix(toggle(name), scenario(name), None, 9, (f"since {name('reason')} fits",), False)
    tried = [Tried(best, outcome(name), True, True)]
    return triage_report(name("log"), name("log"), found, [best], [name("command")], tried, 0)


def _solve(name: Name) -> Report:
    stage = StageRun("bisect", name("command"), 0, 9.0, name("summary"), name("text"), {}, kept=True)
    return solve_report(
        Solution(
            name("log"),
            "culprit",
            name("signature"),
            toggle(name),
            name("failure"),
            0.99,
            name("doubt"),
            LogSetting(name("why"), name("scenario"), name("arm")),
            {"site": name("site"), "step": 3, "request": name("request"), "functions": [name("function")]},
            [7],
            [stage, StageRun("bundle", name("command"), None, cut=True)],
            [OpenQuestion(name("question"), name("command"), name("machine"))],
            {"page": name("page")},
            name("next"),
        ),
        0,
    )
