"""Serve a configuration's requests, look after each step at what must always hold, and note what it ran into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.lossless.draw import Ask, Configuration
from specdebug import async_probe
from specdebug.engine import Engine, EngineConfig, Request, SamplingParams
from specdebug.events import Stepped
from specdebug.targets.laws import broken_laws

MAX_STEPS = 2000
MET = ("hit", "chunked", "retracted", "stopped", "aborted", "sampled", "graph", "padded")
"""A configuration can run into these: a prefix hit, a prompt prefilled in parts, a request that is retracted, that ends
at a token, is aborted, or sampled; a decode in a graph, and one with rows of padding."""


@dataclass
class Played:
    """Requests in the order in which they were asked for; ``met`` counts what :data:`MET` names; ``problems`` are what
    no sound engine has: findings of probes, damaged guards, and memory that is not in order."""

    requests: list[Request]
    met: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def accept_lengths(self) -> list[int]:
        """Of every verify of every request."""
        return [length for request in self.requests for length in request.accept_lengths]


def play(configuration: Configuration) -> Played:
    """Serve all requests to their ends. The probes record; what they hold is drained, before and after."""
    engine = Engine(EngineConfig.from_dict(configuration.engine))
    async_probe.drain()  # what warm-ups before a capture said of their dummy inputs is nobody's failure
    names = {f"r{number}": ask for number, ask in enumerate(configuration.asks)}
    played = Played([])
    steps = 0
    for wave in (0, 1):
        members = {rid: ask for rid, ask in names.items() if ask.wave == wave}
        waiting, age = dict(members), 0
        while (waiting or engine.has_work) and steps < MAX_STEPS:
            for rid in [rid for rid, ask in waiting.items() if ask.arrive <= age]:
                ask = waiting.pop(rid)
                engine.add_request(rid, ask.prompt, _sampling(ask, int(rid[1:])), speculative=ask.speculative)
            for rid, ask in members.items():
                if ask.abort_after is not None and age == ask.arrive + ask.abort_after:
                    engine.abort(rid)
            if steps == configuration.flush_at:
                engine.flush_cache()
            _note(engine, engine.step(), played)
            age, steps = age + 1, steps + 1
    played.problems += map(str, async_probe.drain())
    if engine.has_work or len(engine.requests) < len(names):
        played.problems.append(f"the engine does not come to an end in {MAX_STEPS} steps")
        return played
    engine.flush_cache()
    free, usable = engine.view.memory.allocator.num_free, engine.config.usable_slots
    if free != usable:
        played.problems.append(f"{free} of {usable} slots are free when all is over")
    played.requests = [engine.requests[rid] for rid in names]
    for request in played.requests:
        played.problems += ending(request)
        _count(request, played.met)
    return played


def ending(request: Request) -> Iterator[str]:
    """Say what is wrong with how a request ended: it goes on to its length or its first stop token, unless it is
    aborted, and each of its verifies accepts something."""
    output, asked = request.output_ids, request.sampling
    stopped = [at for at, token in enumerate(output) if token in asked.stop_token_ids]
    whole = len(output) == asked.max_new_tokens or stopped == [len(output) - 1]
    if len(output) > asked.max_new_tokens:
        yield f"{request.rid} has {len(output)} tokens, and asked for {asked.max_new_tokens}"
    elif stopped and stopped[0] < len(output) - 1:
        yield f"{request.rid} goes on behind its stop token, output {stopped[0]}"
    elif not whole and request.finish_reason != "abort":
        yield f"{request.rid} ends after {len(output)} tokens of {asked.max_new_tokens}, at no stop token"
    if min(request.accept_lengths, default=1) < 1:
        yield f"{request.rid} has a verify that accepts nothing: {request.accept_lengths}"


def _sampling(ask: Ask, seed: int) -> SamplingParams:
    length = ask.max_new_tokens
    return SamplingParams(max_new_tokens=length, temperature=ask.temperature, stop_token_ids=ask.stop, seed=seed)


def _note(engine: Engine, report: Stepped, played: Played) -> None:
    """Record what one step did, and left out of order."""
    played.problems += broken_laws(engine)
    played.problems += map(str, engine.check_guards())
    if report.kind == "prefill":
        played.met["chunked"] += sum(not report.emitted.get(rid) for rid in report.rids)
    graph, batch = engine.config.cuda_graph, len(report.accept_lengths)
    if report.kind == "decode" and graph.enabled and 0 < batch <= max(graph.batch_sizes):
        played.met["graph"] += 1
        played.met["padded"] += batch not in graph.batch_sizes


def _count(request: Request, met: Counter[str]) -> None:
    met["hit"] += request.cached_tokens > 0
    met["retracted"] += request.retractions
    met["stopped"] += request.finish_reason == "stop"
    met["aborted"] += request.finish_reason == "abort"
    met["sampled"] += request.sampling.temperature > 0
