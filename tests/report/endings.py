"""Reports of the other ways in which commands end, beside those of ``gallery.py``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdebug.apps.evaluation.declared import Asking, Evaluation, Expected, Threshold
from specdebug.apps.evaluation.questions import ChoiceQuestion, QuestionSet
from specdebug.apps.evaluation.run import Evaluated, MarkedAnswer
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.compare import Against, GroupAgainst, compare
from specdebug.campaign.loops.fault_matrix import Case, FaultMatrix
from specdebug.campaign.loops.replay import ArmRun
from specdebug.campaign.loops.replays import Replays
from specdebug.campaign.trials.sampling import Sampled, Tally
from specdebug.campaign.trials.verified import FixTried, VerifiedBy
from specdebug.diverge.align import Difference, Looked
from specdebug.diverge.recording import Descriptor, Share
from specdebug.diverge.rounding import Rounding, ValueDifference
from specdebug.diverge.run import Divergence
from specdebug.engine.workers.registry import LINEUP
from specdebug.faults.catalogue import CLASSES
from specdebug.logs.scan import Scan
from specdebug.report.bisect import bisect_report
from specdebug.report.compare import compare_report
from specdebug.report.diverge import divergence_report
from specdebug.report.evaluation import evaluation_report
from specdebug.report.faults import faults_report
from specdebug.report.flake import Question, flake_report
from specdebug.report.listings import triage_report
from specdebug.report.minimise import Minimisation, minimise_report
from specdebug.report.parts import Report
from specdebug.report.replay import replay_report, replays_report
from specdebug.report.verified import CommandAsked, verified_report
from specdebug.scenario.grammar import AcceptOracle, Arm, Expectation, OracleSpec, Scenario
from specdebug.search.claims import parse_claim
from specdebug.search.minimise import Summary
from specdebug.verdict.outcome import Located, Metrics, Outcome, RequestResult, Tie, Violation
from tests.report.samples import (
    BAD,
    GOOD,
    LOST,
    chooser,
    compared,
    culprit_200,
    from_file,
    recorded,
    replay_of,
    result,
    searched,
)

PARTS = ("graphs: called again", "a.kernel", "b.kernel")
"""What a run had in place of an engine's own code."""
FIX: Any = SimpleNamespace(pr=27338, path="27338.yaml")
ON_GPU = {
    "device": "cuda", "name": "NVIDIA H200", "dtype": "bfloat16", "backend": "fa3", "executor": "Triton kernels",
}  # fmt: skip


def endings(folder: Path) -> dict[str, list[Report]]:
    """By command, its other endings."""
    return {
        "replay": _replays(),
        "compare": _comparisons(),
        "diverge": _divergences(),
        "bisect": _bisections(folder),
        "flake": _flakes(),
        "minimise": _minimisations(),
        "eval": _evaluations(),
        "toggles verify": _verified_by_a_command(),
        "faults verify": [_left_out(), faults_report(FaultMatrix((), (), missing=2, interrupted=True), 1.0)],
        "triage": [triage_report("ci.log", "ci.log", Scan(lines=9), [], ["specdebug doctor"], [], 1)],
    }


def _verified_by_a_command() -> list[Report]:
    """Fixes of every state, a command that fails as it is, one that cannot be tested, and a search cut short."""

    def fix(number: int, *results: TrialResult, why: str = "") -> FixTried:
        of_it: Any = SimpleNamespace(pr=number, title=f"fix {number}")
        return FixTried(of_it, why, [(Trial(9, frozenset([str(number)]), 77), each) for each in results])

    def trial(outcome: Any, *ran: str) -> TrialResult:
        signature, detail = ("exit:7", "") if outcome == "fail" else (None, "no GPU")
        return TrialResult(outcome, signature, 2.0, detail, ran=frozenset(ran), counted=True)

    def told(*applied: TrialResult, fixes: Sequence[FixTried] = (), proven: bool = True, **more: Any) -> Report:
        asked = CommandAsked(["./job"], 2, proven, lambda numbers: " ".join(["run", *sorted(numbers), "./job"]))
        ends: dict[str, Any] = {"left": {}, "reason": "", "trouble": None, **more}
        return verified_report(VerifiedBy([(Trial(0, frozenset(), 5), each) for each in applied], fixes, **ends), asked)

    passes = trial("pass")
    live = fix(501, trial("pass", "501"), trial("fail", "501"))
    others = (
        fix(502, trial("pass", "502"), trial("fail")),
        fix(503, passes, trial("fail")),
        fix(504, trial("untestable"), trial("untestable")),
        fix(505, why="the command imports no package that it edits"),
        fix(506, replace(passes, counted=False)),
    )
    return [
        told(passes, passes, fixes=(live,), left={"507": "does not fit toyspec 2.5: width"}),
        told(passes, passes, fixes=(live, *others)),
        told(passes, passes, fixes=(fix(508, replace(trial("fail"), counted=False)),), proven=False),
        told(passes, trial("fail")),
        told(trial("untestable")),
        told(passes, passes, fixes=(live,), reason="interrupted"),
        told(passes, passes, reason="trouble", trouble=CannotRunHere("it imports nothing")),
    ]


def explained() -> Any:
    """An arm that passed though its reverted fixes should have made it fail."""
    outcome = Outcome(
        "pass",
        None,
        None,
        "",
        None,
        metrics=Metrics(steps=45, accept_hit=2.0, accept_cold=2.5),
        reverted_hits={"27360": {"27360#1": 80}},
        requests=(RequestResult("g0.0", "g0", ties=(Tie(3, 0.06, 0.25, 40, 41),), cold_accept_lengths=(2, 3)),),
        looks={"lossless": 4, "draft_kv": 8},
    )
    arms = {"reverted": Arm("reverted", revert=(27360,))}
    oracles = OracleSpec(accept=AcceptOracle(0.7))
    scenario = Scenario("weak", workload=(), arms=arms, oracles=oracles, expect={}, path=Path("weak file.yaml"))
    toggles: Any = (
        SimpleNamespace(pr=27360, path="27360.yaml", numbers=(27360,), title="a fix", url="", patches=(), foreign={}),
        SimpleNamespace(pr=27338, path="27338.yaml", numbers=(27338,), title="a fix", url="", patches=(), foreign={}),
    )
    run = ArmRun("reverted", scenario, "reverted", 0, (), toggles, Expectation("fail"))
    return replace(result("reverted", outcome), run=run)


def against_a_baseline() -> Any:
    group = GroupAgainst("g", "kept", 3.0, 40, 2.5, 3.5, 3.1, 41)
    against = Against("b.json", "kept", "", (group,), 90.0, 100.0, same_machine=True)
    return replace(result("fixed", GOOD), against=against)


def located() -> Any:
    wrong = Outcome("fail", "mismatch@request", "request", "got 4", 9, (Violation("mismatch", "request", 9, "got 4"),))
    place = Located(3, "g0.1", "kv_pool.write.k", "float32, 6 rows", "mismatch@request", "its twin", "verify")
    return result("reverted", wrong.began_at(place), Expectation())


def _replays() -> list[Report]:
    ties = tuple(Tie(position, 0.0078 * (position + 1), 0.25, 40, 41) for position in range(8))
    requests = (replace(GOOD.requests[0], ties=ties),)
    tied = replace(GOOD, stack=ON_GPU, requests=requests, not_engine_code=PARTS)
    died = Outcome("fail", "hang", None, "", 2, violations=(Violation("hang", "", 2, "killed"),), log_tail="in step\n")
    found = Violation("nan", "draft.logits", 2, "gone", data={"device": "cuda", "lost": True})
    gone = Outcome("fail", "nan@draft.logits", None, "", 2, violations=(found,), log_tail="Assertion\n")
    alone = [replay_of(result("fixed", each)) for each in (GOOD, LOST, tied, died, gone)]
    told = [replay_of(each) for each in (explained(), located(), against_a_baseline())]
    trouble = SpecDebugError("no worker could be started")
    several = [
        Replays((replay_of(result("fixed", GOOD)), from_file(), replay_of(result("fixed", LOST))), 2.0),
        Replays((replay_of(result("fixed", GOOD)),), 2.0, missing=3, interrupted=True),
        Replays((), 2.0, missing=1, trouble=trouble),
    ]
    steps = recorded(fixed=(12, 2), reverted=(14, 2))
    both = replay_of(result("fixed", GOOD, Expectation()), result("reverted", BAD, Expectation("fail", ("guard@*",))))
    return [replay_report(both, steps), *map(replay_report, [*alone, *told]), *map(replays_report, several)]


def _comparisons() -> list[Report]:
    replay, comparison = compared()
    again = replay_of(result("fixed", GOOD), result("reverted", GOOD))
    same = compare(("fixed", "reverted"), (GOOD, GOOD), str)
    missing = compare(("fixed", "reverted"), (GOOD, replace(LOST, unavailable=True, detail="no GPU")), str)
    losing = GroupAgainst("g", "lost", 2.0, 40, 2.5, 3.5, 3.1, 41)
    against = Against("b.json", "lost", "", (losing,), 90.0, 100.0, same_machine=True)
    return [
        compare_report(replay, comparison, recorded(fixed=(12, 2), reverted=(14, 2))),
        compare_report(again, same),
        compare_report(again, missing),
        compare_report(again, replace(same, against=(None, against))),
    ]


def _divergences() -> list[Report]:
    logits = Descriptor("verify.logits", "float32", (0,), (6,))
    left, right = (Share(step, 0, 1, logits, "a", 0, digest) for step, digest in ((3, 1), (4, 2)))
    found = Difference("value", 4, "verify.logits", "a", left, right)
    values = ValueDifference((2, 5), 1.5, -1.5, 3, 12, 2.0)
    engines = Looked(
        "engines",
        ("verify.logits",),
        (("tree.parents",), ()),
        {"s": "is sampled, by coins of each engine's own"},
        left_out={"a": "was preempted there, and computed again"},
        prompts=(30, 0, 4),
    )
    unlike = Looked("workers", ("verify.logits",), ((), ("x.y",)), {}, unlike={"kv_pool.write.v": 3})
    arms = Looked("arms", ("verify.logits",), ((), ()), {"a": "was computed again by one of them"})
    passed = Outcome("pass", None, None, "", None)
    plain = Divergence(("x", "y"), steps=(9, 9))
    every = [
        replace(plain, first=found, values=values, after=(found,)),
        plain,
        replace(plain, alike=False, rounding=Rounding(1, 1e-6, found, (found,), (found,))),
        Divergence(("x", "y"), reason="only one of the two arms speculates"),
        replace(plain, interrupted=True),
        replace(plain, alike=False, looked=engines),
        replace(plain, alike=False, looked=unlike),
        replace(plain, alike=False, looked=arms, rescheduled=4),
        replace(plain, outcomes=(passed, replace(passed, not_engine_code=PARTS))),
    ]
    return [divergence_report("two", each) for each in every]


def _bisections(folder: Path) -> list[Report]:
    def passes(trial: Trial) -> TrialResult:
        return TrialResult("pass", None, 0.1)

    def untestable(trial: Trial) -> TrialResult:
        return TrialResult("untestable", None, 0.1, "no device")

    def interrupted(trial: Trial) -> TrialResult:
        raise KeyboardInterrupt

    reports = []
    for place, (judge, most) in enumerate([(culprit_200, 2), (passes, 300), (untestable, 300), (interrupted, 300)]):
        (folder / str(place)).mkdir()
        findings, subject, journal = searched(folder / str(place), judge, most)
        with journal:
            kept = journal.trials, journal.evidence
            reports.append(bisect_report(findings, subject, 125, *kept, chooser, None))
            if judge is passes:
                unproven = replace(findings, answer=None, reason="unproven")
                commits = replace(subject, over="commits", takes="one")
                reports += [bisect_report(unproven, each, 125, *kept, chooser, None) for each in (subject, commits)]
                head = replace(subject, what="./job", at_head="exit:7", command=True)
                failing = replace(findings, answer=None, reason="at-head")
                reports += [bisect_report(each, head, 125, *kept, chooser, None) for each in (findings, failing)]
    return reports


def _flakes() -> list[Report]:
    def tally(failures: int, runs: int, **more: int) -> Tally:
        named = ((("hang", failures),), (("hang", Trial(4, frozenset(), 99)),)) if failures else ((), ())
        measured = tuple(name for name, _ in named[0])
        return Tally(runs, runs=runs, failures=failures, signatures=named[0], measured=measured, first=named[1], **more)

    def told(
        reason: Any, counts: Tally, claim: str | None = None, evidence: Mapping[str, str] | None = None, **more: Any
    ) -> Report:
        parsed = None if claim is None else parse_claim(claim, 0.95)
        asked = Question(
            "./test.sh", parsed, 0.95, "j.sqlite", lambda seed: f"SEED={seed} ./test.sh", "bisect ./test.sh", **more
        )
        trials = {n: (Trial(n, frozenset(), n), TrialResult("pass", None, 0.1)) for n in range(counts.trials)}
        trouble = SpecDebugError("no worker") if reason == "trouble" else None
        return flake_report(Sampled(reason, counts, trouble), asked, [], trials, evidence or {}, None)

    first = (("hang", Trial(0, frozenset(), 11)), ("nan@x", Trial(5, frozenset(), 22)))
    others = Tally(9, runs=4, failures=1, masked=5, signatures=(("hang", 5), ("nan@x", 1)), first=first)
    either = "rate<10% or rate>40%"
    return [
        told("enough", tally(0, 2000)),
        told("enough", tally(3, 40)),
        told("enough", tally(0, 299), "rate<1%"),
        told("enough", tally(0, 9), either),
        told("enough", tally(5, 6), "rate<1%"),
        told("interrupted", tally(0, 298), "rate<1%"),
        told("max-trials", tally(0, 0), "rate<1%"),
        told("trouble", tally(1, 4)),
        told("enough", tally(3, 10, untestable=1, masked=2, resumed=4), None, {"": "starting\nno such GPU\n"}),
        told("max-trials", replace(others, measured=("nan@x",))),
        told("max-trials", replace(others, failures=0, runs=3, masked=6)),
        told("enough", tally(0, 299), "rate<1%", toggles=[FIX], command=True),
        told("enough", tally(0, 299), "rate<1%", toggles=[FIX]),
    ]


def _minimisations() -> list[Report]:
    subject = Minimisation("x.yaml --arm reverted", 4, "small.yaml", "j.sqlite", 0.95, PARTS)
    silent: Summary[Any] = Summary("silent", None, None, (), (0, 40), (0, 0), (), (), 40, 40)
    ended = [silent, replace(silent, reason="max-trials"), replace(silent, reason="interrupted")]
    return [minimise_report(each, subject, 125) for each in ended]


def evaluated(top: list[tuple[float, str]]) -> Evaluated:
    """One question that was answered by log probabilities."""
    question = ChoiceQuestion("Why?", ("a", "b"), 0, "sums", "q.csv:1")
    evaluation = Evaluation("own", Asking("q.csv", by="logprob"), path=Path("own.yaml"))
    answer = MarkedAnswer(0, question, "text", 0, (3, 1), 9, 4, 5, top=top)
    passed = Outcome("pass", None, None, "", None)
    return Evaluated(evaluation, QuestionSet("q.csv", (question,)), (answer,), passed, (), 0.95, 1.5)


def _evaluations() -> list[Report]:
    question = ChoiceQuestion("Why?", ("a", "b"), 0, "sums", "q.csv:1")
    passed = Outcome("pass", None, None, "", None, not_engine_code=PARTS)

    def told(outcome: Outcome, *taken: int | None, **more: Any) -> Evaluated:
        evaluation = Evaluation("own", Asking("q.csv"), path=Path("own.yaml"), **more)
        answers = [MarkedAnswer(number, question, "text", each, (3, 1), 9, 4, 5) for number, each in enumerate(taken)]
        asked = QuestionSet("q.csv", (question,) * len(answers))
        return Evaluated(evaluation, asked, tuple(answers), outcome, (), 0.95, 1.5)

    expected = Expected(Threshold(0.9), Threshold(2.26))
    failed = Outcome("fail", "nan@draft.logits", "draft.logits", "3 values", 4)
    every = [told(passed, 0, None), told(passed, 0, 0, expect=expected), told(failed, 0), told(passed)]
    return [evaluation_report(replace(each, server_accept_length=2.1)) for each in every]


def _left_out() -> Report:
    whys = {
        Case(CLASSES["outputs_read_early"]): "no meaning there",
        Case(CLASSES["cache_lock_lost"]): "no nodes",
        Case(CLASSES["next_token_swapped"]): "no meaning there",
        Case(CLASSES["nan_logits"], "verify.logits", LINEUP["MTP"]): "no such",
        Case(CLASSES["nan_logits"], "verify.logits", LINEUP["MLA"]): "no such",
    }
    return faults_report(FaultMatrix((), (), left_out=whys), 1.0)
