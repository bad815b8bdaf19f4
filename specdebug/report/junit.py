"""Results as JUnit XML, the dialect CI systems read: one suite a scenario, one case an arm.

A case fails when its arm did not do what was expected of it (or, where nothing was expected, failed); it is
skipped when the arm came to no verdict. A comparison, or a measured failure rate, is one case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

from specdebug.campaign.loops.last_failed import as_it_should
from specdebug.campaign.loops.replay import ArmResult, Replay
from specdebug.report.explain import explain
from specdebug.report.terminal import not_engine_lines, ties_text

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(replays: Sequence[Replay]) -> str:
    """The XML document."""
    return _document(
        _suite(replay.scenario.name, [*_result_cases(replay), *_left_out_cases(replay)], replay.wall_s)
        for replay in replays
    )


def verdict_xml(suite: str, case: str, exit_code: int, text: str, seconds: float) -> str:
    """The document of one case: passed for exit code 0, failed for 1, else skipped for want of a verdict.

    ``text``: the command's output, its first line the verdict.
    """
    one = _case(suite, case, seconds)
    if exit_code != 0:
        kind = "failure" if exit_code == 1 else "skipped"
        ET.SubElement(one, kind, message=_clean(text.partition("\n")[0])).text = _clean(text)
    ET.SubElement(one, "system-out").text = _clean(text)
    return _document([_suite(suite, [one], seconds)])


def _document(suites: Iterable[ET.Element]) -> str:
    root = ET.Element("testsuites", name="specdebug")
    root.extend(suites)
    _count(root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(name: str, cases: Iterable[ET.Element], seconds: float) -> ET.Element:
    suite = ET.Element("testsuite", name=_clean(name))
    suite.extend(cases)
    _count(suite)
    suite.set("time", f"{seconds:.3f}")
    return suite


def _count(element: ET.Element) -> None:
    """Set the numbers of cases below an element."""
    for name, tag in {"tests": "testcase", "failures": "failure", "skipped": "skipped", "errors": "error"}.items():
        element.set(name, str(sum(1 for _ in element.iter(tag))))


def _case(suite: str, name: str, seconds: float) -> ET.Element:
    return ET.Element("testcase", classname=_clean(f"specdebug.{suite}"), name=_clean(name), time=f"{seconds:.3f}")


def _result_cases(replay: Replay) -> list[ET.Element]:
    return [_result_case(replay, result) for result in replay.results]


def _left_out_cases(replay: Replay) -> list[ET.Element]:
    """A case for each arm that is not run on its target, skipped."""
    cases = [_case(replay.scenario.name, arm.arm, 0.0) for arm in replay.left_out]
    for case, arm in zip(cases, replay.left_out, strict=True):
        ET.SubElement(case, "skipped", message=_clean(arm.text))
    return cases


def _result_case(replay: Replay, result: ArmResult) -> ET.Element:
    outcome = result.outcome
    case = _case(replay.scenario.name, result.run.arm, outcome.metrics.wall_s)
    if not as_it_should(result) and outcome.verdict == "unknown":
        ET.SubElement(case, "skipped", message=_clean(outcome.detail))
    elif not as_it_should(result):
        summary = _clean(outcome.signature or f"{outcome.verdict}, where a failure was expected")
        ET.SubElement(case, "failure", message=summary, type=summary).text = _clean(_evidence(result))
    ET.SubElement(case, "system-out").text = _clean(_facts(result))
    if outcome.log_tail:
        ET.SubElement(case, "system-err").text = _clean(outcome.log_tail)
    return case


def _evidence(result: ArmResult) -> str:
    outcome = result.outcome
    lines = [] if outcome.located is None else [outcome.located.text]
    lines += [f"{v.signature} (step {v.step}, {v.count} in all): {v.detail}" for v in outcome.violations]
    if (why := explain(result)) is not None:
        lines += why.lines
    return "\n".join(lines or [outcome.detail])


def _facts(result: ArmResult) -> str:
    outcome, metrics = result.outcome, result.outcome.metrics
    facts = [
        f"verdict {outcome.verdict}",
        f"trace {outcome.trace_hash}",
        f"steps {metrics.steps}",
        f"generated tokens {metrics.generated_tokens}",
        f"cached tokens {metrics.cached_tokens}",
    ]
    if metrics.accept_mean is not None:
        facts.append(f"mean accept length {metrics.accept_mean:.3f}")
    if outcome.ties:
        facts.append(ties_text(outcome))
    facts += not_engine_lines([result])
    facts += () if result.against is None else result.against.lines
    return "\n".join([*facts, *outcome.reasons, *outcome.notes])


def _clean(text: str) -> str:
    """Replace the characters that XML 1.0 cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
