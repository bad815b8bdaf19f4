"""The formats of a report: what is marked, counted, escaped and bounded. Their wording is in tests/golden/."""

import dataclasses
import html
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from specdebug.base.errors import Where
from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix, FaultRun
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.verify import Matrix, ToggleCheck, plan_matrix
from specdebug.faults.catalogue import CLASSES
from specdebug.report.compare import compare_report
from specdebug.report.explain import explain
from specdebug.report.faults import faults_report
from specdebug.report.formats import junit_xml
from specdebug.report.html.page import page
from specdebug.report.html.steps import MAX_LINES, MAX_POINTS, request_lines
from specdebug.report.markdown import MAX_ROWS, commands, issue, plain, summary
from specdebug.report.parts import (
    Column,
    FindingList,
    Line,
    Notice,
    Preformatted,
    Report,
    Section,
    Styled,
    Table,
    ToldFinding,
)
from specdebug.report.replay import replay_report
from specdebug.report.terminal import text_of
from specdebug.report.toggles import matrix_report
from specdebug.scenario.grammar import AcceptOracle, Arm, Expectation, OracleSpec, Scenario
from specdebug.scenario.library import Library
from specdebug.scenario.packs import ProbePack
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Tie
from tests.report.endings import against_a_baseline, explained, located
from tests.report.samples import (
    BAD,
    EVIL,
    GOOD,
    LOST,
    MINI,
    SCENARIO,
    Page,
    both,
    compared,
    from_file,
    outcome,
    recorded,
    replay_of,
    result,
)


def report_of(*parts: object, **more: object) -> Report:
    return Report("test", "title", "summary", 1, {}, parts, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "expectation", "mark"),
    [
        (GOOD, Expectation(), None),
        (GOOD, None, None),
        (BAD, Expectation("fail", ("guard@*",)), None),
        (BAD, Expectation(), "failure"),
        (BAD, None, "failure"),
        (GOOD, Expectation("fail"), "failure"),
        (LOST, Expectation(), "skipped"),
        (LOST, None, "skipped"),
    ],
)
def test_junit_marks_what_was_not_as_expected(what: Outcome, expectation: Expectation | None, mark: str | None) -> None:
    report = replay_report(replay_of(result("fixed", what, expectation)))
    root = ET.fromstring(junit_xml(report))
    (case,) = root.iter("testcase")
    marks = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
    assert marks == ([mark] if mark else [])
    assert root.get("failures") == str(int(mark == "failure"))
    assert root.get("skipped") == str(int(mark == "skipped"))
    assert bool(report.notices) == bool(mark)


def test_an_annotation_is_one_line_at_the_arm_in_the_scenario_s_file() -> None:
    line = next(place for place, line in enumerate(MINI.read_text().splitlines(), 1) if line.startswith("  plain:"))
    (told,) = commands(replay_report(from_file()), {"GITHUB_WORKSPACE": str(MINI.parents[2])})
    assert told.startswith(f"::error file=tests/cli/mini.yaml,line={line},title=specdebug%3A mini%2C arm plain%3A ")
    (told,) = commands(replay_report(from_file()), {"GITHUB_WORKSPACE": "/nowhere"})
    assert f"file={MINI},line" in told
    (lost,) = commands(replay_report(replay_of(result("fixed", LOST))), {})
    assert lost.startswith("::warning ")
    notice = Notice("fail", "a:b,c%", "one\r\ntwo % :: three" + "m" * 5000, Where("x,y.yaml", 3))
    (said,) = commands(report_of(notices=[notice]), {"GITHUB_WORKSPACE": str(Path.cwd())})
    assert said.startswith("::error file=x%2Cy.yaml,line=3,title=a%3Ab%2Cc%25::one%0D%0Atwo %25 :: three")
    assert len(said) < 2100


def test_text_in_markdown_is_no_markup() -> None:
    assert plain("a|b *c* <d>\ne_f it's") == "a&#124;b &#42;c&#42; &lt;d&gt; e&#95;f it's"
    told = summary(report_of(Preformatted("a\n````\nb", "log"), Table([Column("a")], [("x",)] * (MAX_ROWS + 2))))
    assert "\n`````\na\n````\nb\n`````\n" in told
    assert "and 2 more" in told
    rows = [line for line in summary(replay_report(both())).splitlines() if line.startswith("|")]
    assert len({row.count(" | ") for row in rows[:4]}) == 1


def test_an_issue_says_how_to_see_it_again_and_no_path_of_this_machine() -> None:
    line = f"specdebug replay {MINI} --report 'md=a b.md'"
    report = replace(replay_report(from_file()), line=line)
    told = issue(report)
    assert str(MINI.parent) not in told
    assert "specdebug replay .../mini.yaml --report 'md=a b.md'" in told
    assert report.summary in html.unescape(told)
    assert "<script>" not in told


def test_a_terminal_names_the_first_findings() -> None:
    found = [ToldFinding(f"nan@{number}", number, 2, "what") for number in range(4)]
    told = text_of([Section("arm", [FindingList(found, 2)], note="without a fix")]).splitlines()
    assert told == [
        "arm  without a fix",
        "  nan@0 at step 0, 2 in all  what",
        "    then nan@1 at step 1, 2 in all  what",
        "  and 2 more kinds (see --json)",
    ]


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (located, "began at verify.kv_pool.write.k, step 3, request g0.1: float32, 6 rows; beside its twin"),
        (against_a_baseline, "g accepts 3.00 over 40 verifies, baseline 3.10 over 41, at least 2.50: kept"),
        (explained, "reverted lines of 27360 ran 80 times"),
    ],
)
def test_every_format_tells_of_it(arm: object, said: str) -> None:
    report = replay_report(replay_of(arm()))  # type: ignore[operator]
    assert said in text_of(report.parts)
    assert said in junit_xml(report)
    assert html.escape(said) in page(report)
    assert plain(said) in summary(report)


def page_of_both() -> Page:
    return Page(page(replay_report(both(), recorded(fixed=(40, 3), reverted=(10, 2)))))


def test_what_a_page_shows_is_not_obeyed() -> None:
    told = page_of_both()
    assert told.seen["script"] == 1
    assert not {"img", "b"} & set(told.seen)
    assert '</script><script>alert(1)</script><img src="http://evil.example/x.png">' in told.text
    assert not {"\x00", "\x1b"} & set(told.source)
    told.source.encode("utf-8")  # a lone surrogate would raise
    named = Page(page(Report("x", EVIL, EVIL, 0, {}, [Line(EVIL)], [Styled(EVIL)], {EVIL: EVIL}, line=EVIL)))
    assert named.seen["script"] == 1
    assert "default-src 'none'" in told.source.replace("&#39;", "'")


def test_plots_are_xml_with_a_label_and_stand_beside_a_table() -> None:
    told = page_of_both()
    labels = [ET.fromstring(plot).get("aria-label") or "" for plot in told.plots]
    assert [label.split(" ")[0] for label in labels] == ["First", "Mean", "Accept", "Timeline", "Accept", "Timeline"]
    assert labels[3].startswith("Timeline of 40 steps: 5 prefill, 35 decode; largest batch 3, 2 requests finished")
    assert told.text.count("The plots as a table") == 2
    marks = [mark.get("data-tip") for mark in ET.fromstring(told.plots[4]).iter("line") if mark.get("data-tip")]
    assert marks == [
        "i1. injected kv_nan at step 8, request g.0, target.k[3, 4]: 0.5 -> nan and 1 more",
        "1. guard@draft.kv_indices->[next] at step 9\n2. nan@draft.logits at step 9",
    ]  # the finding of step 12 lies beyond the ten steps there are, the hang in none


@pytest.mark.parametrize("arms", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_ten_thousand_steps_are_under_two_megabytes_and_every_request_has_its_line(arms: int) -> None:
    names = [f"arm{number}" for number in range(arms)]
    long = outcome("fail", 64, violations=BAD.violations, log_tail="x" * 4000)
    recording = recorded(**dict.fromkeys(names, (10_000, 64)))
    about = replace(SCENARIO, arms={arm: Arm(arm) for arm in names})
    told = Page(page(replay_report(replay_of(*(result(arm, long, of=about) for arm in names)), recording)))
    assert len(told.source.encode()) < 2_000_000
    labels = [ET.fromstring(plot).get("aria-label") or "" for plot in told.plots]
    assert sum(label.startswith(("Accept", "Timeline")) for label in labels) == 2 * arms
    lines = request_lines(recording.of("arm0"))
    of_arm = next(plot for plot, label in zip(told.plots, labels, strict=True) if label.startswith("Accept"))
    assert sum(map(len, lines.values())) <= MAX_POINTS
    drawn = [one for one in ET.fromstring(of_arm).iter("polyline") if one.get("data-rid")]
    assert len(drawn) == len(lines) == 64


def test_of_very_many_requests_the_first_have_lines_and_the_tables_say_what_is_left_out() -> None:
    recording = recorded(fixed=(30, 700))
    assert len(request_lines(recording.of("fixed"))) == MAX_LINES
    told = Page(page(replay_report(replay_of(result("fixed", outcome(requests=700))), recording)))
    assert "Requests (700)" in told.text
    assert told.text.count("200 more are in the document that --json writes") == 2  # requests, and their near-ties


def test_pages_can_be_walked_without_a_pointer() -> None:
    steps = recorded(fixed=(40, 3), reverted=(10, 2))
    for report in (replay_report(both(), steps), compare_report(*compared(), steps)):
        source = page(report)
        heads = re.findall(r"<th\b[^>]*>", source)
        assert len(heads) > 10
        assert [head for head in heads if "scope=" not in head] == []
        assert re.search('<body>\\s*<a class="skip" href="#results">', source)
        assert '<main id="results" tabindex="-1">' in source
        assert "></th>" not in source  # every column says what it holds


PARTS = ["graphs: called again", "a.kernel", "b.kernel"]
SHORT = "in place of the engine's own GPU code: graphs; 2 stand-ins (see --json)"


def test_the_matrices_tell_it() -> None:
    outcomes = [Outcome("pass", None, None, "", None, not_engine_code=tuple(parts)) for parts in (PARTS[:2], PARTS[1:])]
    rows = CaseCheck(Case(next(iter(CLASSES.values()))), (FaultRun(0, outcomes[1], "row"),))
    faults = faults_report(FaultMatrix((rows,), (FaultRun(0, outcomes[0]),)), 1.0)
    assert faults.document["not_engine_code"] == PARTS
    assert SHORT in text_of(faults.parts)
    assert "; ".join(PARTS) in html.unescape(page(faults))
    library = Library()
    toggle, (run_, *_) = plan_matrix(library, library.toggles([27338]), 1)[0]
    ended = ArmResult(run_, Outcome("pass", None, None, "", None, not_engine_code=tuple(PARTS)))
    fixes = matrix_report(Matrix((ToggleCheck(toggle, (ended,), (ended,)),), False))
    assert fixes.document[0]["not_engine_code"] == PARTS
    assert SHORT in text_of(fixes.parts)


FAILS = Expectation("fail")
PASSED = Outcome(
    "pass",
    None,
    None,
    "",
    None,
    metrics=Metrics(steps=45, accept_hit=2.0, accept_cold=2.5),
    reverted_hits={"27360": {"27360#1": 80}},
    reached_sites={"verify.logits": 40, "draft.prefix_tail": 0},
    requests=(RequestResult("g0.0", "g0", ties=(Tie(3, 0.06, 0.25, 40, 41),), cold_accept_lengths=(2, 3)),),
    looks={"lossless": 4, "draft_kv": 8},
)


@pytest.fixture(scope="module")
def pack() -> ProbePack:
    (found,) = Library().packs(("default",))
    return found


def passed(
    pack: ProbePack, expectation: Expectation | None = FAILS, outcome: Outcome = PASSED, **engine: Any
) -> ArmResult:
    scenario = Scenario(
        "weak",
        workload=(),
        engine=engine,
        arms={"reverted": Arm("reverted", revert=(27360,))},
        oracles=OracleSpec(accept=AcceptOracle(0.7)),
        expect={},
        path=Path("weak file.yaml"),
    )
    toggles: Any = (
        SimpleNamespace(pr=27360, path="27360.yaml", numbers=(27360,), title="a fix", url="", patches=()),
        SimpleNamespace(pr=27338, path="27338.yaml", numbers=(27338,), title="a fix", url="", patches=()),
    )
    run = ArmRun("reverted", scenario, "reverted", 0, (pack,), toggles, expectation)
    return ArmResult(run, outcome)


def test_advice_is_given_only_where_it_changes_something(pack: ProbePack) -> None:
    told = " ".join(passed_advice(pack, memory={"fill": "zeros"}))
    assert "fill: garbage" in told
    assert "guards: true" in told
    assert "--mode record" not in told  # the pack records already
    assert "oracles:" not in told  # all are on
    quiet = " ".join(passed_advice(pack, memory={"guards": True}))
    assert "garbage" not in quiet
    assert "guards" not in quiet
    assert "--mode record" in " ".join(passed_advice(dataclasses.replace(pack, mode="assert")))


def passed_advice(pack: ProbePack, **engine: Any) -> list[str]:
    why = explain(passed(pack, **engine))
    assert why is not None
    return why.advice
