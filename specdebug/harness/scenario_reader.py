"""From checked YAML values to the scenario's dataclasses: shapes, types and ranges, each complaint at its
place.

What needs more than one value to judge (names that refer to other names, engine options that exclude each
other) is ``scenario_checks.py``. The bounds stand in ``BOUNDS``, from which the JSON schema takes them too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from specdebug.errors import ContentError
from specdebug.faults.declare import read_fault
from specdebug.faults.model import Fault
from specdebug.harness.outcome import Verdict
from specdebug.harness.scenario_model import (
    Abort,
    AcceptOracle,
    Arm,
    Arrive,
    CorpusPrompt,
    Expectation,
    Limits,
    OracleSpec,
    ProbeMode,
    Prompt,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    Span,
    TextPrompt,
    TokenPrompt,
    Turns,
    WorkloadGroup,
)
from specdebug.harness.signatures import complaint
from specdebug.harness.workload import CORPORA
from specdebug.schema import Item
from specdebug.yamlio import Doc, one_line

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
"""Of a scenario: words joined by hyphens."""
LABEL = r"[A-Za-z0-9_-]+"
"""Of an arm, a group or a shared prefix: no dots, because request ids are joined by them."""

BOUNDS: dict[str, tuple[int, int]] = {
    "seed": (0, 2**63 - 1),
    "requests": (1, 4096),
    "clients": (1, 512),
    "rounds": (1, 512),
    "tokens": (1, 2**20),
    "token_id": (0, 2**31 - 1),
    "offset": (0, 2**31 - 1),
    "max_new_tokens": (1, 2**20),
    "temperature": (0, 100),
    "top_k": (0, 2**31 - 1),
    "top_p": (0, 1),
    "steps": (0, 10**6),
    "min_ratio": (0, 10),
    "timeout_s": (0, 10**6),
    "max_steps": (1, 10**9),
    "memory_mb": (64, 2**24),
    "pr": (1, 10**9),
}
"""Inclusive bounds of numbers."""
ABOVE_LOW = frozenset({"top_p", "min_ratio", "timeout_s"})
"""Numbers that must lie above their lower bound, not at it."""

TOP_KEYS = ("description", "seed", "engine", "faults", "probes", "oracles", "limits", "arms", "expect")
GROUP_KEYS = (
    "id", "requests", "prompt", "turns", "max_new_tokens", "temperature", "top_k", "top_p", "stop_token_ids",
    "seed", "speculative", "arrive", "abort",
)  # fmt: skip
PROMPT_KEYS = ("text", "token_ids", "corpus", "shared_prefix")

DEFAULT_ARM = "base"
"""Name of the only arm of a scenario that declares none."""
MAX_GROUPS = 512
MAX_ARMS = 256
MAX_FAULTS = 1024


def read_scenario(doc: Doc) -> Scenario:
    """The scenario a document holds; references are not followed yet. Raises ContentError."""
    top = doc.root.table(required=("name", "workload"), optional=TOP_KEYS)
    oracles = _oracles(top.get("oracles"), OracleSpec())
    arms = {DEFAULT_ARM: Arm(DEFAULT_ARM)}
    if "arms" in top:
        arms = _arms(top["arms"], oracles)
    expect = {name: Expectation() for name in arms}
    if "expect" in top:
        expect |= {name: _expectation(item) for name, item in top["expect"].entries().items()}
    return Scenario(
        name=top["name"].text(pattern=NAME),
        description=top["description"].text(empty=True) if "description" in top else "",
        seed=_whole(top.get("seed"), "seed", 0),
        engine=_engine(top.get("engine")),
        faults=_faults(top["faults"]) if "faults" in top else (),
        workload=_workload(top["workload"]),
        probes=_names(top["probes"]) if "probes" in top else ("default",),
        oracles=oracles,
        limits=_limits(top.get("limits")),
        arms=arms,
        expect=expect,
        path=Path(doc.path),
        source=doc,
    )


def _faults(item: Item) -> tuple[Fault, ...]:
    items = item.items()
    if len(items) > MAX_FAULTS:
        raise item.error(f"has {len(items)} faults, more than {MAX_FAULTS}")
    return tuple(read_fault(each) for each in items)


def _engine(item: Item | None) -> dict[str, Any]:
    if item is None:
        return {}
    item.entries()  # only that it is a mapping: its keys are the engine's to check, arm by arm
    options: dict[str, Any] = item.value
    return options


def _workload(item: Item) -> tuple[WorkloadGroup, ...]:
    groups = item.items(at_least=1)
    if len(groups) > MAX_GROUPS:
        raise item.error(f"has {len(groups)} groups, more than {MAX_GROUPS}")
    return tuple(_group(each, number) for number, each in enumerate(groups))


def _group(item: Item, number: int) -> WorkloadGroup:
    table = item.table(optional=GROUP_KEYS)
    if ("prompt" in table) == ("turns" in table):
        raise item.error("needs either 'prompt' or 'turns'" + (", not both" if "prompt" in table else ""))
    turns = _turns(table["turns"]) if "turns" in table else None
    for key in ("requests", "abort"):
        if turns is not None and key in table:
            raise table[key].error("does not go with 'turns'")
    requests = _whole(table.get("requests"), "requests", 1)
    return WorkloadGroup(
        id=table["id"].text(pattern=LABEL) if "id" in table else f"g{number}",
        prompt=_prompt(table["prompt"]) if "prompt" in table else None,
        requests=requests,
        turns=turns,
        max_new_tokens=_span(table["max_new_tokens"], "max_new_tokens") if "max_new_tokens" in table else (32, 32),
        temperature=_real(table.get("temperature"), "temperature", 0.0),
        top_k=_whole(table.get("top_k"), "top_k", 0),
        top_p=_real(table.get("top_p"), "top_p", 1.0),
        stop_token_ids=_token_ids(table["stop_token_ids"]) if "stop_token_ids" in table else (),
        seed=_whole(table["seed"], "seed", 0) if "seed" in table else None,
        speculative=table["speculative"].boolean() if "speculative" in table else True,
        arrive=_arrive(table["arrive"]) if "arrive" in table else Arrive(),
        abort=_abort(table["abort"], requests) if "abort" in table else None,
    )


def _prompt(item: Item) -> Prompt:
    entries = item.entries()
    if "shared_prefix" not in entries:
        return _simple_prompt(item)
    table = item.table(required=("shared_prefix", "suffix"))
    prefix = table["shared_prefix"].entries()
    return SharedPrefixPrompt(
        prefix=_simple_prompt(table["shared_prefix"], also=("name",)),
        suffix=_simple_prompt(table["suffix"]),
        name=prefix["name"].text(pattern=LABEL) if "name" in prefix else None,
    )


def _simple_prompt(item: Item, also: tuple[str, ...] = ()) -> SimplePrompt:
    entries = item.entries()
    if "text" in entries:
        return TextPrompt(item.table(required=("text",), optional=also)["text"].text())
    if "token_ids" in entries:
        table = item.table(required=("token_ids",), optional=also)
        return TokenPrompt(_token_ids(table["token_ids"], at_least=1))
    if "corpus" in entries:
        table = item.table(required=("corpus", "tokens"), optional=("offset", *also))
        return CorpusPrompt(
            tokens=_span(table["tokens"], "tokens"),
            corpus=table["corpus"].text(choices=CORPORA),
            offset=_whole(table["offset"], "offset", 0) if "offset" in table else None,
        )
    item.table(optional=(*PROMPT_KEYS, *also))  # names a misspelt key
    raise item.error("must be a prompt: text, token_ids or corpus with tokens")


def _token_ids(item: Item, at_least: int = 0) -> tuple[int, ...]:
    low, high = BOUNDS["token_id"]
    return tuple(each.integer(low=low, high=high) for each in item.items(at_least=at_least))


def _turns(item: Item) -> Turns:
    table = item.table(required=("clients", "rounds", "input_tokens"), optional=("corpus",))
    return Turns(
        clients=_whole(table["clients"], "clients", 1),
        rounds=_whole(table["rounds"], "rounds", 1),
        input_tokens=_span(table["input_tokens"], "tokens"),
        corpus=table["corpus"].text(choices=CORPORA) if "corpus" in table else "stdlib",
    )


def _arrive(item: Item) -> Arrive:
    table = item.table(optional=("step", "every", "after", "jitter"))
    return Arrive(
        step=_whole(table.get("step"), "steps", 0),
        every=_whole(table.get("every"), "steps", 0),
        after=tuple(name.text() for name in table["after"].one_or_many(at_least=0)) if "after" in table else (),
        jitter=_whole(table.get("jitter"), "steps", 0),
    )


def _abort(item: Item, requests: int) -> Abort:
    table = item.table(required=("after_steps",), optional=("requests",))
    chosen = None
    if "requests" in table:
        chosen = tuple(each.integer(low=0, high=requests - 1) for each in table["requests"].items(at_least=1))
    return Abort(_whole(table["after_steps"], "steps", 0), chosen)


def _oracles(item: Item | None, base: OracleSpec) -> OracleSpec:
    """``base`` with the oracles that ``item`` names switched as it says."""
    if item is None:
        return base
    table = item.table(optional=("lossless", "draft_kv", "pools", "each_step", "accept"))
    return OracleSpec(
        lossless=table["lossless"].boolean() if "lossless" in table else base.lossless,
        draft_kv=table["draft_kv"].boolean() if "draft_kv" in table else base.draft_kv,
        pools=table["pools"].boolean() if "pools" in table else base.pools,
        each_step=table["each_step"].boolean() if "each_step" in table else base.each_step,
        accept=_accept(table["accept"]) if "accept" in table else base.accept,
    )


def _accept(item: Item) -> AcceptOracle | None:
    if item.is_null:
        return None
    return AcceptOracle(_real(item.table(required=("min_ratio",))["min_ratio"], "min_ratio", 0.0))


def _limits(item: Item | None) -> Limits:
    if item is None:
        return Limits()
    table = item.table(optional=("timeout_s", "max_steps", "memory_mb"))
    default = Limits()
    return Limits(
        timeout_s=_real(table.get("timeout_s"), "timeout_s", default.timeout_s),
        max_steps=_whole(table.get("max_steps"), "max_steps", default.max_steps),
        memory_mb=_whole(table.get("memory_mb"), "memory_mb", default.memory_mb),
    )


def _arms(item: Item, oracles: OracleSpec) -> dict[str, Arm]:
    entries = item.entries()
    if not entries:
        raise item.error("needs at least one arm, as in 'arms: {fixed: {}}'")
    if len(entries) > MAX_ARMS:
        raise item.error(f"has {len(entries)} arms, more than {MAX_ARMS}")
    return {_label(each, name): _arm(name, each, oracles) for name, each in entries.items()}


def _arm(name: str, item: Item, oracles: OracleSpec) -> Arm:
    if item.is_null:
        return Arm(name)
    table = item.table(optional=("revert", "engine", "faults", "probes", "mode", "oracles"))
    mode: Any = table["mode"].text(choices=get_args(ProbeMode)) if "mode" in table else None
    return Arm(
        name=name,
        revert=_reverts(table["revert"]) if "revert" in table else (),
        engine=_engine(table.get("engine")),
        faults=_faults(table["faults"]) if "faults" in table else None,
        probes=_names(table["probes"]) if "probes" in table else None,
        mode=mode,
        oracles=_oracles(table["oracles"], oracles) if "oracles" in table else None,
    )


def _reverts(item: Item) -> tuple[int, ...]:
    numbers: list[int] = []
    for each in item.items():
        number = _whole(each, "pr", 0)
        if number in numbers:
            raise ContentError(f"PR {number} is listed twice", each.where)
        numbers.append(number)
    return tuple(numbers)


def _expectation(item: Item) -> Expectation:
    table = item.table(required=("verdict",), optional=("signature",))
    verdict: Any = table["verdict"].text(choices=get_args(Verdict))
    signatures: tuple[str, ...] = ()
    if "signature" in table:
        signatures = tuple(_signature(pattern) for pattern in table["signature"].one_or_many())
    return Expectation(verdict, signatures)


def _signature(item: Item) -> str:
    pattern = item.text()
    wrong = complaint(pattern)
    if wrong is not None:
        raise ContentError(f"signature {one_line(wrong, 200)}", item.where)
    return pattern


def _names(item: Item) -> tuple[str, ...]:
    return tuple(each.text() for each in item.items())


def _label(item: Item, name: str) -> str:
    """An arm's name, which is a key and so has no item of its own."""
    if not re.fullmatch(LABEL, name):
        raise ContentError(f"arm '{one_line(name, 60)}' does not fit the form {LABEL}", item.where_key)
    return name


def _span(item: Item, bound: str) -> Span:
    """A whole number, or the two inclusive ends of a range."""
    if not isinstance(item.value, list):
        value = _whole(item, bound, 0)
        return value, value
    if len(item.value) != 2:
        raise item.expected("a whole number or a range [low, high]")
    low, high = (_whole(end, bound, 0) for end in item.items())
    if low > high:
        raise item.error(f"is a range from {low} down to {high}; put the lower end first")
    return low, high


def _whole(item: Item | None, bound: str, default: int) -> int:
    low, high = BOUNDS[bound]
    return default if item is None else item.integer(low=low, high=high)


def _real(item: Item | None, bound: str, default: float) -> float:
    if item is None:
        return default
    low, high = BOUNDS[bound]
    value = item.number(low=low, high=high)
    if bound in ABOVE_LOW and value <= low:
        raise item.expected(f"above {low}")
    return value
