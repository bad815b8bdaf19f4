"""Every arm of every shipped scenario, on one device: whether each did what its file expects, and what the CPU does.

``python benchmarks/gpu/scenarios.py OUT [--device cuda] [--dtype float32] [--backend PLAN ...] [--same-as-cpu]``.
Writes ``OUT/scenarios-<what was asked for>.json``. With ``--same-as-cpu`` the same arms also run on the CPU, and
verdict and signature must be the same. An arm whose reverted fix only exists in another plan than ``--backend`` keeps
its own, in parentheses. Exit code 1 when an arm did something else than expected, or than the CPU; 125 when none did,
but this machine could not run one of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specdebug.base import interrupts
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, plan, run_arms
from specdebug.campaign.loops.verify import exists_in
from specdebug.campaign.preload import PRELOAD
from specdebug.report.progress import RunProgress
from specdebug.report.replay import arm_document
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool

CPU = "cpu"


def arm_runs(
    library: Library, names: Sequence[str], device: str, dtype: str | None, plans: Sequence[str]
) -> list[ArmRun]:
    """All arms of the scenarios, once for each plan (none: the scenarios' own); arms that keep a plan run once."""
    runs: dict[str, ArmRun] = {}
    options = {"device": device} | ({"dtype": dtype} if dtype else {})
    for scenario in [library.scenario(name) for name in names] if names else library.scenarios():
        for backend in plans or (None,):
            for run in plan(scenario, Choices(engine=options), library):
                over, shown = dict(options), ""
                if backend and fits(run, backend):
                    over["attention_backend"] = shown = backend
                changed = dataclasses.replace(run.scenario, overrides=over)
                key = f"{device}: {scenario.name} {run.arm} {shown or f'({run.shape.attention_backend})'}"
                runs[key] = dataclasses.replace(run, key=key, scenario=changed)
    return list(runs.values())


def fits(run: ArmRun, plan: str) -> bool:
    """Return True if the fixes that an arm reverts exist in a plan, as its scenario shows them."""
    here = run.scenario.path.stem if run.scenario.path else ""
    shown = (
        next((toggle.shown_by(each) for each in toggle.detections if each.scenario == here), toggle)
        for toggle in run.toggles
    )
    return all(exists_in(toggle, plan) for toggle in shown)


def without_device(key: str) -> str:
    """What an arm is called on any device."""
    return key.partition(": ")[2]


def differences(found: Sequence[ArmResult], expected: Sequence[ArmResult]) -> list[str]:
    """One line for each arm whose verdict or signature is not that of its namesake, or that has none.

    Of one that this machine could not run nothing is said, here or there.
    """
    theirs = {without_device(result.run.key): _ending(result) for result in expected}
    unavailable = {without_device(r.run.key) for r in (*found, *expected) if r.outcome.unavailable}
    said = []
    for result in found:
        name = without_device(result.run.key)
        if name not in unavailable and theirs.get(name) != _ending(result):
            said.append(f"{name}: {_ending(result)}, on the CPU {theirs.get(name, 'not run')}")
    return said


def _ending(result: ArmResult) -> str:
    outcome = result.outcome
    return f"{outcome.verdict} {outcome.signature}" if outcome.signature else outcome.verdict


def table(results: Sequence[ArmResult]) -> Table:
    """One row an arm."""
    shown = Table()
    for name in ("arm", "ended", "expected", "near-ties", "widest, of what is allowed"):
        shown.add_column(name, overflow="fold")
    for result in results:
        tie = max((tie for _, tie in result.outcome.ties), key=lambda tie: tie.used, default=None)
        margin = f"{tie.margin:.2g} of {tie.allowed:.2g}" if tie is not None else ""
        met = "yes" if result.met else f"no: {result.outcome.detail}"
        shown.add_row(result.run.key, _ending(result), met, str(len(result.outcome.ties)), margin)
    return shown


def exit_code(results: Sequence[ArmResult], apart: Sequence[str], interrupted: bool) -> int:
    """What the module's documentation says; 130 after a Ctrl-C."""
    if interrupted:
        return interrupts.exit_code()
    if apart or any(result.met is False and not result.outcome.unavailable for result in results):
        return EXIT_CODES["fail"]
    return EXIT_CODES["unknown" if any(result.outcome.unavailable for result in results) else "pass"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("scenarios", nargs="*", help="names; all unless given")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype")
    parser.add_argument("--backend", action="append", default=[], help="attention plan; repeatable")
    parser.add_argument("--same-as-cpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=0)
    options = parser.parse_args()
    if options.same_as_cpu and options.device == CPU:
        parser.error("--same-as-cpu compares another device with the CPU")
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=170, highlight=False, markup=False)
    library = Library()
    chosen = (options.dtype, options.backend)
    runs = arm_runs(library, options.scenarios, options.device, *chosen)
    if options.same_as_cpu:  # in turns, so that neither the device nor the cores wait for the other
        both = zip(runs, arm_runs(library, options.scenarios, CPU, *chosen), strict=True)
        runs = [run for pair in both for run in pair]
    with WorkerPool(options.jobs, PRELOAD) as pool, RunProgress(sys.stderr) as watcher:
        results, interrupted = run_arms(pool, library, runs, progress=watcher)
    console.print(table(results))
    name = "-".join(["scenarios", options.device, *([options.dtype] if options.dtype else []), *options.backend])
    documents = [{"key": result.run.key, **arm_document(result)} for result in results]
    (options.out / f"{name}.json").write_text(json.dumps(documents, indent=1) + "\n")
    apart = []
    if options.same_as_cpu:
        on_cpu = [result for result in results if result.run.shape.device == CPU]
        elsewhere = [result for result in results if result.run.shape.device != CPU]
        apart = differences(elsewhere, on_cpu)
        console.print("\n".join([*apart, f"{len(apart)} of {len(elsewhere)} arms end otherwise than on the CPU"]))
    met = sum(result.met is not False for result in results)
    ties = sum(len(result.outcome.ties) for result in results)
    console.print(f"{met} of {len(runs)} arms as expected, {ties} near-ties")
    return exit_code(results, apart, interrupted)


if __name__ == "__main__":
    sys.exit(main())
