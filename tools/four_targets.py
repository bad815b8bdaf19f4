"""Run shipped scenarios on our engine, on SGLang and on vLLM, and lay tokens and accept lengths beside ours.

    python tools/four_targets.py                                   # every scenario, on every target
    python tools/four_targets.py chunk_tail --target vllm==0.32.0  # one of them on one target
    python tools/four_targets.py --keep runs.jsonl                 # what that file has is not run again

The arm with all fixes of each scenario runs by ``specdebug replay``, one at a time. Of each greedy request the output
tokens are compared, and of those with drafts the accept lengths, in the order of their size, since a server may tell
how many there were of each and not when. Releases come from ``specdebug engines install``. Exit code 1 if a run fails
otherwise than its scenario expects there, or a request differs on a target where its scenario passes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdebug.scenario.grammar import Scenario
from specdebug.scenario.load import load_scenario

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
OURS = "embedded"
TARGETS = ("sglang==0.5.13", "sglang==0.5.23", "vllm==0.32.0")


@dataclass(frozen=True)
class Ran:
    """What came of a scenario on a target. ``requests``: output tokens and accept lengths by id. ``why``: that it could
    not be run there, in words; empty of a run."""

    scenario: str
    target: str
    verdict: str = ""
    signature: str | None = None
    wall_s: float = 0.0
    why: str = ""
    requests: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.scenario, self.target


@dataclass(frozen=True)
class Beside:
    """A run beside that of our engine: of how many requests tokens and accept lengths are the same."""

    tokens: int = 0
    tokens_of: int = 0
    accepted: int = 0
    accepted_of: int = 0

    @property
    def same(self) -> bool:
        return (self.tokens, self.accepted) == (self.tokens_of, self.accepted_of)


def run(name: str, target: str) -> Ran:
    """Replay the first arm of a scenario on a target."""
    scenario = load_scenario(SCENARIOS / f"{name}.yaml")
    arm = next(iter(scenario.arms))
    words = [
        sys.executable,
        "-m",
        "specdebug",
        "replay",
        str(scenario.path),
        "--arm",
        arm,
        "--target",
        target,
        "--json",
    ]
    done = subprocess.run([*words, "--no-locate"], capture_output=True, text=True, check=False)
    if not done.stdout:
        return Ran(name, target, why=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "said nothing")
    (told,) = json.loads(done.stdout)["arms"]
    requests = {one["rid"]: {key: one[key] for key in ("group", "output_ids", "accept_lengths", "finish_reason")}
                for one in told["requests"]}  # fmt: skip
    why = told["detail"] if told["verdict"] == "unknown" else ""
    wall_s = told["metrics"]["wall_s"]
    return Ran(name, target, told["verdict"], told["signature"], wall_s, why, requests)


def beside(scenario: Scenario, ours: Ran, theirs: Ran) -> Beside:
    """Compare greedy requests that neither engine was told to abort; accept lengths, of those that are drafted for."""
    groups = {group.id: group for group in scenario.workload}
    counts = {"tokens": 0, "tokens_of": 0, "accepted": 0, "accepted_of": 0}
    for rid, one in ours.requests.items():
        group, other = groups[one["group"]], theirs.requests.get(rid)
        if group.temperature or group.abort is not None or other is None:
            continue
        counts["tokens_of"] += 1
        counts["tokens"] += one["output_ids"] == other["output_ids"]
        if group.speculative:
            counts["accepted_of"] += 1
            counts["accepted"] += sorted(one["accept_lengths"]) == sorted(other["accept_lengths"])
    return Beside(**counts)


def cell(scenario: Scenario, ours: Ran, theirs: Ran) -> str:
    """A run in the table."""
    if not theirs.verdict:
        return f"not run: {theirs.why}"
    said = theirs.verdict if theirs.signature is None else f"{theirs.verdict} `{theirs.signature}`"
    if theirs.why:
        said += f": {theirs.why}"
    if theirs.target == OURS:
        return said
    found = beside(scenario, ours, theirs)
    if not found.tokens_of:
        return f"{said}; sampled"
    return f"{said}; {found.tokens} of {found.tokens_of}, {found.accepted} of {found.accepted_of}"


def table(names: Iterable[str], targets: Sequence[str], runs: Mapping[tuple[str, str], Ran]) -> list[str]:
    """The answer in Markdown: verdict; requests with the same tokens, requests with the same accept lengths."""
    lines = [f"| scenario | {' | '.join((OURS, *targets))} |", f"|{'---|' * (len(targets) + 2)}"]
    for name in names:
        scenario, ours = load_scenario(SCENARIOS / f"{name}.yaml"), runs[name, OURS]
        cells = (cell(scenario, ours, runs[name, target]) for target in (OURS, *targets))
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def kept(path: Path | None) -> dict[tuple[str, str], Ran]:
    """The runs of an earlier call."""
    if path is None or not path.exists():
        return {}
    read = (Ran(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {each.key: each for each in read}


def wrong(scenario: Scenario, ours: Ran, theirs: Ran) -> bool:
    """Return True if a run is not as its scenario expects, or its tokens are others than ours although it passed."""
    if not theirs.verdict:
        return False
    return not theirs.met or (theirs.verdict == "pass" and not beside(scenario, ours, theirs).same)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="names of shipped scenarios; all, if none is")
    parser.add_argument("--target", action="append", help=f"beside ours; {', '.join(TARGETS)} if none is named")
    parser.add_argument("--keep", type=Path, help="file of runs, a line each, that is added to and not run again")
    chosen = parser.parse_args(arguments)
    names = chosen.scenarios or sorted(path.stem for path in SCENARIOS.glob("*.yaml"))
    targets, runs = chosen.target or list(TARGETS), kept(chosen.keep)
    for target in (OURS, *targets):
        for name in names:
            if (name, target) in runs:
                continue
            ran = runs[name, target] = run(name, target)
            print(f"{name} on {target}: {ran.verdict or 'not run'} {ran.signature or ran.why}", file=sys.stderr)
            if chosen.keep is not None:
                with chosen.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(ran)) + "\n")
    print("\n".join(table(names, targets, runs)))
    loaded = {name: load_scenario(SCENARIOS / f"{name}.yaml") for name in names}
    return int(any(wrong(loaded[name], runs[name, OURS], runs[name, target]) for name in names for target in targets))


if __name__ == "__main__":
    raise SystemExit(main())
