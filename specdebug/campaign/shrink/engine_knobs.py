"""Numbers of a written-out scenario's engine that may be made smaller, and options that follow from others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from specdebug.campaign.shrink.knob import Knob
from specdebug.engine.config import EngineConfig
from specdebug.scenario.checks import engine_config
from specdebug.scenario.grammar import Scenario, merge


def engine_knobs(scenario: Scenario) -> Iterator[Knob]:
    """Yield every number of its engine that may be made smaller, ``target`` being the least it may ever be."""
    (arm,) = scenario.arms
    config = engine_config(scenario, arm)
    for path, least in _ENGINE_NUMBERS:
        value = _option(config, path)
        if value is not None:
            yield Knob(".".join(path), value, least, partial(_turned, path))


_ENGINE_NUMBERS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("max_running_requests",), 1),
    (("cuda_graph", "max_bs"), 1),
    (("page_size",), 1),
    (("speculative", "eagle_topk"), 1),
    (("speculative", "num_steps"), 1),
    (("speculative", "num_draft_tokens"), 2),
    (("context_length",), 8),
    (("memory", "num_slots"), 1),
)


def _option(config: EngineConfig, path: tuple[str, ...]) -> int | None:
    """Return an option of the engine; None where it does not exist or follows from the others."""
    if path == ("speculative", "num_draft_tokens") and config.speculative is not None:
        return None if config.speculative.eagle_topk == 1 else config.speculative.tree_size
    if path[0] == "cuda_graph" and not config.cuda_graph.enabled:
        return None
    value: Any = config
    for key in path:
        value = None if value is None else getattr(value, key)
    return value if value is None else int(value)


def _turned(path: tuple[str, ...], scenario: Scenario, value: int) -> Scenario:
    over: Any = value
    for key in reversed(path):
        over = {key: over}
    return replace(scenario, engine=merge(scenario.engine, over))


def made_consistent(scenario: Scenario) -> Scenario:
    """Return the scenario with the options that follow from others: nodes of the verify tree, captured batches."""
    engine = dict(scenario.engine)
    spec = engine.get("speculative")
    if isinstance(spec, Mapping) and spec.get("num_draft_tokens") is not None:
        steps, topk = spec.get("num_steps", 5), spec.get("eagle_topk", 1)
        most = 1 + topk + topk**2 * (steps - 1)
        rest = {key: value for key, value in spec.items() if key != "num_draft_tokens"}
        # a chain has a node for each step, however many the engine takes
        engine["speculative"] = rest if topk == 1 else {**rest, "num_draft_tokens": min(spec["num_draft_tokens"], most)}
    graph = engine.get("cuda_graph")
    if isinstance(graph, Mapping) and graph.get("capture_bs"):
        largest = graph.get("max_bs", 8)
        sizes = [size for size in graph["capture_bs"] if size <= largest] or [largest]
        engine["cuda_graph"] = {**graph, "capture_bs": sizes}
    return replace(scenario, engine=engine)
