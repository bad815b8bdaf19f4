"""The pages of replay and compare, taken apart."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from specdebug.campaign.loops.steplog import Recording
from specdebug.report.html.accept import MAX_LINES, MAX_POINTS, request_lines
from specdebug.report.html.arm import head_chip, verdict_chip
from specdebug.report.html.compare import compare_page
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.html.replay import replay_page
from specdebug.scenario.grammar import Expectation
from tests.report.html.samples import (
    BAD,
    EVIL,
    GOOD,
    LOST,
    Page,
    both,
    compared,
    from_file,
    outcome,
    recorded,
    replay_of,
    result,
)

COMMAND = "specdebug replay sample.yaml --html out.html"


def page_of_both() -> Page:
    return Page(replay_page(both(), recorded(fixed=(40, 3), reverted=(10, 2)), COMMAND))


def test_the_head_says_what_was_run_and_what_it_came_to() -> None:
    page = page_of_both()
    assert "fixed: pass reverted: fail sample: 1 of 2 arms as expected (2.5 s)" in page.text
    assert COMMAND in page.text
    assert "seed 7 duration 2.5 s exit code 1" in page.text
    assert "versions specdebug" in page.text
    assert "What two arms do." in page.text


def test_an_arm_s_part_has_its_findings_injections_requests_probes_and_log() -> None:
    page = page_of_both()
    assert "1 guard@draft.kv_indices->[next] 9 4 overran by 64 bytes" in page.text
    assert "4 hang - 1 killed" in page.text
    assert "i1 kv_nan 8 g.0 - target.k[3, 4] and 1 more 0.5 nan" in page.text
    assert "Requests (2)" in page.text
    assert "g.1 g 20 5 3 2.50 - 1 not finished" in page.text
    assert "Probes reached (1 of 2 sites)" in page.text
    assert "target.logits never" in page.text
    assert "ran on CPU, float32, fa3 by torch reference with torch 2.13" in page.text
    assert "red </script>" in page.text  # the log, without its colours
    assert "\x1b" not in page.source


def test_what_is_shown_is_not_obeyed() -> None:
    page = page_of_both()
    assert page.seen["script"] == 1
    assert "img" not in page.seen
    assert "b" not in page.seen
    assert page.text.count('</script><script>alert(1)</script><img src="http://evil.example/x.png">') >= 3
    assert "\x00" not in page.source
    page.source.encode("utf-8")  # a lone surrogate would raise
    named = Page(render("replay.html", Head(EVIL, [Chip(EVIL)], EVIL, {EVIL: EVIL}, EVIL), arms=[], description=EVIL))
    assert named.seen["script"] == 1
    assert "default-src 'none'" in page.source.replace("&#39;", "'")


def test_plots_are_xml_with_a_label_and_stand_beside_a_table() -> None:
    page = page_of_both()
    labels = [ET.fromstring(plot).get("aria-label") or "" for plot in page.plots]
    assert [label.split(" ")[0] for label in labels] == ["Accept", "Timeline", "Accept", "Timeline"]
    assert labels[1].startswith("Timeline of 40 steps: 5 prefill, 35 decode; largest batch 3, 2 requests finished")
    assert page.text.count("The plots as a table") == 2
    assert "step 10 prefill" in page.text


def test_findings_and_injections_are_marked_at_their_steps() -> None:
    accept = ET.fromstring(page_of_both().plots[2])
    marks = [mark.get("data-tip") for mark in accept.iter("line") if mark.get("data-tip")]
    assert marks == [
        "i1. injected kv_nan at step 8, request g.0, target.k[3, 4]: 0.5 -> nan and 1 more",
        "1. guard@draft.kv_indices->[next] at step 9\n2. nan@draft.logits at step 9",
    ]  # the finding of step 12 lies beyond the ten steps there are, the hang in none


def test_an_arm_that_never_took_a_step_has_no_plots_and_is_a_page_still() -> None:
    page = Page(replay_page(replay_of(result("fixed", LOST), interrupted=True), Recording(), COMMAND))
    assert not page.plots
    assert "fixed: unknown" in page.text
    assert "nothing was generated" in page.text
    assert ", interrupted" in page.text
    assert "seed 0" in Page(replay_page(replay_of(interrupted=True), Recording(), COMMAND)).text


def test_ten_thousand_steps_are_under_two_megabytes_and_every_request_has_its_line() -> None:
    long = outcome("fail", 64, violations=BAD.violations, log_tail="x" * 4000)
    recording = recorded(fixed=(10_000, 64))
    page = Page(replay_page(replay_of(result("fixed", long)), recording, COMMAND))
    assert len(page.source.encode()) < 2_000_000
    lines = request_lines(recording.of("fixed"))
    assert len(lines) == 64
    assert sum(map(len, lines.values())) <= MAX_POINTS
    drawn = [one for one in ET.fromstring(page.plots[0]).iter("polyline") if one.get("data-rid")]
    assert len(drawn) == 64


@pytest.mark.slow
def test_four_arms_of_ten_thousand_steps_are_under_two_megabytes_too() -> None:
    arms = [f"arm{number}" for number in range(4)]
    results = [result(arm, outcome("fail", 120, violations=BAD.violations, log_tail="x" * 4000)) for arm in arms]
    page = Page(replay_page(replay_of(*results), recorded(**dict.fromkeys(arms, (10_000, 120))), COMMAND))
    assert len(page.plots) == 8
    assert len(page.source.encode()) < 2_000_000


def test_of_very_many_requests_the_first_have_lines_and_the_tables_say_what_is_left_out() -> None:
    recording = recorded(fixed=(30, 700))
    assert len(request_lines(recording.of("fixed"))) == MAX_LINES
    page = Page(replay_page(replay_of(result("fixed", outcome(requests=700))), recording, COMMAND))
    assert "Requests (700)" in page.text
    assert "200 more requests are in the document that --json writes" in page.text
    assert "200 more, narrower, are in the document" in page.text


def test_expectations_are_said() -> None:
    page = Page(replay_page(from_file(), Recording(), COMMAND))
    assert "plain fail expected pass" in page.text


def test_a_comparison_has_both_sides_and_says_what_differs() -> None:
    replay, comparison = compared()
    page = Page(compare_page(replay, comparison, recorded(fixed=(40, 2), reverted=(30, 2)), COMMAND))
    assert "the arms differ fixed: pass reverted: fail the arms differ: 2 of 2 requests have other outputs" in page.text
    assert "verdict pass fail" in page.text
    assert "Requests: 2 with other outputs" in page.text
    assert "g.0 token 2 <3> <9> 2.50 1.00 5 0" in page.text
    assert "g.1 only in the first 2.50 - 5 -" in page.text
    overlay = ET.fromstring(page.plots[0])
    assert overlay.get("aria-label") == "Mean accept length of each step: fixed and reverted"
    assert {group.get("data-tip") for group in overlay.iter("g")} >= {"fixed", "reverted"}
    assert len(page.plots) == 5


@pytest.mark.parametrize("steps", [{}, {"fixed": (1, 1)}, {"reverted": (3, 1)}])
def test_a_comparison_with_hardly_any_steps(steps: dict[str, tuple[int, int]]) -> None:
    replay, comparison = compared()
    Page(compare_page(replay, comparison, recorded(**steps), COMMAND))


def test_arms_that_agree() -> None:
    from specdebug.campaign.loops.compare import compare

    replay = replay_of(result("fixed", GOOD), result("reverted", GOOD))
    same = compare(("fixed", "reverted"), (GOOD, GOOD), str)
    page = Page(compare_page(replay, same, recorded(fixed=(9, 1), reverted=(9, 1)), COMMAND))
    assert "the arms agree" in page.text
    assert "every step was the same" in page.text
    assert 'class="differs"' not in page.source


def test_an_expected_failure_is_not_red_in_the_head() -> None:
    fails, passes = Expectation("fail", ("guard@*",)), Expectation("pass")
    expected = result("reverted", BAD, fails)
    assert head_chip(expected) == Chip("reverted: fail, as expected", "pass")
    assert verdict_chip(expected) == Chip("fail", "plain")
    missed = result("reverted", GOOD, fails)
    assert head_chip(missed) == Chip("reverted: pass, not as expected", "fail")
    assert verdict_chip(missed) == Chip("pass", "plain")
    for outcome_, style in ((GOOD, "pass"), (BAD, "fail"), (LOST, "unknown")):
        for expectation in (passes, None):
            assert head_chip(result("fixed", outcome_, expectation)) == Chip(f"fixed: {style}", style)
            assert verdict_chip(result("fixed", outcome_, expectation)).words == style


def test_pages_can_be_walked_without_a_pointer() -> None:
    replay, comparison = compared()
    pages = (
        replay_page(both(), recorded(fixed=(40, 3), reverted=(10, 2)), COMMAND),
        compare_page(replay, comparison, recorded(fixed=(40, 2), reverted=(30, 2)), COMMAND),
    )
    for source in pages:
        heads = re.findall(r"<th\b[^>]*>", source)
        assert len(heads) > 10
        assert [head for head in heads if "scope=" not in head] == []
        assert re.search('<body>\\s*<a class="skip" href="#results">', source)
        assert '<main id="results" tabindex="-1">' in source
        assert "></th>" not in source  # every column says what it holds
