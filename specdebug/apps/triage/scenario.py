"""A scenario made of the launch flags that a log shows: its engine's options, on the small model that ships here."""

from __future__ import annotations

from typing import Any

from specdebug.base.attention_plans import PLANS
from specdebug.base.engine_flags import ENGINE_FLAGS, NOT_SUPPORTED, EngineFlag, options_of
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.yamlio import as_json, parse_yaml
from specdebug.logs.facts import Facts
from specdebug.scenario.checks import scenario_of

_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "MTP", "deepseek_mtp": "MTP", "nextn": "EAGLE"}
_SMALLER = {"context_length": 512, "max_running_requests": 4, "max_total_tokens": 4096, "cuda_graph_max_bs": 4}
"""The most of each option that a model of this size takes."""
_OF_THE_MODEL = frozenset({"model_path", "speculative_draft_model_path", "dtype", "device", "random_seed"})


def scenario_text(facts: Facts, log: str) -> str:
    """A scenario of the flags that a log shows; what was left out stands in its comments.

    Raises SpecDebugError where the log shows none, or where our engine takes none of them.
    """
    origin = facts.origin
    values, left = _values(facts)
    if not values:
        raise SpecDebugError(
            f"{log}: shows no launch flags to make a scenario of; give the log from the server's start on"
        )
    engine: dict[str, Any] = {"model": "tiny", **options_of(values)}
    wrote = " ".join(word for word in (origin.engine or "an engine", origin.version) if word)
    comments = [f"The launch flags of {wrote} as {log} shows them, on the model that ships here."]
    comments += [f"left out: {one}" for one in left]
    comments = ["".join(char if char.isprintable() else " " for char in one)[:200] for one in comments]
    lines = [*(f"# {one}" for one in comments), "name: from-log"]
    lines += [f"engine: {as_json(engine)}", "workload:"]
    lines += [
        "  - {requests: 4, prompt: {corpus: stdlib, tokens: [40, 120]}, max_new_tokens: [8, 40]}",
        "arms:",
        "  as_logged: {}",
        "expect:",
        "  as_logged: {verdict: pass}",
    ]
    text = "\n".join(lines) + "\n"
    try:
        scenario_of(parse_yaml(text, log))
    except ContentError as error:
        raise SpecDebugError(f"{log}: its launch flags make no scenario of our engine: {error}") from None
    return text


def _values(facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """The values of our flags, by parameter, and what is left out and why."""
    by_name = {flag.parameter: flag for flag in ENGINE_FLAGS}
    refused = {name.removeprefix("--").replace("-", "_"): (name, why) for name, why in NOT_SUPPORTED.items()}
    values: dict[str, Any] = {}
    left = []
    for name, text in facts.origin.flags.items():
        flag = by_name.get(name)
        if name in _OF_THE_MODEL:
            left.append(f"--{name.replace('_', '-')} {text}")
        elif flag is None:
            left.append(f"{refused[name][0]} {text}: {refused[name][1]}")
        elif (value := _value(flag, text)) is None:
            left.append(f"{flag.name} {text}: is nothing that our engine has")
        else:
            values[name] = min(value, _SMALLER[name]) if name in _SMALLER else value
    return _speculation(values, left), left


def _speculation(values: dict[str, Any], left: list[str]) -> dict[str, Any]:
    """The values, those of speculation only with an algorithm; a chain's drafts are as many as its steps, and one."""
    ours = [name for name in values if name.startswith("speculative_")]
    if "speculative_algorithm" not in values:
        left += [f"--{name.replace('_', '-')} {values[name]}: no algorithm of ours is given" for name in ours]
        return {name: value for name, value in values.items() if name not in ours}
    steps = values.get("speculative_num_steps")
    if steps is not None and "speculative_num_draft_tokens" not in values:
        values["speculative_eagle_topk"] = values.get("speculative_eagle_topk", 1)
        values["speculative_num_draft_tokens"] = steps + 1
    return values


def _value(flag: EngineFlag, text: str) -> Any:
    """A flag's value as our engine has it; None where it has no such."""
    if flag.parameter == "attention_backend":
        return text if text in PLANS else None
    if flag.parameter == "speculative_algorithm":
        return _ALGORITHMS.get(text.lower())
    if flag.kind == "switch":
        return True
    try:
        return int(text) if flag.kind == "whole" else float(text) if flag.kind == "number" else text
    except ValueError:
        return None
