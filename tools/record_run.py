"""Writes down what the workers of a scenario's arms report on a target: an event a line, for tests of the reports.

python tools/record_run.py tests/report/recorded/small.yaml sglang==0.5.13 tests/report/recorded/sglang.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdebug.campaign.loops.replay import Choices, replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.campaign.preload import PRELOAD
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.workers.pool import WorkerPool


class Tape(Recording):
    """Keeps every event, with its arm, but for what a worker says to be busy with."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def take(self, key: str, event: Mapping[str, Any]) -> None:
        if event["event"] != "progress":
            self.lines.append(json.dumps({"arm": key, **event}))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("target")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    library, tape = Library(), Tape()
    choices = Choices(target=parse_target(asked.target))
    with WorkerPool(1, PRELOAD) as pool:
        answer = replay(pool, library, library.scenario(str(asked.scenario)), choices, recording=tape)
    asked.out.write_text("\n".join(tape.lines) + "\n", encoding="utf-8")
    for result in answer.results:
        print(f"{result.run.arm}: {result.outcome.verdict} {result.outcome.detail}")


if __name__ == "__main__":
    main()
