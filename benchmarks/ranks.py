"""Ranks, again and again: is a run of several ranks the same each time, is each fault of them named, and does anything
outlive a rank that is killed? And do scenarios that are drawn come out on several ranks as on one?

    python benchmarks/ranks.py --target sglang==0.5.23 --runs 50 --jobs 12 tp2_eagle dp2_idle_mtp pd_eagle
    python benchmarks/ranks.py --target sglang==0.5.23 --runs 20 --jobs 12 tp2_eagle --fault rank_dead:step=4
    python benchmarks/ranks.py --target sglang==0.5.23 --kills 100 --jobs 8 tp2_eagle
    python benchmarks/ranks.py --target sglang==0.5.23 --drawn 200 --jobs 12 tp dp pd
    python benchmarks/ranks.py --target vllm==0.32.0 --drawn 200 --jobs 12 vllm
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from specdebug.apps.hunt.draw import LONGEST_PROMPT, MOST_NEW, groups
from specdebug.base.trial import stream
from specdebug.engine.workers.registry import WorkerEntry
from specdebug.targets.algorithms import SGLANG, VLLM
from specdebug.targets.options import SPACES, ForeignEntry, TargetOptions

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios" / "ranks"

TOGETHER = 4
"""Drawn scenarios that one process compares."""
_TREES = (WorkerEntry("EAGLE"), WorkerEntry("EAGLE3", algorithm="EAGLE3"))
_NEXTN = (ForeignEntry("NEXTN", "NEXTN", model="tiny-mla", draft_model="tiny-mla-eagle"),)
SETUPS: dict[str, tuple[str, list[dict[str, Any]], Sequence[WorkerEntry]]] = {
    "tp": ("ranks", [{"tp": 2}, {"tp": 4}], _TREES),
    "dp": (
        "ranks",
        [{"tp": 2, "dp": 2, "dp_attention": True, "dp_balance": how} for how in ("round_robin", "skewed")],
        _NEXTN,
    ),
    "pd": ("pd", [{"disaggregation": "pd"}, {"disaggregation": "pd_nixl"}], _TREES),
    "vllm": ("ranks", [{"tp": 2}], SPACES["vllm"].workers),
}
"""By setup: the relation that its scenarios are held in, what they are served on, in turn, and what drafts."""


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


def drawn(setup: str, seed: int, number: int) -> dict[str, Any]:
    """Scenario ``number`` of a seed and setup, as a file says it."""
    _, layouts, workers = SETUPS[setup]
    engine = "vllm" if setup == "vllm" else "sglang"
    space = replace(SPACES[engine], workers=tuple(workers))
    if setup in ("dp", "pd"):
        # Parts have a pool each: in a tight one others would be set back than on one rank. A server that decodes
        # keeps room for 512 more tokens before it takes a request in, so in a tight pool it takes none.
        space = replace(space, tight=(False,))
    if setup == "dp":
        # Without graphs 0.5.23 pads a draft's batch behind its plan, and its own check of the attention ends it
        # (docs/ranks.md).
        space = replace(space, graphs=({"max_bs": 4}, {"max_bs": 4, "capture_bs": [4]}))
    options = TargetOptions(space, VLLM if engine == "vllm" else SGLANG)
    given, page = options.drawn(seed, number, LONGEST_PROMPT + MOST_NEW)
    layout, rng = layouts[number % len(layouts)], stream(seed, "ranks", setup, number)
    if given["chunked_prefill_size"] is not None:  # parts share a chunk, of which each is to have whole pages
        given["chunked_prefill_size"] *= layout.get("dp", 1)
    return {
        "name": f"{setup}-{seed}-{number}",
        "description": f"Scenario {number} drawn of seed {seed} for {setup}.",
        "target": engine,
        "seed": rng.getrandbits(31),
        "engine": given | layout,
        "workload": groups(rng, page if page > LONGEST_PROMPT else 0),
        "arms": {"drawn": {}},
        "limits": {"max_steps": 3000, "timeout_s": 300},
    }


def compared(files: Sequence[Path], relation: str, target: str) -> list[tuple[Path, str, int]]:
    """Of each file, whether several ranks serve it as one does, and how many tokens were compared."""
    words = ["specdebug", "twins", *map(str, files), "--relation", relation, "--target", target, "--no-locate"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=False)
    try:
        document = json.loads(done.stdout)
        ones = [each["twins"][0] for each in document.get("scenarios", [document])]
    except (ValueError, LookupError):
        if len(files) > 1:  # which of them cannot be asked for shows one by one
            return [told for file in files for told in compared([file], relation, target)]
        return [(files[0], f"exit {done.returncode}: {done.stderr[-300:]}", 0)]
    return [(file, in_words(one), one["tokens"]) for file, one in zip(files, ones, strict=True)]


def in_words(twin: dict[str, Any]) -> str:
    """A twin's verdict, and why it is that."""
    parts = next((each["text"] for each in twin["breaks"]), "")
    return " ".join(filter(None, (twin["verdict"], twin["why"], parts)))


def compare_drawn(setup: str, args: argparse.Namespace, pool: ThreadPoolExecutor) -> None:
    """Draw, compare and tell; the files of those that do not hold stay."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"ranks-{setup}-"))
    files = [folder / f"{number}.yaml" for number in range(args.drawn)]
    for number, file in enumerate(files):
        file.write_text(yaml.safe_dump(drawn(setup, args.seed, number), sort_keys=False))
    rows = [files[at : at + TOGETHER] for at in range(0, len(files), TOGETHER)]
    ended = pool.map(lambda row: compared(row, SETUPS[setup][0], args.target), rows)
    told = [one for row in ended for one in row]
    print(f"{setup}: {args.drawn} drawn; {dict(Counter(words.split()[0] for _, words, _ in told))}; "
          f"{sum(tokens for *_, tokens in told)} tokens; {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    for file, words, _ in told:
        if words == "holds":
            file.unlink()
        else:
            print(f"  {file}: {words}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="+", help="of scenarios/ranks; with --drawn: tp, dp, pd, vllm")
    parser.add_argument("--target", required=True)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="of replay, such as --device cuda")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        for name in args.scenarios:
            if args.drawn:
                compare_drawn(name, args, pool)
                continue
            for fault in args.fault or [None]:
                began = time.monotonic()
                arms = list(pool.map(one, [command(name, args, fault)] * args.runs))
                hashes, outcomes = Counter(each["trace_hash"] for each in arms), Counter(map(told, arms))
                traces = [each.get("rank_traces", {}) for each in arms]
                ranks = {rank: len({each.get(rank) for each in traces}) for rank in sorted({*chain(*traces)})}
                if args.runs:
                    print(f"{name} {fault or 'sound'}: {len(hashes)} hashes, by rank {ranks}; {dict(outcomes)}; "
                          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
                if args.kills:
                    ends = pool.map(killed, [command(name, args, fault)] * args.kills, range(args.kills))
                    print(f"{name}: {args.kills} kills: {dict(Counter(ends))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
