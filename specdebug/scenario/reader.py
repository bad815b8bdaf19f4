"""From checked YAML values to the scenario's dataclasses: shapes, types and ranges, each complaint at its
place.

What needs more than one value to judge (names that refer to other names, engine options that exclude each
other) is ``scenario_checks.py``. The bounds stand in ``BOUNDS``, from which the JSON schema takes them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from specdebug.errors import ContentError
from specdebug.faults.declare import read_fault
from specdebug.faults.model import Fault
from specdebug.scenario.model import (
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
from specdebug.scenario.workload import CORPORA
from specdebug.schema import Gather, Item
from specdebug.verdict.outcome import Verdict
from specdebug.verdict.signatures import complaint
from specdebug.yamlio import Doc, one_line

T = TypeVar("T")

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
NO_PROMPT: SimplePrompt = TextPrompt("")
"""In the place of a prompt that cannot be read."""
MAX_GROUPS = 512
MAX_ARMS = 256
MAX_FAULTS = 1024


def read_scenario(doc: Doc) -> Scenario:
    """The scenario a document holds; references are not followed yet.

    Raises ContentErrors with everything that is wrong, ``partial`` being the scenario with defaults in its place.
    """
    gather = Gather()
    top = gather.table(doc.root, required=("name", "workload"), optional=TOP_KEYS)
    oracles = gather.read(top, "oracles", lambda item: _oracles(item, OracleSpec()), OracleSpec())
    arms = gather.read(top, "arms", lambda item: _arms(item, oracles), {DEFAULT_ARM: Arm(DEFAULT_ARM)})
    expect = {name: Expectation() for name in arms}
    expect |= gather.read(top, "expect", _expectations, expect)
    return gather.done(
        Scenario(
            name=gather.read(top, "name", lambda item: item.text(pattern=NAME), "unnamed"),
            description=gather.read(top, "description", lambda item: item.text(empty=True), ""),
            seed=gather.read(top, "seed", _whole("seed"), 0),
            engine=gather.read(top, "engine", _engine, {}),
            faults=gather.read(top, "faults", _faults, ()),
            workload=gather.read(top, "workload", _workload, ()),
            probes=gather.read(top, "probes", _names, ("default",)),
            oracles=oracles,
            limits=gather.read(top, "limits", _limits, Limits()),
            arms=arms,
            expect=expect,
            path=Path(doc.path),
            source=doc,
        )
    )


def _each(items: Sequence[Item], reader: Callable[[Item], T], default: T) -> tuple[T, ...]:
    """What ``reader`` makes of each; ``default`` in the place of what cannot be read, so that indices stay."""
    gather = Gather()
    return gather.done(tuple(gather.one(item, reader, default) for item in items))


def _faults(item: Item) -> tuple[Fault, ...]:
    items = item.items()
    if len(items) > MAX_FAULTS:
        raise item.error(f"has {len(items)} faults, more than {MAX_FAULTS}")
    gather = Gather()
    found = [gather.one(each, read_fault, None) for each in items]
    return gather.done(tuple(fault for fault in found if fault is not None))


def _engine(item: Item) -> dict[str, Any]:
    item.entries()  # only that it is a mapping: its keys are the engine's to check, arm by arm
    options: dict[str, Any] = item.value
    return options


def _workload(item: Item) -> tuple[WorkloadGroup, ...]:
    groups = item.items(at_least=1)
    if len(groups) > MAX_GROUPS:
        raise item.error(f"has {len(groups)} groups, more than {MAX_GROUPS}")
    gather = Gather()
    return gather.done(
        tuple(
            gather.one(each, partial(_group, number=number), WorkloadGroup(f"g{number}"))
            for number, each in enumerate(groups)
        )
    )


def _group(item: Item, number: int) -> WorkloadGroup:
    gather = Gather()
    table = gather.table(item, optional=GROUP_KEYS)
    if ("prompt" in table) == ("turns" in table) and not gather.problems:
        both = ", not both" if "prompt" in table else ""
        gather.note(item.error(f"needs either 'prompt' or 'turns'{both}"), (*item.path, "prompt"))
    for key in ("requests", "abort"):
        if "turns" in table and key in table:
            gather.note(table[key].error("does not go with 'turns'"), table[key].path)
    requests = gather.read(table, "requests", _whole("requests"), 1)
    speculative = gather.read(table, "speculative", Item.boolean, True)
    return gather.done(
        WorkloadGroup(
            id=gather.read(table, "id", lambda each: each.text(pattern=LABEL), f"g{number}"),
            prompt=gather.read(table, "prompt", _prompt, None),
            requests=requests,
            turns=gather.read(table, "turns", _turns, None),
            max_new_tokens=gather.read(table, "max_new_tokens", _span("max_new_tokens"), (32, 32)),
            temperature=gather.read(table, "temperature", _real("temperature"), 0.0),
            top_k=gather.read(table, "top_k", _whole("top_k"), 0),
            top_p=gather.read(table, "top_p", _real("top_p"), 1.0),
            stop_token_ids=gather.read(table, "stop_token_ids", _token_ids, ()),
            seed=gather.read(table, "seed", _whole("seed"), None),
            speculative=speculative,
            arrive=gather.read(table, "arrive", _arrive, Arrive()),
            abort=gather.read(table, "abort", lambda each: _abort(each, requests), None),
        )
    )


def _prompt(item: Item) -> Prompt:
    entries = item.entries()
    if "shared_prefix" not in entries:
        return _simple_prompt(item)
    gather = Gather()
    table = gather.table(item, required=("shared_prefix", "suffix"))
    name = gather.read(table, "shared_prefix", _prefix_name, None)
    prefix = gather.read(table, "shared_prefix", partial(_simple_prompt, also=("name",)), NO_PROMPT)
    suffix = gather.read(table, "suffix", _simple_prompt, NO_PROMPT)
    return gather.done(SharedPrefixPrompt(prefix=prefix, suffix=suffix, name=name))


def _prefix_name(item: Item) -> str | None:
    if not isinstance(item.value, dict) or "name" not in item.value:
        return None  # what else is wrong with it is said by who reads it
    return item.entries()["name"].text(pattern=LABEL)


def _simple_prompt(item: Item, also: tuple[str, ...] = ()) -> SimplePrompt:
    entries, gather = item.entries(), Gather()
    if "text" in entries:
        table = gather.table(item, required=("text",), optional=also)
        return gather.done(TextPrompt(gather.read(table, "text", Item.text, "")))
    if "token_ids" in entries:
        table = gather.table(item, required=("token_ids",), optional=also)
        ids = gather.read(table, "token_ids", partial(_token_ids, at_least=1), ())
        return gather.done(TokenPrompt(ids))
    if "corpus" in entries:
        table = gather.table(item, required=("corpus", "tokens"), optional=("offset", *also))
        return gather.done(
            CorpusPrompt(
                tokens=gather.read(table, "tokens", _span("tokens"), (1, 1)),
                corpus=gather.read(table, "corpus", _corpus, CORPORA[0]),
                offset=gather.read(table, "offset", _whole("offset"), None),
            )
        )
    item.table(optional=(*PROMPT_KEYS, *also))  # names a misspelt key
    raise item.error("must be a prompt: text, token_ids or corpus with tokens")


def _corpus(item: Item) -> str:
    return item.text(choices=CORPORA)


def _token_ids(item: Item, at_least: int = 0) -> tuple[int, ...]:
    return _each(item.items(at_least=at_least), _whole("token_id"), 0)


def _turns(item: Item) -> Turns:
    gather = Gather()
    table = gather.table(item, required=("clients", "rounds", "input_tokens"), optional=("corpus",))
    return gather.done(
        Turns(
            clients=gather.read(table, "clients", _whole("clients"), 1),
            rounds=gather.read(table, "rounds", _whole("rounds"), 1),
            input_tokens=gather.read(table, "input_tokens", _span("tokens"), (1, 1)),
            corpus=gather.read(table, "corpus", _corpus, "stdlib"),
        )
    )


def _arrive(item: Item) -> Arrive:
    gather = Gather()
    table = gather.table(item, optional=("step", "every", "after", "jitter"))
    return gather.done(
        Arrive(
            step=gather.read(table, "step", _whole("steps"), 0),
            every=gather.read(table, "every", _whole("steps"), 0),
            after=gather.read(table, "after", lambda each: _each(each.one_or_many(at_least=0), Item.text, ""), ()),
            jitter=gather.read(table, "jitter", _whole("steps"), 0),
        )
    )


def _abort(item: Item, requests: int) -> Abort:
    def chosen(listed: Item) -> tuple[int, ...]:
        return _each(listed.items(at_least=1), lambda each: each.integer(low=0, high=requests - 1), 0)

    gather = Gather()
    table = gather.table(item, required=("after_steps",), optional=("requests",))
    after = gather.read(table, "after_steps", _whole("steps"), 0)
    return gather.done(Abort(after, gather.read(table, "requests", chosen, None)))


def _oracles(item: Item, base: OracleSpec) -> OracleSpec:
    """``base`` with the oracles that ``item`` names switched as it says."""
    gather = Gather()
    table = gather.table(item, optional=("lossless", "draft_kv", "pools", "each_step", "accept"))
    return gather.done(
        OracleSpec(
            lossless=gather.read(table, "lossless", Item.boolean, base.lossless),
            draft_kv=gather.read(table, "draft_kv", Item.boolean, base.draft_kv),
            pools=gather.read(table, "pools", Item.boolean, base.pools),
            each_step=gather.read(table, "each_step", Item.boolean, base.each_step),
            accept=gather.read(table, "accept", _accept, base.accept),
        )
    )


def _accept(item: Item) -> AcceptOracle | None:
    if item.is_null:
        return None
    return AcceptOracle(_real("min_ratio")(item.table(required=("min_ratio",))["min_ratio"]))


def _limits(item: Item) -> Limits:
    gather, default = Gather(), Limits()
    table = gather.table(item, optional=("timeout_s", "max_steps", "memory_mb"))
    return gather.done(
        Limits(
            timeout_s=gather.read(table, "timeout_s", _real("timeout_s"), default.timeout_s),
            max_steps=gather.read(table, "max_steps", _whole("max_steps"), default.max_steps),
            memory_mb=gather.read(table, "memory_mb", _whole("memory_mb"), default.memory_mb),
        )
    )


def _arms(item: Item, oracles: OracleSpec) -> dict[str, Arm]:
    entries = item.entries()
    if not entries:
        raise item.error("needs at least one arm, as in 'arms: {fixed: {}}'")
    if len(entries) > MAX_ARMS:
        raise item.error(f"has {len(entries)} arms, more than {MAX_ARMS}")
    gather = Gather()
    for name, each in entries.items():
        if not re.fullmatch(LABEL, name):
            said = f"arm '{one_line(name, 60)}' does not fit the form {LABEL}"
            gather.note(ContentError(said, each.where_key), each.path)
    return gather.done(
        {name: gather.one(each, partial(_arm, oracles=oracles), Arm(name)) for name, each in entries.items()}
    )


def _arm(item: Item, oracles: OracleSpec) -> Arm:
    name = str(item.path[-1])
    if item.is_null:
        return Arm(name)
    gather = Gather()
    table = gather.table(item, optional=("revert", "engine", "faults", "probes", "mode", "oracles"))
    mode: Any = gather.read(table, "mode", lambda each: each.text(choices=get_args(ProbeMode)), None)
    return gather.done(
        Arm(
            name=name,
            revert=gather.read(table, "revert", _reverts, ()),
            engine=gather.read(table, "engine", _engine, {}),
            faults=gather.read(table, "faults", _faults, None),
            probes=gather.read(table, "probes", _names, None),
            mode=mode,
            oracles=gather.read(table, "oracles", lambda each: _oracles(each, oracles), None),
        )
    )


def _reverts(item: Item) -> tuple[int, ...]:
    gather, numbers = Gather(), list[int]()
    for each in item.items():
        number = gather.one(each, _whole("pr"), 0)
        if number and number in numbers:
            gather.note(ContentError(f"PR {number} is listed twice", each.where), each.path)
        numbers.append(number)
    return gather.done(tuple(numbers))


def _expectations(item: Item) -> dict[str, Expectation]:
    gather = Gather()
    return gather.done({name: gather.one(each, _expectation, Expectation()) for name, each in item.entries().items()})


def _expectation(item: Item) -> Expectation:
    gather = Gather()
    table = gather.table(item, required=("verdict",), optional=("signature",))
    verdict: Any = gather.read(table, "verdict", lambda each: each.text(choices=get_args(Verdict)), "pass")
    signatures = gather.read(table, "signature", lambda each: _each(each.one_or_many(), _signature, ""), ())
    return gather.done(Expectation(verdict, signatures))


def _signature(item: Item) -> str:
    pattern = item.text()
    wrong = complaint(pattern)
    if wrong is not None:
        raise ContentError(f"signature {one_line(wrong, 200)}", item.where)
    return pattern


def _names(item: Item) -> tuple[str, ...]:
    return _each(item.items(), Item.text, "")


def _span(bound: str) -> Callable[[Item], Span]:
    """A reader of a whole number, or of the two inclusive ends of a range."""

    def read(item: Item) -> Span:
        if not isinstance(item.value, list):
            value = _whole(bound)(item)
            return value, value
        if len(item.value) != 2:
            raise item.expected("a whole number or a range [low, high]")
        low, high = (_whole(bound)(end) for end in item.items())
        if low > high:
            raise item.error(f"is a range from {low} down to {high}; put the lower end first")
        return low, high

    return read


def _whole(bound: str) -> Callable[[Item], int]:
    """A reader of a whole number within its bounds."""
    low, high = BOUNDS[bound]
    return lambda item: item.integer(low=low, high=high)


def _real(bound: str) -> Callable[[Item], float]:
    """A reader of a number within its bounds."""
    low, high = BOUNDS[bound]

    def read(item: Item) -> float:
        value = item.number(low=low, high=high)
        if bound in ABOVE_LOW and value <= low:
            raise item.expected(f"above {low}")
        return value

    return read
