"""``specdebug doctor``: what this installation runs on."""

from __future__ import annotations

import time

from specdebug.cli.options import Content, Debug, Json, open_library
from specdebug.cli.output import answer
from specdebug.cli.running import workers


def doctor(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Say what is installed, what will be used, and whether a worker runs; exit code 1 when a part is
    missing."""
    from specdebug.apps.doctor import examine
    from specdebug.report.listings import doctor_report

    began = time.monotonic()
    with workers(1) as pool:
        facts, problems = examine(pool, open_library(content))
    facts["examined in"] = f"{time.monotonic() - began:.1f} s"
    return answer(as_json, doctor_report(facts, problems))
