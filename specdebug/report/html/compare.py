"""The page of ``specdebug compare``: two arms side by side."""

from __future__ import annotations

from specdebug.campaign.loops.compare import Comparison, RequestDifference
from specdebug.campaign.loops.replay import Replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.report.html.accept import accept_overlay
from specdebug.report.html.arm import arm_views, head_chip
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.html.replay import scenario_facts
from specdebug.report.terminal import COMPARED, comparison_line


def compare_page(replay: Replay, comparison: Comparison, recording: Recording, command: str) -> str:
    """The page of a comparison and the replay that it is of. ``command``: the command line that it was."""
    requests = sorted(comparison.requests, key=lambda request: request.same_output)
    verdict = Chip("the arms agree", "pass") if comparison.agree else Chip("the arms differ", "fail")
    if comparison.agree and comparison.drafting_apart:
        verdict = Chip("the arms agree, but not in accept length", "plain")
    if comparison.losing:
        verdict = Chip("accept length lost against the baseline", "fail")
    if comparison.unavailable:
        verdict = Chip("cannot be compared here", "unknown")
    head = Head(
        title=f"{replay.scenario.name}: {' and '.join(comparison.names)}",
        chips=[verdict, *(head_chip(result) for result in replay.results)],
        summary=comparison_line(comparison),
        facts=scenario_facts(replay) | {"exit code": str(comparison.exit_code)},
        command=command,
    )
    return render(
        "compare.html",
        head,
        names=comparison.names,
        rows=[(name, *map(measure, comparison.outcomes)) for name, measure in COMPARED.items()],
        overlay=accept_overlay({result.run.arm: recording.of(result.run.key) for result in replay.results}),
        differing=sum(not request.same_output for request in requests),
        requests=[(request, _position(request)) for request in requests],
        arms=arm_views(replay, recording),
    )


def _position(request: RequestDifference) -> str:
    if request.left is None:
        return "only in the second"
    if request.right is None:
        return "only in the first"
    return "same" if request.position is None else f"token {request.position}"
