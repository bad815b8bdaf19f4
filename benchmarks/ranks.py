"""Ranks, again and again: is a run of several ranks the same each time, is each fault of them named, and does anything
outlive a rank that is killed?

    python benchmarks/ranks.py --target sglang==0.5.23 --runs 50 --jobs 12 tp2_eagle dp2_idle_mtp pd_eagle
    python benchmarks/ranks.py --target sglang==0.5.23 --runs 20 --jobs 12 tp2_eagle --fault rank_dead:step=4
    python benchmarks/ranks.py --target sglang==0.5.23 --kills 100 --jobs 8 tp2_eagle
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios" / "ranks"


def command(name: str, args: argparse.Namespace, fault: str | None) -> list[str]:
    words = [
        "specdebug",
        "replay",
        str(SCENARIOS / f"{name}.yaml"),
        "--arm",
        "fixed",
        "--target",
        args.target,
        "--json",
    ]
    return [*words, *args.more, *(["--fault", fault] if fault else [])]


def one(words: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        arm: dict[str, Any] = json.loads(done.stdout)["arms"][0]
    except (ValueError, LookupError):
        return {"verdict": f"exit {done.returncode}: {done.stderr[-300:]}", "signature": None, "trace_hash": ""}
    return arm


def told(arm: dict[str, Any]) -> str:
    data = next((each["data"] for each in arm.get("violations", ()) if "rank" in each.get("data", {})), {})
    rank = f", rank {data['rank']}" if data else ""
    return f"{arm['verdict']} {arm['signature'] or ''}{rank}"


def descendants(pid: int) -> set[int]:
    """All processes that come of one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = set[int](), [pid]
    while waiting:
        for each in parents.get(waiting.pop(), ()):
            found.add(each)
            waiting.append(each)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def killed(words: Sequence[str], seed: int) -> str:
    """Kill a process that a run has started, after a while; what is left of them once the run is over."""
    drawn = random.Random(seed)
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen: set[int] = set()
    ends = time.monotonic() + drawn.uniform(4.0, 16.0)
    while time.monotonic() < ends and run.poll() is None:
        seen |= descendants(run.pid)
        time.sleep(0.2)
    if run.poll() is None and (now := sorted(descendants(run.pid))):
        seen |= set(now)
        os.kill(drawn.choice(now[len(now) // 2 :]), signal.SIGKILL)  # the youngest: workers and ranks
    code = run.wait(300)
    time.sleep(2)
    left = [pid for pid in seen if alive(pid)]
    return f"exit {code}, {len(left)} left"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--target", required=True)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="of replay, such as --device cuda")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        for name in args.scenarios:
            for fault in args.fault or [None]:
                began = time.monotonic()
                arms = list(pool.map(one, [command(name, args, fault)] * args.runs))
                hashes, outcomes = Counter(each["trace_hash"] for each in arms), Counter(map(told, arms))
                if args.runs:
                    print(f"{name} {fault or 'sound'}: {len(hashes)} hashes; {dict(outcomes)}; "
                          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
                if args.kills:
                    ends = pool.map(killed, [command(name, args, fault)] * args.kills, range(args.kills))
                    print(f"{name}: {args.kills} kills: {dict(Counter(ends))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
