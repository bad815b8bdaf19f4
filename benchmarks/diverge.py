"""How well `specdebug diverge` does what it says: planted faults found, rounding told apart, and what recording costs.

    python benchmarks/diverge.py --planted 500     one changed element each, at a place drawn at random
    python benchmarks/diverge.py --rounding 300    pairs of arms whose batches have other sizes, padding or chunks
    python benchmarks/diverge.py --cost            two engines side by side, one of them recorded

`--jobs N` processes share faults and pairs, `--dtype` is the engines', `--device cuda` compares pairs on a GPU, graphs
on. With the checkpoints that come with the package. Faults and pairs are numbered: `--first 17 --planted 1` is the one
that a run called 17.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import io
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from operator import truediv
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from specdebug import async_probe
from specdebug.campaign.loops.replay import ArmRun
from specdebug.diverge.align import in_lockstep
from specdebug.diverge.recorder import HashRecorder, Keeper, RunListener
from specdebug.diverge.recording import RecordedStep, Writer, read
from specdebug.diverge.rounding import Pairs, Place, judge
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.run.arm import run_arm
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.scenario.packs import activate
from specdebug.targets.embedded import TARGET

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
        "two": {"engine": {"max_running_requests": 2, "cuda_graph": {"max_bs": 2, "capture_bs": [2]}}},
        "padded": {"engine": {"cuda_graph": {"max_bs": 7, "capture_bs": [7]}}},
        "chunked": {"engine": {"chunked_prefill_size": 24}},
    },
}
OTHERS = ("one", "two", "padded", "chunked")
"""Arms that differ from the first in the shape of their batches only."""
SEEDS = 10
"""Faults are planted in runs of as many seeds."""

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
                size = 8 * call.tensor.element_size()
                bits = call.tensor[index].view(torch.int32 if size == 32 else torch.int16)
                call.tensor[index] = (bits ^ (1 << self.rng.randrange(size - 1))).view(call.tensor.dtype)
            else:
                call.tensor[index] += self.rng.choice((-1, 1))


class Recording(NamedTuple):
    """Puts in place what plants a fault, and behind it what records."""

    recorders: Sequence[RunListener]
    plant: Plant | None

    def building(self) -> None:
        for recorder in self.recorders:
            recorder.listen()

    def built(self, loop: Any) -> None:
        if self.plant is not None:
            self.plant.attach(loop.session.inside)
        for recorder in self.recorders:
            recorder.attach(loop.session.inside)


def record(
    scenario: Scenario,
    folder: Path,
    arm: str = "base",
    seed: int = 0,
    plant: Plant | None = None,
    keep: Mapping[Place, str] | None = None,
) -> list[RecordedStep]:
    """The steps of one arm. Tensors to ``keep`` are written to ``folder``."""
    file = folder / "hashes"
    recorders: list[RunListener] = [HashRecorder(Writer(file))]
    if keep:
        recorders.append(Keeper(keep, folder))
    library = Library()
    run = ArmRun(arm, scenario, arm, seed, library.packs(scenario.probes_of(arm)))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where a fault crashes the engine
            run_arm(run.job(library).payload, Quiet(), Recording(recorders, plant))
    finally:
        for recorder in recorders:
            recorder.finish()
        async_probe.on_site(None)
        async_probe.configure("off")
    steps = read(file)
    file.unlink()
    return steps


class Fault(NamedTuple):
    """One to be planted, by its number."""

    number: int
    step: RecordedStep
    call: int
    site: str
    state: Any

    @classmethod
    def drawn(cls, number: int, places: Sequence[tuple[RecordedStep, int, str]]) -> Fault:
        rng = random.Random(number)
        return cls(number, *rng.choice(places), rng.getstate())

    @property
    def place(self) -> Place:
        return self.step.number, self.call

    def plant(self) -> Plant:
        """What does it, once."""
        rng = random.Random()
        rng.setstate(self.state)
        return Plant(*self.place, rng)


def planted(scenario: Scenario, numbers: Sequence[int]) -> list[str]:
    """Plant faults one by one and compare the first divergence with what was planted: what was wrong, or nothing."""
    return [
        answer
        for seed in range(SEEDS)
        if (mine := [number for number in numbers if number % SEEDS == seed])
        for answer in planted_with(scenario, seed, mine)
    ]


def planted_with(scenario: Scenario, seed: int, numbers: Sequence[int]) -> Iterator[str]:
    """The same, in runs of one seed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        clean = record(scenario, folder, seed=seed)
        decodes = [step for step in clean if not any(call.site == "target_prefill.input_ids" for call in step.calls)]
        places = [(step, n, d.site) for step in decodes for n, d in enumerate(step.calls) if per_request(d.site)]
        faults = [Fault.drawn(number, places) for number in numbers]
        again = record(scenario, folder, seed=seed, keep={fault.place: fault.site for fault in faults})
        assert not list(in_lockstep(clean, again)), "two equal runs differ"
        for fault in faults:
            yield _answered(scenario, seed, fault, clean, folder)


def _answered(scenario: Scenario, seed: int, fault: Fault, clean: list[RecordedStep], folder: Path) -> str:
    damaged = folder / str(fault.number)
    damaged.mkdir()
    plant = fault.plant()
    found = next(in_lockstep(clean, record(scenario, damaged, seed=seed, plant=plant)), None)
    owner = plant.row // (per_request(fault.site) or 1)
    rids = fault.step.rids
    truth = (*fault.place, plant.site, rids[owner] if owner < len(rids) else None)
    answer: Any = None
    if found is not None and found.right is not None:
        there = (found.right.step, found.right.call)
        answer = (*there, found.site, found.owner)
    return "" if answer == truth else f"fault {fault.number} is {truth}, answered {answer}"


def per_request(site: str) -> int | None:
    """Rows of a request there, None for a site that is not planted at."""
    return next((rows for pattern, rows in ROWS if fnmatch.fnmatchcase(site, pattern)), None)


def rounding(scenario: Scenario, numbers: Sequence[int]) -> list[Judged]:
    """Serve the same requests in batches of up to four and otherwise, and see what is taken for a fault."""
    return [judged(scenario, number) for number in numbers]


class Judged(NamedTuple):
    """What is taken for a fault, if anything, and how much was rounding."""

    wrong: str
    shares: int
    widest: float
    parted: int


def judged(scenario: Scenario, number: int) -> Judged:
    """Compare two arms that differ in the shape of their batches."""
    seed, which = divmod(number, len(OTHERS))
    arms = ("base", OTHERS[which])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        streams = [record(scenario, folder, arm, seed) for arm in arms]

        @contextlib.contextmanager
        def look(pairs: Pairs) -> Iterator[tuple[Path, Path]]:
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
                for side, (arm, kept_in) in enumerate(zip(arms, (one, other), strict=True)):
                    parts = {part for pair in pairs if (part := pair[side]) is not None}
                    keep = {(part.step, part.call): part.descriptor.site for part in parts}
                    if keep:
                        record(scenario, Path(kept_in), arm, seed, keep=keep)
                yield Path(one), Path(other)

        config = EngineConfig.from_dict({"seed": seed, **scenario.engine_of("base")})
        first, values, _, found = judge(streams[0], streams[1], look, config)
    wrong = ""
    if first is not None:
        how = f"{values.left!r} and {values.right!r}, gap {values.gap:.1e}" if values is not None else first.text
        wrong = (
            f"pair {number} ({' and '.join(arms)}, seed {seed}): step {first.step}, {first.owner}, {first.site}: {how}"
        )
    return Judged(wrong, found.shares, found.widest, len(found.parted))


def cost(folder: Path, steps: int) -> None:
    """Two engines take the same steps in turn; one of them is recorded."""
    activate(Library().packs(("default",)), None)
    options = {**SCENARIO["engine"], "context_length": 512, "memory": {"num_slots": 4096, "fill": "zeros"}}  # type: ignore[dict-item]
    engines = [Engine(EngineConfig.from_dict(options)) for _ in range(2)]
    recorder = HashRecorder(Writer(folder / "cost"))
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
        f"cost: {1e3 * statistics.median(spent[0]):.2f} ms a step, "
        f"recorded {1e3 * statistics.median(spent[1]):.2f} ms: {middle:+.1f}% (quartiles of pairs {low:+.1f} and "
        f"{high:+.1f}%; in all {100 * (sum(spent[1]) / sum(spent[0]) - 1):+.1f}%); "
        f"{size / steps * 10_000 / 2**20:.1f} MiB per 10,000 steps ({steps} measured, batch of 4)",
        flush=True,
    )


class Where(NamedTuple):
    """Engine options that the command line has."""

    device: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.device}, {self.dtype}"


Result = TypeVar("Result")


def shared(
    task: Callable[[Scenario, Sequence[int]], list[Result]], where: Where, numbers: Sequence[int], jobs: int
) -> Iterator[Result]:
    """What ``task`` makes of the numbers, in processes of their own."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), prepare, (where,)) as pool:
        parts = [numbers[at::SEEDS] for at in range(min(SEEDS, len(numbers)))]
        for future in [pool.submit(work, task, where, part) for part in parts]:
            yield from future.result()


def scenario_of(where: Where) -> Scenario:
    """The scenario on a device, in a dtype."""
    engine: dict[str, Any] = {**SCENARIO["engine"], **where._asdict()}  # type: ignore[dict-item]
    return Scenario.from_dict({**SCENARIO, "engine": engine})


def prepare(where: Where) -> None:
    """Load what every run of this process serves."""
    torch.set_num_threads(1)
    scenario = scenario_of(where)
    for arm in scenario.arms:
        TARGET.warm(scenario.engine_of(arm))


def work(task: Callable[[Scenario, Sequence[int]], list[Result]], where: Where, numbers: Sequence[int]) -> list[Result]:
    """A share of them."""
    return task(scenario_of(where), numbers)


def main() -> int:
    """Measure what the command line asks for. 1 if more was missed, or taken for a fault, than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", type=int, default=0, metavar="N")
    parser.add_argument("--rounding", type=int, default=0, metavar="N")
    parser.add_argument("--cost", type=int, nargs="?", const=400, default=0, metavar="STEPS")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the first fault or pair")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu", help="cuda: for --rounding")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.device != "cpu" and (chosen.planted or chosen.cost):
        parser.error("--planted and --cost are for the CPU; benchmarks/gpu/decode.py has the cost on a GPU")
    where = Where(chosen.device, chosen.dtype)
    fine = True
    if chosen.planted:
        numbers = range(chosen.first, chosen.first + chosen.planted)
        missed = [text for text in shared(planted, where, numbers, chosen.jobs) if text]
        exact = len(numbers) - len(missed)
        share = 100 * exact / len(numbers)
        print(f"planted faults, {where}: step, request and site exact in {exact} of {len(numbers)} ({share:.1f}%)")
        print(*(f"  {text}" for text in missed), sep="\n", end="\n" if missed else "", flush=True)
        fine &= share >= 95
    if chosen.rounding:
        numbers = range(chosen.first, chosen.first + chosen.rounding)
        found = list(shared(rounding, where, numbers, chosen.jobs))
        wrong = [each.wrong for each in found if each.wrong]
        print(
            f"rounding, {where}: taken for a fault in {len(wrong)} of {len(numbers)} pairs "
            f"({100 * len(wrong) / len(numbers):.1f}%); {sum(each.shares for each in found)} shares differ, at most by "
            f"{max(each.widest for each in found):.1e} of a row's largest value; {sum(each.parted for each in found)} "
            "requests part by a choice that rounding explains"
        )
        print(*(f"  {text}" for text in wrong), sep="\n", end="\n" if wrong else "", flush=True)
        fine &= len(wrong) <= len(numbers) / 100
    if chosen.cost:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            cost(Path(folder), chosen.cost)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
