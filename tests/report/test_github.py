"""What GitHub Actions is told."""

from __future__ import annotations

import dataclasses
import html
import io

from specdebug.campaign.loops.against import Against, GroupAgainst
from specdebug.campaign.loops.compare import compare
from specdebug.report.document import replay_document
from specdebug.report.github import (
    Annotation,
    comparison_annotations,
    comparison_summary,
    plain,
    replay_annotations,
    replay_summary,
    text_summary,
)
from specdebug.report.junit import junit_xml
from specdebug.report.terminal import console, render_replay
from tests.report.html.samples import GOOD, LOST, MINI, both, compared, from_file, outcome, replay_of, result

HERE = {"GITHUB_WORKSPACE": str(MINI.parents[2])}


def test_an_annotation_points_at_the_arm_in_the_scenario_s_file() -> None:
    (annotation,) = replay_annotations(from_file(), HERE)
    line = MINI.read_text().splitlines().index("  plain: {engine: {speculative: null}, probes: []}") + 1
    assert (annotation.level, annotation.path, annotation.line) == ("error", "tests/cli/mini.yaml", line)
    assert annotation.command() == (
        f"::error file=tests/cli/mini.yaml,line={line},title=specdebug%3A mini%2C arm plain%3A "
        "guard@draft.kv_indices->[next]::step 9: overran by 64 bytes; expected was pass"
    )


def test_outside_the_workspace_the_path_is_whole() -> None:
    (annotation,) = replay_annotations(from_file(), {"GITHUB_WORKSPACE": "/nowhere"})
    assert annotation.path == str(MINI)


def test_what_went_as_it_should_is_not_annotated_and_no_verdict_is_a_warning() -> None:
    assert [one.title for one in replay_annotations(both())] == [
        "specdebug: sample, arm reverted: guard@draft.kv_indices->[next]"
    ]
    (lost,) = replay_annotations(replay_of(result("fixed", LOST), result("reverted", GOOD)))
    assert (lost.level, lost.line) == ("warning", 1)


def test_a_command_is_one_line_whatever_is_said() -> None:
    said = Annotation("error", "a:b,c%", "one\r\ntwo % :: three", "x,y.yaml", 3).command()
    assert said == "::error file=x%2Cy.yaml,line=3,title=a%3Ab%2Cc%25::one%0D%0Atwo %25 :: three"
    assert Annotation("warning", "t", "m").command() == "::warning title=t::m"
    assert len(Annotation("error", "t", "m" * 5000).command()) < 2100


def test_the_summary_has_a_row_an_arm_and_what_was_found() -> None:
    text = replay_summary(both())
    assert text.startswith("### ❌ specdebug replay: sample\n\nsample: 1 of 2 arms as expected")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[2].startswith("| fixed | ✅ pass, as expected |")
    assert html.unescape(rows[3]).startswith(
        "| reverted | ❌ fail, not as expected | guard@draft.kv_indices->[next] | 9 |"
    )
    assert all(row.count(" | ") == rows[0].count(" | ") for row in rows[:4])
    assert "<script>" not in text
    assert "<details><summary>reverted: what was found</summary>" in text


def test_text_in_a_summary_is_no_markup() -> None:
    assert plain("a|b *c* <d>\ne_f") == "a&#124;b &#42;c&#42; &lt;d&gt; e&#95;f"
    text = text_summary("flake ./x", 125, "undecided: 1 of 2\n  `more` <b>")
    assert text == "### ❔ specdebug flake ./x\n\nundecided: 1 of 2\n\n<pre>  `more` &lt;b&gt;</pre>\n\n"


def test_a_comparison_is_summed_up_and_annotated_unless_the_arms_agree() -> None:
    replay, comparison = compared()
    text = comparison_summary(replay, comparison)
    assert text.startswith("### ❌ specdebug compare: sample")
    assert "| verdict | pass | fail |" in text
    (annotation,) = comparison_annotations(replay, comparison)
    assert "the arms differ" in annotation.message
    same = compare(("fixed", "reverted"), (GOOD, GOOD), str)
    assert comparison_annotations(replay, same) == []
    missing = compare(("fixed", "reverted"), (GOOD, outcome("unknown", unavailable=True)), str)
    assert comparison_annotations(replay, missing)[0].level == "warning"
    assert comparison_summary(replay, missing).startswith("### ❔")


def test_a_comparison_with_a_baseline_is_told_in_every_report() -> None:
    group = GroupAgainst("g", "kept", 3.0, 40, 2.5, 3.5, 3.1, 41)
    against = Against("b.json", "kept", "", (group,), 90.0, 100.0, same_machine=True)
    replay = replay_of(dataclasses.replace(result("fixed", GOOD), against=against))
    said = "g accepts 3.00 over 40 verifies, baseline 3.10 over 41, at least 2.50: kept"
    assert said in html.unescape(replay_summary(replay))
    assert said in junit_xml([replay])
    canvas = console(io.StringIO())
    with canvas.capture() as captured:
        canvas.print(render_replay(replay))
    assert said in " ".join(captured.get().split())
    assert "against the baseline: 1 kept" in captured.get()
    (arm,) = replay_document(replay)["arms"]
    assert arm["baseline"]["groups"][0]["wanted"] == 2.5
    assert "baseline" not in replay_document(replay_of(result("fixed", GOOD)))["arms"][0]
