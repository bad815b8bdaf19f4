"""Every format of a report on every kind of target, for replay and compare.

Runs of the embedded engine, of the reference and on a server are made here, by workers; those of our own server, of
SGLang and of vLLM were written down by ``tools/record_run.py``.
"""

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from specdebug.campaign.loops.compare import Comparison, compare
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, Replay, planned, run_arms
from specdebug.campaign.loops.steplog import Recording
from specdebug.campaign.preload import PRELOAD
from specdebug.report.compare import compare_report
from specdebug.report.formats import OURS, render
from specdebug.report.markdown import commands, summary
from specdebug.report.parts import Report
from specdebug.report.replay import replay_report
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.verdict.ledger import Ledger
from specdebug.workers.job import WorkerEnd
from specdebug.workers.pool import WorkerPool
from tests.report.samples import Page
from tests.run.fakes import text_of
from tests.targets.http.fake import FakeServer, serving

RECORDED = Path(__file__).parent / "recorded"
SCENARIO = str(RECORDED / "small.yaml")
LIVE, TAPED = ("embedded", "reference", "http"), ("serve", "sglang", "vllm")
ARMS = ("fixed", "again")
STAND_INS = {
    "sglang": ("CUDA graphs: a replay calls the captured Python again", "decode_attention.decode_attention_fwd"),
    "vllm": ("GPU kernels, CUDA graphs and streams",),
}
"""By target, of what is not the engine's own code on a CPU."""
SHORT = {
    "sglang": "code: CUDA graphs; CUDA streams and events; 37 stand-ins (see --json)",
    "vllm": "code: GPU kernels, CUDA graphs and streams (see --json)",
}
"""The same on a terminal."""


@dataclass(frozen=True)
class Ran:
    """Two arms' runs, and all that reports are made of."""

    replay: Replay
    recording: Recording
    comparison: Comparison

    def report(self, *, compared: bool) -> Report:
        if compared:
            return compare_report(self.replay, self.comparison, self.recording)
        return replay_report(self.replay, self.recording)


def ran(results: list[ArmResult], recording: Recording) -> Ran:
    left, right = (result.outcome for result in results)
    comparison = compare(ARMS, (left, right), lambda ids: "/".join(map(str, ids)))
    return Ran(Replay(results[0].run.scenario, tuple(results), 1.5), recording, comparison)


def runs_on(target: str) -> tuple[ArmRun, ...]:
    library = Library()
    return planned(library.scenario(SCENARIO), Choices(target=parse_target(target)), library).runs


def taped(target: str) -> Ran:
    recording, ledgers = Recording(), {arm: Ledger(target) for arm in ARMS}
    for line in (RECORDED / f"{target}.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        arm = event.pop("arm")
        ledgers[arm].fold(event)
        recording.take(arm, event)
    end = WorkerEnd("done", 0, 1.0, 1.0, "")
    return ran([ArmResult(run, ledgers[run.arm].outcome(end)) for run in runs_on(target)], recording)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, PRELOAD) as pool:
        yield pool


@pytest.fixture(scope="module", params=[*LIVE, *TAPED])
def target(request: pytest.FixtureRequest, pool: WorkerPool) -> tuple[str, Ran]:
    """Every kind of target by name, with what ran on it."""
    name: str = request.param
    if name in TAPED:
        return name, taped(name)
    recording = Recording()
    with serving(FakeServer()) as fake:
        runs = runs_on(fake.url if name == "http" else name)
        results, _ = run_arms(pool, Library(), runs, recording=recording)
    return name, ran(results, recording)


def test_something_ran(target: tuple[str, Ran]) -> None:
    name, made = target
    for result in made.replay.results:
        steps = made.recording.of(result.run.key)
        assert result.outcome.verdict == "pass", result.outcome.detail
        assert sum(step.emitted for step in steps) == sum(len(each.output_ids) for each in result.outcome.requests) > 0
        accepted = [length for step in steps for length in step.lengths]
        assert len(accepted) == sum(len(each.accept_lengths) for each in result.outcome.requests)
        assert bool(accepted) == (name != "reference")
        assert {step.kind for step in steps} <= ({"served"} if name not in LIVE[:2] else {"prefill", "decode", "idle"})


@pytest.mark.parametrize("compared", [False, True], ids=["replay", "compare"])
@pytest.mark.parametrize("form", sorted(OURS))
def test_every_file(target: tuple[str, Ran], form: str, compared: bool) -> None:
    name, made = target
    text = render(form, made.report(compared=compared))
    for part in (SHORT[name],) if form == "md" and name in SHORT else STAND_INS.get(name, ()):
        assert part in html.unescape(text)
    steps = {arm: made.recording.of(arm) for arm in ARMS}
    if form == "html":
        page = Page(text)
        assert all(f"Timeline of {len(those)} steps" in page.source for those in steps.values())
        assert ("Accept length over steps" in page.source) == (name != "reference")
    elif form == "perfetto":
        events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
        assert sum(event["ph"] == "X" for event in events) == sum(map(len, steps.values()))
    elif form == "md":
        assert text.startswith("#")
        assert all(arm in text for arm in ARMS)
    else:
        cases = ET.fromstring(text).findall("testsuite/testcase")
        assert [case.get("name") for case in cases] == (["fixed and again"] if compared else list(ARMS))


@pytest.mark.parametrize("compared", [False, True], ids=["replay", "compare"])
def test_the_terminal_and_github(target: tuple[str, Ran], compared: bool) -> None:
    name, made = target
    report = made.report(compared=compared)
    assert len(commands(report, {})) == (made.comparison.exit_code if compared else 0)
    for text in (text_of(report), html.unescape(summary(report))):
        assert all(arm in text for arm in ARMS)
        assert SHORT.get(name, "") in " ".join(text.split())
        assert "decode_attention_fwd" not in text
