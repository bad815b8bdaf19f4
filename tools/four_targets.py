"""Run shipped scenarios on our engine, on SGLang and on vLLM, and lay tokens and accept lengths beside ours.

    python tools/four_targets.py                                   # every scenario, on every target
    python tools/four_targets.py chunk_tail --target vllm==0.32.0  # one of them on one target
    python tools/four_targets.py --keep runs.jsonl                 # what that file has is not run again

The first arm of each scenario, which reverts nothing, runs by ``specdebug replay``, one at a time; what the scenario
says is not run on a target is not. Of each greedy request the output tokens are compared, and of those with drafts the
accept lengths, by their size, since a server may tell how many there were of each and not when. A request whose output
ends with the target's context is compared as far as it goes. Releases come from ``specdebug engines install``. Exit
code 1 if a run ends otherwise than its scenario expects there, or passes with other tokens or accept lengths than ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import Scenario
from specdebug.targets.settings import parse_target

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
OURS = "embedded"
LIMIT_S = "1800"
"""Of a run, in place of its scenario's: where kernels are interpreted a batch of many requests takes seconds a step."""
TARGETS = ("sglang==0.5.13", "sglang==0.5.23", "vllm==0.32.0")


@dataclass(frozen=True)
class Ran:
    """What came of a scenario on a target. ``requests``: output tokens and accept lengths by id. ``why``: that it could
    not be run there, or came to nothing, in words."""

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


def run(scenario: Scenario, target: str) -> Ran:
    """Replay the first arm of a scenario on a target."""
    name, arm = scenario.path.stem, next(iter(scenario.arms))
    if (why := scenario.on(parse_target(target)).why_not(arm)) is not None:
        return Ran(name, target, why=why)
    words = [sys.executable, "-m", "specdebug", "replay", str(scenario.path), "--arm", arm, "--target", target]
    words += ["--json", "--no-locate", "--timeout", LIMIT_S]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.stdout:
        return Ran(name, target, why=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "said nothing")
    (told,) = json.loads(done.stdout)["arms"]
    kept = ("group", "output_ids", "accept_lengths", "finish_reason")
    requests = {one["rid"]: {key: one[key] for key in kept} for one in told["requests"]}
    why = told["detail"] if told["verdict"] == "unknown" else ""
    return Ran(name, target, told["verdict"], told["signature"], told["metrics"]["wall_s"], why, requests)


def beside(scenario: Scenario, ours: Ran, theirs: Ran) -> Beside:
    """Compare greedy requests that neither engine was told to abort; accept lengths, of those that are drafted for."""
    groups = {group.id: group for group in scenario.workload}
    counts = Counter(dict.fromkeys(("tokens", "tokens_of", "accepted", "accepted_of"), 0))
    for rid, one in ours.requests.items():
        group, other = groups[one["group"]], theirs.requests.get(rid)
        if group.temperature or group.abort is not None or other is None:
            continue
        cut = is_cut(one, other)
        counts["tokens_of"] += 1
        counts["tokens"] += cut or one["output_ids"] == other["output_ids"]
        if group.speculative and not cut:
            counts["accepted_of"] += 1
            counts["accepted"] += sorted(one["accept_lengths"]) == sorted(other["accept_lengths"])
    return Beside(**counts)


def is_cut(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return True if an output is the beginning of ours, and ends because there may be no more."""
    length, whole = len(theirs["output_ids"]), ours["output_ids"]
    ends = (ours["finish_reason"], theirs["finish_reason"]) == ("length", "length")
    return ends and 0 < length < len(whole) and whole[:length] == theirs["output_ids"]


def cell(scenario: Scenario, ours: Ran, theirs: Ran) -> str:
    """A run in the table."""
    if not theirs.verdict:
        return f"not run: {theirs.why}"
    said = theirs.verdict if theirs.signature is None else f"{theirs.verdict} `{theirs.signature}`"
    if theirs.why:
        said += f": {theirs.why}"
    found = beside(scenario, ours, theirs)
    if theirs.target == OURS or not found.tokens_of:
        return said
    return f"{said}; {found.tokens} of {found.tokens_of}, {found.accepted} of {found.accepted_of}"


def table(scenarios: Sequence[Scenario], targets: Sequence[str], runs: Mapping[tuple[str, str], Ran]) -> list[str]:
    """The answer in Markdown: verdict; requests with the same tokens, requests with the same accept lengths."""
    lines = [f"| scenario | {' | '.join((OURS, *targets))} |", f"|{'---|' * (len(targets) + 2)}"]
    for scenario in scenarios:
        name = scenario.path.stem
        cells = (cell(scenario, runs[name, OURS], runs[name, target]) for target in (OURS, *targets))
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def wrong(scenario: Scenario, ours: Ran, theirs: Ran) -> bool:
    """Return True if a run did not end as its scenario expects there, or passed with other tokens than ours."""
    there = scenario.on(parse_target(theirs.target))
    arm = next(iter(there.arms))
    if not theirs.verdict:
        return there.why_not(arm) is None
    expected = there.expectation_of(arm)
    met = expected is None or expected.met_by(theirs.verdict, theirs.signature)
    return not met or (theirs.verdict == "pass" and not beside(scenario, ours, theirs).same)


def kept(path: Path | None) -> dict[tuple[str, str], Ran]:
    """The runs of an earlier call."""
    if path is None or not path.exists():
        return {}
    read = (Ran(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {each.key: each for each in read}


def keep(path: Path | None, ran: Ran) -> None:
    """Tell of a run, and add it to the file."""
    what = " ".join(filter(None, (ran.verdict or "not run", ran.signature, ran.why)))
    print(f"{ran.scenario} on {ran.target}: {what}", file=sys.stderr)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(ran)) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="names of shipped scenarios; all, if none is")
    parser.add_argument("--target", action="append", help=f"beside ours; {', '.join(TARGETS)} if none is named")
    parser.add_argument("--keep", type=Path, help="file of runs, a line each, that is added to and not run again")
    chosen = parser.parse_args(arguments)
    names = chosen.scenarios or sorted(path.stem for path in SCENARIOS.glob("*.yaml"))
    scenarios = [load_scenario(SCENARIOS / f"{name}.yaml") for name in names]
    targets, runs = chosen.target or list(TARGETS), kept(chosen.keep)
    for target in (OURS, *targets):
        for scenario in scenarios:
            key = (scenario.path.stem, target)
            if key not in runs:
                runs[key] = run(scenario, target)
                keep(chosen.keep, runs[key])
    print("\n".join(table(scenarios, targets, runs)))
    pairs = ((scenario, target) for scenario in scenarios for target in (OURS, *targets))
    return int(any(wrong(one, runs[one.path.stem, OURS], runs[one.path.stem, target]) for one, target in pairs))


if __name__ == "__main__":
    raise SystemExit(main())
