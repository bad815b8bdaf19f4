"""Results as JUnit XML, the dialect CI systems read: one suite a scenario, one case an arm.

A case fails when its arm did not do what was expected of it (or, where nothing was expected, failed); it is
skipped when the arm came to no verdict. A comparison, or a measured failure rate, is one case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from specdebug.loops.replay import ArmResult, Replay
from specdebug.report.explain import explain
from specdebug.report.terminal import ties_text
from specdebug.verdict.outcome import Outcome

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(replays: Sequence[Replay]) -> str:
    """The XML document."""
    root = ET.Element("testsuites", name="specdebug")
    totals = {"tests": 0, "failures": 0, "skipped": 0, "errors": 0}
    for replay in replays:
        suite = ET.SubElement(root, "testsuite", name=_clean(replay.scenario.name))
        counts = dict.fromkeys(totals, 0)
        for result in replay.results:
            counts["tests"] += 1
            kind = _case(suite, replay, result)
            if kind:
                counts[kind] += 1
        for name, count in counts.items():
            suite.set(name, str(count))
            totals[name] += count
        suite.set("time", f"{replay.wall_s:.3f}")
    for name, count in totals.items():
        root.set(name, str(count))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def verdict_xml(suite: str, case: str, exit_code: int, text: str, seconds: float) -> str:
    """The document of one case: passed for exit code 0, failed for 1, else skipped for want of a verdict.

    ``text``: what was said, its first line the verdict.
    """
    verdict = text.partition("\n")[0]
    kind = {0: None, 1: "failure"}.get(exit_code, "skipped")
    counts = {"tests": 1, "failures": int(kind == "failure"), "skipped": int(kind == "skipped"), "errors": 0}
    numbers = {name: str(count) for name, count in counts.items()}
    root = ET.Element("testsuites", {"name": "specdebug", **numbers})
    element = ET.SubElement(root, "testsuite", {"name": _clean(suite), **numbers, "time": f"{seconds:.3f}"})
    one = ET.SubElement(element, "testcase", classname=_clean(f"specdebug.{suite}"), name=_clean(case))
    one.set("time", f"{seconds:.3f}")
    if kind is not None:
        ET.SubElement(one, kind, message=_clean(verdict)).text = _clean(text)
    ET.SubElement(one, "system-out").text = _clean(text)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, replay: Replay, result: ArmResult) -> str | None:
    """Add one case; returns which count it adds to."""
    outcome = result.outcome
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(f"specdebug.{replay.scenario.name}"),
        name=_clean(result.run.arm),
        time=f"{outcome.metrics.wall_s:.3f}",
    )
    kind = None
    if result.met is False or (result.met is None and outcome.verdict != "pass"):
        kind = "skipped" if outcome.verdict == "unknown" else "failures"
        if kind == "skipped":
            ET.SubElement(case, "skipped", message=_clean(outcome.detail))
        else:
            summary = outcome.signature or f"{outcome.verdict}, where a failure was expected"
            failure = ET.SubElement(case, "failure", message=_clean(summary), type=_clean(summary))
            failure.text = _clean(_evidence(result))
    ET.SubElement(case, "system-out").text = _clean(_facts(outcome))
    if outcome.log_tail:
        ET.SubElement(case, "system-err").text = _clean(outcome.log_tail)
    return kind


def _evidence(result: ArmResult) -> str:
    outcome = result.outcome
    lines = [f"{v.signature} (step {v.step}, {v.count} in all): {v.detail}" for v in outcome.violations]
    if (why := explain(result)) is not None:
        lines += why.lines
    return "\n".join(lines or [outcome.detail])


def _facts(outcome: Outcome) -> str:
    metrics = outcome.metrics
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
    return "\n".join([*facts, *outcome.reasons, *outcome.notes])


def _clean(text: str) -> str:
    """Without the characters XML 1.0 cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
