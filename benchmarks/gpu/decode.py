"""Serving speed on a GPU: an 8B-shaped target with its EAGLE head, and the shipped checkpoints.

``python benchmarks/gpu/decode.py OUT [--rounds N] [--backend triton]`` prints a table and writes ``decode.json`` to the
folder OUT. Times come from runs taken in turn in this process; medians with the quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specdebug import async_probe
from specdebug.diverge.recorder import HashRecorder
from specdebug.diverge.recording import Writer
from specdebug.engine import EngineConfig
from specdebug.engine.textbook.engine import Models, load_models

sys.path.insert(0, str(Path(__file__).parent))
import seeds
from bounds import Bound, add_flag
from models import make_eagle, make_target
from reference import generate, make_reference
from served import PROMPT, STEPS, Row, Served, bandwidth, release, show, timed


def weight_bytes(target: Any) -> int:
    """What one forward of the target reads: every layer and the head, of the embedding only rows."""
    size = target.lm_head.numel()
    for _, layer in target.layers:
        size += sum(w.numel() for w in (layer.qkv, layer.output, layer.gate_up, layer.down))
    return int(size * target.lm_head.element_size())


def head_bytes(draft: Any) -> int:
    """What one draft forward reads: fc with the embedding's half, the layer, the target's head."""
    size = 2 * draft.fc.numel() + draft.lm_head.numel()
    for _, layer in draft.layers:
        size += sum(w.numel() for w in (layer.qkv, layer.output, layer.gate_up, layer.down))
    return int(size * draft.fc.element_size())


def probe_cost(models: Models, backend: str, rounds: int) -> list[Row]:
    """Probes on against off, in turn, and the expressions they replace: decode at two batch sizes, and prefill."""
    rows = []
    for batch, most, per_round in ((1, 2.0, 12), (64, 5.0, 4)):
        arms = [Served(models, batch, backend=backend, probes=probes) for probes in ("off", "record", "expressions")]
        for served in arms:
            served.add(batch, PROMPT if batch == 1 else 128)
            served.steps(8)
        taken = [[served.steps(per_round) for served in arms] for _ in range(rounds)]
        rows += cost_rows(f"EAGLE decode step, batch {batch}", taken, Bound(at_most=most))
        if batch == 1:
            rows += prefill_cost(arms, rounds)
        arms[1].activate()
        found = len(async_probe.drain())
        rows.append(Row(f"findings of the probes, batch {batch}", found, found, found, "", Bound(at_most=0)))
        release(*arms)
        seeds.use(False)
    return rows


def recording_cost(models: Models, backend: str, rounds: int) -> list[Row]:
    """What ``specdebug diverge`` records, against nothing, in turn; probes are on in all."""
    rows = []
    for batch, per_round, most in ((1, 12, 5.0), (64, 4, 20.0)):
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary, "hashes")
            recorder = HashRecorder(Writer(file))
            plain, recorded = (
                Served(models, batch, backend=backend, probes="record", recorder=each) for each in (None, recorder)
            )
            for served in (plain, recorded):
                served.add(batch, PROMPT if batch == 1 else 128)
                served.steps(8)
            size = stored(file)
            taken = [(plain.steps(per_round), recorded.steps(per_round)) for _ in range(rounds)]
            what = f"EAGLE decode step, batch {batch}, recorded"
            more = [100 * (with_it / without - 1) for without, with_it in taken]
            rows.append(Row.of(what, more, "% more", Bound(at_most=most)))
            recorded.activate()
            torch.cuda.synchronize()
            recorder.finish()
            grown = (file.stat().st_size - size) / (rounds * per_round) * 10_000 / 2**20
            bound = Bound(at_most=160 if batch > 1 else 64)
            rows.append(Row.of(f"{what}, for 10,000 steps", [grown], "MiB", bound))
            release(plain, recorded)
            async_probe.on_site(None)
    return rows


def stored(file: Path) -> int:
    """Bytes written to a recording so far; what is not written yet is zeros."""
    return len(file.read_bytes().rstrip(b"\0"))


def prefill_cost(arms: Sequence[Served], rounds: int) -> list[Row]:
    taken = []
    for served in arms:
        served.drain()
    for _ in range(rounds + 2):
        for served in arms:
            served.add(1, 2048, new_tokens=1)
        taken.append([served.steps(1) for served in arms])
    return cost_rows("prefill of 2048 tokens", taken[2:], Bound(at_most=6.0))


def cost_rows(what: str, taken: Sequence[Sequence[float]], bound: Bound) -> list[Row]:
    """taken: by round, seconds without probes, with ours, and with the expressions."""
    ours, theirs = ([100 * (times[arm] / times[0] - 1) for times in taken] for arm in (1, 2))
    return [
        Row.of(f"{what}, probes off", [1e3 * times[0] for times in taken], "ms"),
        Row.of(f"{what}, all probes on", ours, "% more", bound),
        Row.of(f"{what}, the expressions at the same sites", theirs, "% more"),
    ]


def against_floors(models: Models, backend: str, rounds: int) -> list[Row]:
    """Verify and draft graphs replayed alone against reading their weights once, and the device's idle shares."""
    served = Served(models, 1, backend=backend, probes="off")
    served.add(1)
    served.steps(12)
    speed = bandwidth()
    runners = served.engine.view.eagle.runners
    assert runners.verify is not None
    assert runners.draft is not None
    verify, draft = runners.verify.captured[1].graph, runners.draft.captured[1].graph
    verify_floor = weight_bytes(models.target) / speed
    draft_floor = (STEPS - 1) * head_bytes(models.draft) / speed
    verify_times = [timed(verify.replay, 10) for _ in range(rounds)]
    draft_times = [timed(draft.replay, 20) for _ in range(rounds)]
    rows = [
        Row("measured read bandwidth", speed / 1e12, speed / 1e12, speed / 1e12, "TB/s"),
        Row("weights one verify reads", weight_bytes(models.target) / 1e9, 0, 0, "GB"),
        Row.of("target verify, batch 1", [1e3 * t for t in verify_times], "ms"),
        Row.of("verify / reading its weights once", [t / verify_floor for t in verify_times], "x", Bound(at_most=1.45)),
        Row.of(f"draft loop of {STEPS} steps", [1e3 * t for t in draft_times], "ms"),
        Row.of("draft loop / its floor", [t / draft_floor for t in draft_times], "x", Bound(at_most=1.35)),
    ]
    rows += idle_rows(served, "batch 1", in_all=True)
    release(served)
    served = Served(models, 64, backend=backend, probes="off")
    served.add(64, 128)
    served.steps(8)
    rows += idle_rows(served, "batch 64", in_all=False)
    release(served)
    return rows


def idle_rows(served: Served, what: str, *, in_all: bool) -> list[Row]:
    """``in_all``: also with the gaps inside graphs; at batch 64 a profiled kernel takes longer than it does otherwise,
    and their sum longer than a step."""
    shares = [idle_shares(served) for _ in range(3)]
    rows = [
        Row.of(f"device idle outside graphs, {what}", [100 * share[1] for share in shares], "%", Bound(at_most=4.0))
    ]
    if in_all:
        rows.append(Row.of(f"device idle in all, {what}", [100 * share[0] for share in shares], "%"))
    return rows


def idle_shares(served: Served, steps: int = 20) -> tuple[float, float]:
    """Shares of a steady step in which no kernel runs, and in which no graph is under way either.

    Both are of the time of steps without a profiler, since that slows the host down. What runs is summed up from a
    profile of other steps. Kernels of one graph launch have its correlation id in common. For the second share these
    are left out, and graphs count with what each takes replayed alone, between device events, since a profiler widens
    the gaps in a graph.
    """
    alone = statistics.median(served.steps(steps) for _ in range(3))
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with counted_replays() as replays, torch.profiler.profile(activities=activities) as profile:
        served.steps(steps)
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    launches = Counter(event.id for event in events)
    if replays and max(launches.values()) == 1:
        raise RuntimeError("the profile does not tell which kernels are a graph's")
    outside = [event for event in events if launches[event.id] == 1]
    graphs = sum(timed(graph.replay, 10) * times for graph, times in replays.items())
    return 1 - busy(events) / steps / alone, 1 - (busy(outside) + graphs) / steps / alone


@contextmanager
def counted_replays() -> Iterator[Counter[torch.cuda.CUDAGraph]]:
    """How often each graph is replayed in the block."""
    counts: Counter[torch.cuda.CUDAGraph] = Counter()
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        counts[graph] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]


def busy(events: Sequence[Any]) -> float:
    """Seconds in which any of the profiled events was under way."""
    total, reached = 0.0, 0.0  # microseconds
    for start, end in sorted((event.time_range.start, event.time_range.end) for event in events):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e6


def tokens_per_second(models: Models, backend: str, rounds: int, name: str, new_tokens: int = 64) -> list[Row]:
    """Plain decode, EAGLE and transformers' generate on one prompt, prefill included."""
    plain = Served(Models(models.target, None), 1, backend=backend, probes="off", spec=None)
    eagle = Served(models, 1, backend=backend, probes="off")
    reference = make_reference(models.target)
    rates: dict[str, list[float]] = {"generate": [], "plain": [], "eagle": []}
    for index in range(rounds + 1):
        measured = {
            "plain": request_rate(plain, new_tokens),
            "eagle": request_rate(eagle, new_tokens),
            "generate": generate_rate(reference, models.target.config.vocab_size, new_tokens),
        }
        for arm, rate in measured.items():
            if index:
                rates[arm].append(rate)
    accepted = [n for request in eagle.engine.requests.values() for n in request.accept_lengths]
    rows = [
        Row.of(f"{name}: transformers generate", rates["generate"], "tokens/s"),
        Row.of(f"{name}: plain decode", rates["plain"], "tokens/s"),
        Row.of(f"{name}: EAGLE, {STEPS} steps", rates["eagle"], "tokens/s"),
        Row.of(f"{name}: mean accept length", [statistics.mean(accepted)], "tokens"),
    ]
    del reference
    release(plain, eagle)
    return rows


def request_rate(served: Served, new_tokens: int) -> float:
    served.add(1, 128, new_tokens)
    served.activate()
    began = time.perf_counter()
    while served.engine.has_work:
        served.engine.step()
    return new_tokens / (time.perf_counter() - began)


def generate_rate(model: Any, vocab: int, new_tokens: int) -> float:
    prompt = torch.randint(0, vocab, (1, 128), device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    generate(model, prompt, new_tokens)
    torch.cuda.synchronize()
    return new_tokens / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--backend", default="triton", choices=["flashinfer", "fa3", "triton"])
    parser.add_argument("--parts", default="floors,probes,recording,rates,tiny")
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    target = make_target()
    models = Models(target, make_eagle(target))
    parts: dict[str, Callable[[], list[Row]]] = {
        "floors": lambda: against_floors(models, options.backend, options.rounds),
        "probes": lambda: probe_cost(models, options.backend, options.rounds),
        "recording": lambda: recording_cost(models, options.backend, options.rounds),
        "rates": lambda: tokens_per_second(models, options.backend, 2, "8B shape, bf16"),
        "tiny": lambda: tokens_per_second(tiny(), options.backend, 4, "shipped checkpoints, bf16"),
    }
    for part in options.parts.split(","):
        began = time.perf_counter()
        rows += parts[part]()
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
        (options.out / "decode.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, plan {options.backend}"
    return show(rows, title, no_bounds=options.no_bounds)


def tiny() -> Models:
    """The checkpoints in the package."""
    config = EngineConfig.from_dict(
        {"device": "cuda", "dtype": "bfloat16", "context_length": 6144, "speculative": {"algorithm": "EAGLE"}}
    )
    return load_models(config)


if __name__ == "__main__":
    sys.exit(main())
