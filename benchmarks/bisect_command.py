"""Bisect a command that fails in two ways: is the culprit named although unrelated failures are mixed in?

    python benchmarks/bisect_command.py [--seeds 10] [--rates 0.3,0.5,1] [--noise 20]

The command is a shell script. With a fix reverted it prints a traceback that ends in what SGLang says of NaN in logits,
at a rate; whatever is reverted, so many per cent of its runs end with a time-out of the network first. Both leave with
exit code 1. *Read* searches read its output, as ``specdebug bisect -- CMD`` does; for *unread* ones it is thrown away,
so that every failure is ``exit:1``. Each seed has trials and a culprit of its own. Needs no GPU; a few minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.command import CommandSource, Takes
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.search import CulpritSearch, Findings, Standing
from specdebug.patching.toggles import Registry
from specdebug.scenario.library import Library
from specdebug.search.bisect import Bisector, openings

SCRIPT = """#!/bin/bash
RANDOM=$(( SPECDEBUG_TRIAL_SEED % 32768 ))
first=$(( RANDOM % 100 )) second=$(( RANDOM % 100 ))
if (( first < NOISE )); then
  echo 'Traceback (most recent call last):'
  echo 'httpx.ReadTimeout: The read operation timed out'
  exit 1
fi
if [[ ",$SGLANG_DEBUG_REVERT_PR," == *",CULPRIT,"* ]] && (( second < RATE )); then
  echo '[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):'
  echo 'ValueError: Detected errors during sampling! NaN in the logits.'
  exit 1
fi
"""
MAX_TRIALS = 1000


class Silent:
    """Watches without a word."""

    def moved(self, standing: Standing) -> None:
        """Says nothing."""

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None:
        """Says nothing."""


def find(registry: Registry, culprit: str, rate: int, noise: int, seed: int, *, read: bool) -> Findings:
    """One search over all fixes, in a folder of its own. ``rate`` and ``noise`` are per cents."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            text = SCRIPT.replace("CULPRIT", culprit).replace("RATE", str(rate)).replace("NOISE", str(noise))
            job = Path("job.sh")
            job.write_text(text, encoding="utf-8")
            job.chmod(0o755)
            command = ["./job.sh"] if read else ["sh", "-c", "./job.sh >/dev/null"]
            source = CommandSource(command, registry, takes=Takes.SET)
            names = [candidate.id for candidate in source.candidates]
            with Journal(Path("journal.sqlite"), source.identity, "benchmark") as journal:
                search = CulpritSearch(
                    source.candidates,
                    lambda: Bisector(names, confidence=0.95, seed=seed, apart=source.apart),
                    opening=openings(names, source.apart),
                    max_trials=MAX_TRIALS,
                )
                return Campaign(source, journal, seed, MAX_TRIALS).search(search, Silent())
        finally:
            os.chdir(here)


def said(findings: Findings, culprit: str) -> str:
    """``right``, ``wrong: ...``, ``undecided``."""
    if findings.answer is None:
        return "undecided"
    named = "+".join(sorted(findings.answer.culprits)) or "no culprit"
    return "right" if named == culprit else f"wrong: {named}"


def main() -> None:
    """Print a row for each rate, read and unread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="Searches a row.")
    parser.add_argument("--rates", default="0.3,0.5,1", help="How often it fails with the fix reverted.")
    parser.add_argument("--noise", type=int, default=20, help="Per cent of unrelated failures.")
    wanted = parser.parse_args()
    registry = Library().registry
    fixes = [str(toggle.pr) for toggle in registry.toggles.values()]
    print("| output | rate | right | wrong | undecided | followed | trials, median (worst) |")
    print("|---|---|---|---|---|---|---|")
    for read in (True, False):
        for rate in (round(100 * float(one)) for one in wanted.rates.split(",")):
            answers: Counter[str] = Counter()
            followed: Counter[str] = Counter()
            trials = []
            for seed in range(wanted.seeds):
                culprit = fixes[seed % len(fixes)]
                findings = find(registry, culprit, rate, wanted.noise, seed, read=read)
                answer = said(findings, culprit)
                answers[answer.partition(":")[0]] += 1
                followed[findings.standing.followed or "nothing"] += 1
                trials.append(findings.standing.trials)
                print(f"seed {seed}, {culprit} at {rate}%: {answer} after {trials[-1]}", file=sys.stderr, flush=True)
            counts = " | ".join(str(answers[kind]) for kind in ("right", "wrong", "undecided"))
            names = ", ".join(f"{name} ({count})" for name, count in followed.most_common())
            spread = f"{statistics.median(trials):.0f} ({max(trials)})"
            print(f"| {'read' if read else 'unread'} | {rate}% | {counts} | {names} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
