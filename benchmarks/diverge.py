"""How well `specdebug diverge` does what it says: planted faults found, rounding told apart, and what recording costs.

    python benchmarks/diverge.py --planted 500     one changed element each, at a place drawn at random
    python benchmarks/diverge.py --rounding 100    the same requests in batches of other sizes, a seed each
    python benchmarks/diverge.py --cost            two engines side by side, one of them recorded

Everything runs in this process, on the CPU, with the checkpoints that come with the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import random
import statistics
import tempfile
import time
from collections import Counter
from operator import truediv
from pathlib import Path
from typing import Any

import torch

from specdebug import async_probe
from specdebug.diverge.align import by_request, in_lockstep
from specdebug.diverge.recorder import Recorder
from specdebug.diverge.stream import Step, Writer, read
from specdebug.diverge.values import Place, difference, is_rounding, kept
from specdebug.harness.arm import run_arm
from specdebug.harness.library import Library
from specdebug.harness.probe_packs import activate
from specdebug.harness.replay import ArmRun
from specdebug.harness.scenario_model import Scenario
from specdebug.targets.embedded import keep_models

BRANCHES, NODES = 2, 6
SCENARIO = {
    "name": "diverge-benchmark",
    "engine": {
        "model": "tiny",
        "page_size": 4,
        "context_length": 128,
        "max_running_requests": 4,
        "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": BRANCHES, "num_draft_tokens": NODES},
        "cuda_graph": {"max_bs": 4, "capture_bs": [4]},
        "memory": {"num_slots": 512, "fill": "zeros"},
    },
    "workload": [
        {"id": "r", "requests": 3, "prompt": {"corpus": "stdlib", "tokens": [16, 24]}, "max_new_tokens": 12},
        {"id": "late", "prompt": {"corpus": "stdlib", "tokens": 20}, "max_new_tokens": 8, "arrive": {"step": 4}},
    ],
    "oracles": {"lossless": False, "draft_kv": False},
    "arms": {
        "base": {},
        "one": {"engine": {"max_running_requests": 1, "cuda_graph": {"max_bs": 1, "capture_bs": [1]}}},
    },
}

ROWS = (
    ("draft.bonus", 1),
    ("draft.out_cache_loc", BRANCHES),
    ("draft_graph.replay.*", 1),
    ("draft.forward.*", BRANCHES),
    ("draft.select.choice", 1),
    ("draft.organize.*", 1),
    ("tree.*", 1),
    ("verify.*", NODES),
    ("accept.predict", NODES),
    ("accept.*", 1),
    ("commit.compact.rows", 1),
    ("draft_extend.input_ids", NODES),
    ("draft_extend.features", NODES),
    ("draft_extend_graph.replay.input_ids", NODES),
    ("draft_extend_graph.replay.accept_lengths", 1),
    ("draft_extend.logits", 1),
    ("draft_extend.topk*", 1),
)
"""Rows of a request in a decode step, said independently of what is measured. Other sites are not planted at."""


class Quiet:
    """A sink for events that nobody looks at."""

    def emit(self, event: str, **fields: Any) -> None:
        if event in ("usage", "impossible"):
            raise RuntimeError(f"{event}: {fields}")


@dataclasses.dataclass
class Plant:
    """Changes one element at a call of a step, and says which."""

    step: int
    call: int
    rng: random.Random
    row: int = -1
    site: str = ""
    _now: int = 0
    _calls: int = 0

    def attach(self, engine: Any) -> None:
        inner = engine.step

        def step() -> Any:
            self._now, self._calls = self._now + 1, 0
            return inner()

        engine.step = step
        async_probe.on_site(self._at_site)

    def _at_site(self, call: async_probe.SiteCall) -> None:
        here, self._calls = self._calls, self._calls + 1
        if (self._now, here) != (self.step, self.call):
            return
        index = tuple(self.rng.randrange(size) for size in call.tensor.shape)
        self.row, self.site = index[0], call.site
        with torch.inference_mode():
            if call.tensor.is_floating_point():
                bits = call.tensor[index].view(torch.int32) ^ (1 << self.rng.randrange(31))
                call.tensor[index] = bits.view(torch.float32)
            else:
                call.tensor[index] += self.rng.choice((-1, 1))


def record(
    scenario: Scenario,
    folder: Path,
    arm: str = "base",
    seed: int = 0,
    plant: Plant | None = None,
    keep: list[Place] | None = None,
    by_request: bool = False,
) -> list[Step]:
    """The steps of one arm; with ``keep`` its tensors are written to ``folder`` instead."""
    file = folder / "hashes"
    recorders = []

    def built(loop: Any) -> None:
        if plant is not None:
            plant.attach(loop.engine)
        recorders.append(Recorder(None if keep else Writer(file), keep or (), folder, by_request=by_request))
        recorders[0].attach(loop.engine)

    library = Library()
    run = ArmRun(arm, scenario, arm, seed, library.packs(scenario.probes_of(arm)))
    try:
        run_arm(run.job(library).payload, Quiet(), built)
    finally:
        for recorder in recorders:
            recorder.finish()
        async_probe.on_site(None)
        async_probe.configure("off")
    if keep:
        return []
    steps = read(file)
    file.unlink()
    return steps


def planted(scenario: Scenario, folder: Path, count: int) -> None:
    """Plant faults one by one and compare the first divergence with what was planted."""
    base = record(scenario, folder)
    assert not list(in_lockstep(base, record(scenario, folder))), "two equal runs differ"
    decodes = [step for step in base if not any(call.site == "target_prefill.input_ids" for call in step.calls)]
    places = [(step, call, d) for step in decodes for call, d in enumerate(step.calls) if per_request(d.site)]
    draws = [random.Random(number) for number in range(count)]
    chosen = [rng.choice(places) for rng in draws]
    kept_in = [folder / "base", folder / "planted"]
    for each in kept_in:
        each.mkdir()
    record(scenario, kept_in[0], keep=sorted({(step.number, call) for step, call, _ in chosen}))
    exact, wrong = 0, Counter[str]()
    for rng, (step, call, descriptor) in zip(draws, chosen, strict=True):
        state = rng.getstate()
        plant = Plant(step.number, call, rng)
        found = next(in_lockstep(base, record(scenario, folder, plant=plant)), None)
        owner = plant.row // (per_request(descriptor.site) or 1)
        truth = (step.number, call, plant.site, step.rids[owner] if owner < len(step.rids) else None)
        answer: Any = None
        if found is not None and found.right is not None:
            place = (found.right.step, found.right.call)
            rng.setstate(state)
            record(scenario, kept_in[1], plant=Plant(step.number, call, rng), keep=[place])
            one, other = (kept(each, place) for each in kept_in)
            seen = None if one is None or other is None else difference(one, other)
            who = step.owner_of_row(found.right, seen.index[0]) if seen is not None and seen.index else "?"
            answer = (found.step, found.right.call, found.site, who)
        if answer == truth:
            exact += 1
        else:
            wrong[f"{truth} answered {answer}"] += 1
    print(f"planted faults: step, request and site exact in {exact} of {count} ({100 * exact / count:.1f}%)")
    for text in wrong:
        print(f"  {text}")


def per_request(site: str) -> int | None:
    """Rows of a request there, None for a site that is not planted at."""
    return next((rows for pattern, rows in ROWS if fnmatch.fnmatchcase(site, pattern)), None)


def rounding(scenario: Scenario, folder: Path, count: int) -> None:
    """Serve the same requests in batches of up to four and one by one, and see what is taken for a fault."""
    shares, taken, runs, widest = 0, 0, 0, 0.0
    for seed in range(count):
        streams = [record(scenario, folder, arm, seed, by_request=True) for arm in ("base", "one")]
        soft, hard = [], 0
        for each in by_request(*streams):
            if not each.soft:
                hard = 1
                break
            soft.append(each)
        tensors = []
        for side, arm in enumerate(("base", "one")):
            kept_in = folder / arm
            kept_in.mkdir(exist_ok=True)
            parts = [(each.left, each.right)[side] for each in soft]
            record(scenario, kept_in, arm, seed, keep=sorted({(p.step, p.call) for p in parts if p is not None}))
            tensors.append(
                [kept(kept_in, (p.step, p.call))[p.first_row : p.first_row + p.rows] for p in parts]  # type: ignore
            )
        seen = [(difference(a, b), each) for a, b, each in zip(*tensors, soft, strict=True)]
        gaps = [(found.gap, is_rounding(found, each.right.descriptor.dtype)) for found, each in seen if found]
        widest = max([widest, *(gap for gap, fine in gaps if fine)])
        shares += len(gaps)
        wrong = hard or any(not fine for _, fine in gaps)
        taken += bool(wrong)
        runs += 1
        if wrong:
            print(f"  seed {seed}: taken for a fault ({'a discrete value' if hard else 'too wide'})")
        for arm in ("base", "one"):
            for file in (folder / arm).iterdir():
                file.unlink()
    print(
        f"rounding: taken for a fault in {taken} of {runs} runs; {shares} shares differ, "
        f"at most by {widest:.1e} of a row's largest value"
    )


def cost(folder: Path, steps: int, *, by_request: bool) -> None:
    """Two engines take the same steps in turn; one of them is recorded."""
    from specdebug.engine import Engine, EngineConfig, SamplingParams

    activate(Library().packs(("default",)), None)
    options = {**SCENARIO["engine"], "context_length": 512, "memory": {"num_slots": 4096}}  # type: ignore[dict-item]
    engines = [Engine(EngineConfig.from_dict(options)) for _ in range(2)]
    recorder = Recorder(Writer(folder / "cost"), by_request=by_request)
    recorder.attach(engines[1])
    hook = async_probe.site_hook()
    async_probe.on_site(None)
    spent: list[list[float]] = [[], []]
    for number in range(steps):
        for side in (0, 1) if number % 2 else (1, 0):
            engine = engines[side]
            if not engine.has_work:
                for _ in range(4):
                    rid = f"r{len(engine.requests)}"
                    engine.add_request(rid, list(range(9, 40)), SamplingParams(max_new_tokens=200))
            if side == 1:
                async_probe.on_site(hook)
            began = time.process_time()
            engine.step()
            spent[side].append(time.process_time() - began)
            async_probe.on_site(None)
    recorder.finish()
    size = (folder / "cost").stat().st_size
    (folder / "cost").unlink()
    low, middle, high = (100 * (ratio - 1) for ratio in statistics.quantiles(map(truediv, spent[1], spent[0]), n=4))
    print(
        f"cost, a hash {'a request' if by_request else 'a tensor'}: {1e3 * statistics.median(spent[0]):.2f} ms a step, "
        f"recorded {1e3 * statistics.median(spent[1]):.2f} ms: {middle:+.1f}% (quartiles of pairs {low:+.1f} and "
        f"{high:+.1f}%; in all {100 * (sum(spent[1]) / sum(spent[0]) - 1):+.1f}%); "
        f"{size / steps * 10_000 / 2**20:.1f} MiB per 10,000 steps ({steps} measured, batch of 4)",
        flush=True,
    )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planted", type=int, default=0, metavar="N")
    parser.add_argument("--rounding", type=int, default=0, metavar="N")
    parser.add_argument("--cost", type=int, nargs="?", const=400, default=0, metavar="STEPS")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    scenario = Scenario.from_dict(SCENARIO)
    for arm in scenario.arms:
        keep_models(scenario.engine_of(arm))
    with tempfile.TemporaryDirectory() as folder:
        if chosen.planted:
            planted(scenario, Path(folder), chosen.planted)
        if chosen.rounding:
            rounding(scenario, Path(folder), chosen.rounding)
        if chosen.cost:
            for by_request in (False, True):
                cost(Path(folder), chosen.cost, by_request=by_request)


if __name__ == "__main__":
    main()
