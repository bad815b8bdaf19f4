"""Results to make pages of, and a reader that holds a page to its rules."""

import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.compare import Comparison, compare
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.sampling import RateSampling, Sampled
from specdebug.campaign.trials.search import Findings
from specdebug.faults.model import Injection
from specdebug.report.bisect import Bisection
from specdebug.report.flake import Question
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import Arm, Expectation, Scenario, TokenPrompt, WorkloadGroup
from specdebug.search.bisect import Bisector
from specdebug.search.claims import parse_claim
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Tie, Violation
from tests.campaign.trials.searches import Notes, Source, find

EVIL = '</script><script>alert(1)</script><img src="http://evil.example/x.png"> "quoted" & <b>bold</b> \x00 \ud800'
"""What names and logs may hold, and a page must show rather than obey."""

MINI = Path(__file__).resolve().parents[1] / "cli" / "mini.yaml"

SCENARIO = Scenario(
    name="sample",
    description="What two arms do.",
    workload=(WorkloadGroup("g", TokenPrompt((1, 2))),),
    arms={"fixed": Arm("fixed"), "reverted": Arm("reverted")},
    expect={},
)
STACK = {"device": "cpu", "name": "CPU", "dtype": "float32", "backend": "fa3", "executor": "torch reference"}
STACK["torch"] = "2.13"
INJECTION = Injection("kv_nan", 0, 8, "g.0", None, "target.k", (3, 4), 0.5, "nan", 2)
VIOLATIONS = (
    Violation("guard", "draft.kv_indices->[next]", 9, "overran by 64 bytes", 4),
    Violation("nan", "draft.logits", 9, "1 bad"),
    Violation("nan", "draft.topk_p", 12, EVIL),
    Violation("hang", "", None, "killed"),
)


def step(number: int, kind: str = "decode", **more: Any) -> dict[str, Any]:
    """A worker's event."""
    plain = {
        "event": "step", "step": number, "kind": kind, "rids": ["g.0"], "emitted": {"g.0": [1, 2]}, "accept": {},
        "cached": {}, "finished": [], "retracted": [], "s": 0.01,
    }  # fmt: skip
    return plain | more


def recorded(**arms: tuple[int, int]) -> Recording:
    """Of each arm so many steps of so many requests: a prefill, then decodes; now and then one ends or is retracted."""
    recording, draw = Recording(), random.Random(0)
    for key, (steps, requests) in arms.items():
        for number in range(1, steps + 1):
            rids = [f"g.{index}" for index in range(requests) if draw.random() < 0.8] or ["g.0"]
            prefill = number % 9 == 1
            recording.take(
                key,
                step(
                    number,
                    "prefill" if prefill else "decode",
                    rids=rids,
                    emitted={rid: [1, 2] for rid in rids},
                    accept={} if prefill else {rid: draw.randint(1, 5) for rid in rids},
                    finished=rids[:1] if number % 20 == 0 else [],
                    retracted=rids[:1] if number % 30 == 0 else [],
                    s=draw.random() / 50,
                ),
            )
    return recording


def outcome(verdict: Any = "pass", requests: int = 2, **more: Any) -> Outcome:
    """What became of an arm."""
    violations = more.get("violations", ())
    first = violations[0] if violations else None
    results = tuple(
        RequestResult(f"g.{n}", "g", 20, 5, (1, 2, 3 + n), accept_lengths=(2, 3), ties=(Tie(1, 0.1, 0.2, 3, 4),))
        for n in range(requests)
    )
    plain: dict[str, Any] = {
        "requests": results,
        "metrics": Metrics(steps=20, accept_mean=2.5, wall_s=1.5),
        "reached_sites": {"draft.logits": 7, "target.logits": 0},
        "trace_hash": "t1",
        "stack": STACK,
    }
    where = (first.signature, first.site, first.detail, first.step) if first else (None, None, "", None)
    return Outcome(verdict, *where, **plain | more)


GOOD = outcome()
BAD = outcome(
    "fail", violations=VIOLATIONS, log_tail=f"\x1b[31mred\x1b[0m {EVIL}", notes=(EVIL,), injections=(INJECTION,)
)
LOST = outcome("unknown", 0, reasons=("nothing was generated",), reached_sites={}, stack={})


def result(arm: str, what: Outcome, expectation: Expectation | None = None, of: Scenario = SCENARIO) -> ArmResult:
    return ArmResult(ArmRun(arm, of, arm, 7, expectation=expectation), what)


def replay_of(*results: ArmResult, scenario: Scenario = SCENARIO, interrupted: bool = False) -> Replay:
    return Replay(scenario, results, 2.5, interrupted)


def both() -> Replay:
    """A pass as expected, and a failure that was not."""
    return replay_of(result("fixed", GOOD, Expectation()), result("reverted", BAD, Expectation()))


def compared() -> tuple[Replay, Comparison]:
    """Two arms whose second request is only in the first, and whose first parts at the third token."""
    other = outcome("fail", 1, violations=VIOLATIONS[:1], trace_hash="t2")
    changed = RequestResult("g.0", "g", 20, 0, (1, 2, 9), accept_lengths=(1, 1))
    other = Outcome.from_dict(other.to_dict() | {"requests": [changed.__dict__ | {"ties": []}]})
    replay = replay_of(result("fixed", GOOD), result("reverted", other))
    return replay, compare(("fixed", "reverted"), (GOOD, other), lambda ids: f"<{'/'.join(map(str, ids))}>")


def from_file() -> Replay:
    """One arm of a scenario that has a file, failed."""
    scenario = load_scenario(MINI)
    return replay_of(result("plain", BAD, scenario.expect["plain"], scenario), scenario=scenario)


class Page(HTMLParser):
    """A page taken apart. Raises AssertionError where tags do not match or something is loaded from elsewhere."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.ids: list[str] = []
        self.plots: list[str] = re.findall(r"<svg.*?</svg>", source, re.S)
        self.chips: list[str] = []
        self.seen: dict[str, int] = {}
        self.words: list[str] = []
        self._open: list[str] = []
        unlinked = re.sub(r"<a href='https?://[^']*'>", "<a>", source)
        assert not re.search(r'(src|href)\s*=\s*["\'](?!#)', unlinked), "loads something"
        self.feed(source)
        self.close()
        assert not self._open, self._open
        assert len(set(self.ids)) == len(self.ids), "an id twice"
        assert set(re.findall("<a href=['\"]#([^'\"]*)['\"]", source)) <= set(self.ids), "a link to no place"

    @property
    def text(self) -> str:
        """All that is shown, on one line."""
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        given = dict(attrs)
        assert len(given) == len(attrs), (tag, attrs)
        assert not any(name.startswith("on") for name in given), (tag, attrs)
        if "id" in given:
            self.ids.append(given["id"] or "")
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self._open)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.words.append(data)


NAMES = ["100", "200", "300", "400"]
Judge = Callable[[Trial], TrialResult]


def culprit_200(trial: Trial) -> TrialResult:
    """Fails two times out of three with 200; besides, every eleventh trial is untestable or fails otherwise."""
    if trial.number % 11 == 7:
        return TrialResult("untestable", None, 0.1, "no device")
    if trial.number % 11 == 9:
        return TrialResult("fail", "exit:9", 0.1, "other")
    if "200" in trial.reverted and trial.seed % 3:
        return TrialResult("fail", "nan@<x>", 0.2, "nan at <b>x</b>")
    return TrialResult("pass", None, 0.1)


def chooser(_: object = None) -> Bisector:
    return Bisector(NAMES, confidence=0.95, seed=0)


def searched(folder: Path, judge: Judge = culprit_200, most: int = 200) -> tuple[Findings, Bisection, Journal]:
    """A search to its end, with its journal."""
    journal = Journal(folder / "j.sqlite", "id", "about")
    opening = (frozenset(NAMES),)
    findings = find(Source(judge, names=NAMES), journal, chooser, opening=opening, seed=3, max_trials=most)
    subject = Bisection(
        over="toggles",
        what="./test.sh <x>",
        labels={name: f"fix <{name}>" for name in NAMES},
        names={name: name for name in NAMES},
        journal="j.sqlite",
        reproduce=lambda culprits, seed: f"REVERT={','.join(sorted(culprits))} SEED={seed} ./test.sh",
        next_step=lambda culprits, followed: "look",
        how_often="flake",
    )
    return findings, subject, journal


def sampled(
    folder: Path, judge: Judge = culprit_200, most: int = 120, claim: str | None = None, pattern: str | None = None
) -> tuple[Sampled, Question, Journal]:
    """A measurement with 200 reverted, to its end."""
    journal = Journal(folder / "f.sqlite", "id", "about")
    parsed = None if claim is None else parse_claim(claim, 0.95)
    sampling = RateSampling(
        lambda failures, runs: parsed is not None and parsed.decided(failures, runs) is not None,
        reverted=frozenset({"200"}),
        max_trials=most,
        pattern=pattern,
    )
    question = Question("./test.sh <x>", parsed, 0.95, "f.sqlite", lambda seed: f"SEED={seed} ./test.sh", "bisect")
    return Campaign(Source(judge), journal, 3, most).search(sampling, Notes()), question, journal
