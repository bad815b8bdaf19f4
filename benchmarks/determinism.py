"""Same file, same seed and same faults: the same trace hash, run after run, each arm in a process of its own.

``python benchmarks/determinism.py [--runs 100] [--jobs 8] [--device cuda] [--target RELEASE] [--sound] [--fault
NAME[:key=value,...]]... [SCENARIO ...]``. With faults, which go to the first arm, as in ``specdebug replay --fault``,
only that arm is run; with ``--sound``, the arms that are to pass. The hash is told with the verdict. The runs are
shared out over ``--jobs`` interpreters, which hash strings each in its own order; every arm is then run in a fresh fork
of a server that has imported torch, or the release, and has built nothing. Exit code 1 when two hashes differ, or an
arm has none; 125 when this machine could not run an arm.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from specdebug.campaign.loops.replay import Choices, replay
from specdebug.campaign.preload import PRELOAD
from specdebug.faults.declare import parse_fault
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool

DEFAULT = ("bigram_key", "graph_padding", "topk_page_table")
UNAVAILABLE = "unavailable"


def trace_hashes(options: argparse.Namespace, runs: int) -> dict[tuple[str, str], Counter[str]]:
    """By scenario and arm, how often it had which trace hash ("" when it came to none), in ``runs`` replays;
    :data:`UNAVAILABLE` where this machine could not run it."""
    library = Library()
    seen: dict[tuple[str, str], Counter[str]] = {}
    faults = tuple(parse_fault(text) for text in options.fault)
    asked = {"device": options.device, "dtype": options.dtype}
    there: dict[str, Any] = {"engine": {key: value for key, value in asked.items() if value}}
    if options.target:
        there["target"] = parse_target(options.target)
    with WorkerPool(jobs=1 if options.target else 2, preload=PRELOAD) as pool:
        for name in options.scenarios:
            scenario = library.scenario(name)
            passing = [arm for arm, expected in scenario.expect.items() if expected.verdict == "pass"]
            arms = () if faults or not options.sound else tuple(arm for arm in passing if arm not in options.without)
            for _ in range(runs):
                for result in replay(pool, library, scenario, Choices(arms=arms, faults=faults, **there)).results:
                    digest = result.outcome.trace_hash and f"{result.outcome.trace_hash}, {result.outcome.verdict}"
                    trace = UNAVAILABLE if result.outcome.unavailable else digest
                    seen.setdefault((name, result.run.arm), Counter())[trace] += 1
    return seen


def shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` as equal as can be, those of nothing left out."""
    return [share for share in (total // parts + (part < total % parts) for part in range(parts)) if share]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=DEFAULT)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="replays at a time")
    parser.add_argument("--device", default="", help="cpu unless given, or cuda")
    parser.add_argument("--dtype", default="", help="of every arm, whatever its scenario says")
    parser.add_argument("--target", help="a release that is installed, as sglang==0.5.23")
    parser.add_argument("--sound", action="store_true", help="only arms that are to pass")
    parser.add_argument("--without", nargs="*", default=[], help="arms that are left out of --sound")
    parser.add_argument("--fault", action="append", default=[], help="as specdebug replay takes it")
    options = parser.parse_args()
    seen: dict[tuple[str, str], Counter[str]] = {}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(trace_hashes, options, part) for part in shares(options.runs, options.jobs)]
    for future in futures:
        for key, counts in future.result().items():
            seen.setdefault(key, Counter()).update(counts)
    agree, lacking = True, 0
    injected = "".join(f" --fault {text}" for text in options.fault)
    for (scenario, arm), counts in seen.items():
        lacking += counts.pop(UNAVAILABLE, 0)
        if not counts:
            continue
        digest, times = counts.most_common(1)[0]
        print(f"{scenario} {arm}{injected}: {times} of {options.runs} runs have trace hash {digest or 'none'}")
        agree &= len(counts) == 1 and bool(digest)
    if lacking:
        print(f"{lacking} arms could not be run on this machine")
    return 1 if not agree else EXIT_CODES["unknown" if lacking else "pass"]


if __name__ == "__main__":
    sys.exit(main())
