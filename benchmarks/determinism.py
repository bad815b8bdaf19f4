"""Same file, same seed: the same trace hash, run after run, each in a process of its own.

``python benchmarks/determinism.py [--runs 100] [--jobs 8] [--device cuda] [SCENARIO ...]``. Exit code 1 when two hashes
differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

DEFAULT = ("bigram_key", "graph_padding", "topk_page_table")


def trace_hashes(scenario: str, device: str) -> dict[str, str]:
    """Trace hash by arm of one replay in a fresh process."""
    command = [sys.executable, "-m", "specdebug", "replay", scenario, "--json", "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {arm["arm"]: arm["trace_hash"] for arm in json.loads(done.stdout)["arms"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=DEFAULT)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="replays at a time")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    agree = True
    for scenario in options.scenarios:
        seen: dict[str, Counter[str]] = {}
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [pool.submit(trace_hashes, scenario, options.device) for _ in range(options.runs)]
        for run in runs:
            for arm, digest in run.result().items():
                seen.setdefault(arm, Counter())[digest] += 1
        for arm, counts in seen.items():
            digest, times = counts.most_common(1)[0]
            print(f"{scenario} {arm}: {times} of {options.runs} runs have trace hash {digest}")
            agree &= len(counts) == 1
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
