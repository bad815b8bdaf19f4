"""The page of ``specdebug replay``."""

from __future__ import annotations

from specdebug.campaign.loops.replay import Replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.report.html.arm import arm_views, head_chip
from specdebug.report.html.page import Head, render
from specdebug.report.terminal import closing_line


def replay_page(replay: Replay, recording: Recording, command: str) -> str:
    """The page, whatever came of the replay. ``command``: the command line that it was."""
    head = Head(
        title=replay.scenario.name,
        chips=[head_chip(result) for result in replay.results],
        summary=closing_line(replay) + (", interrupted" if replay.interrupted else ""),
        facts=scenario_facts(replay),
        command=command,
    )
    return render("replay.html", head, arms=arm_views(replay, recording), description=replay.scenario.description)


def scenario_facts(replay: Replay) -> dict[str, str]:
    """The facts in the head of a page about a replay."""
    seeds = {result.run.seed for result in replay.results} or {replay.scenario.seed}
    without = {"not run": "; ".join(f"{arm.arm}: {arm.text}" for arm in replay.left_out)} if replay.left_out else {}
    return {
        "scenario": str(replay.scenario.path),
        "seed": ", ".join(map(str, sorted(seeds))),
        "duration": f"{replay.wall_s:.1f} s",
        "exit code": str(replay.exit_code),
        **without,
    }
