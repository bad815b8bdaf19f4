"""Ways to serve the same requests that must not matter: what each changes, and what must stay.

What a way comes to in an engine is its target's affair (``Target.twin``). Most engines take the options of our own, so
what those come to stands here. A way that an engine does not have is refused with the reason (:class:`NoTwin`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from specdebug.base.errors import SpecDebugError
from specdebug.targets.ranks.layout import BALANCES, PD, RankLayout
from specdebug.targets.settings import TargetChoice

if TYPE_CHECKING:
    from specdebug.targets.options import OptionSpace

Kept = Literal["tokens", "stop reasons", "log probabilities", "accept lengths"]
EVERYTHING: tuple[Kept, ...] = ("tokens", "stop reasons", "log probabilities", "accept lengths")
TEXT: tuple[Kept, ...] = EVERYTHING[:3]


@dataclass(frozen=True)
class Relation:
    """A way. ``changes``: what is otherwise, in words that follow "the same requests". ``of``: what is changed.
    ``keeps``: what must stay."""

    name: str
    changes: str
    of: Literal["engine", "workload", "process", "model"]
    keeps: tuple[Kept, ...] = EVERYTHING


RELATIONS = {
    each.name: each
    for each in (
        Relation("plain", "decoded without drafts", "engine", TEXT),
        Relation("cold", "one at a time, each to an empty cache", "workload"),
        Relation("alone", "one at a time, so that no batch holds two", "workload"),
        Relation("order", "in the opposite order of arrival", "workload"),
        Relation("again", "a second time by the same process, with what is cached by then", "workload"),
        Relation("interrupted", "beside others that ask the same and are aborted", "workload"),
        Relation("retracted", "of which some are set back once, and computed again", "workload", TEXT),
        Relation("chunks", "with prompts cut into other chunks, or not at all", "engine"),
        Relation("eager", "without CUDA graphs", "engine"),
        Relation("overlap", "by a schedule that waits for each batch before it makes the next", "engine"),
        Relation("page", "over KV pages of another size", "engine"),
        Relation("backend", "by another attention backend", "engine"),
        Relation("restart", "by an engine that is built anew in another process", "process"),
        Relation("release", "by another release of the engine that is installed", "engine"),
        Relation("runner", "by the engine's other model runner", "engine"),
        Relation("ranks", "by one rank in place of several, or by two in place of one", "engine"),
        Relation("dp", "whose parts of the ranks get other shares of them", "engine"),
        Relation("pd", "by one server in place of one that prefills and one that decodes, or the reverse", "engine"),
        Relation("reference", "by a reference model in float32", "model", ("tokens", "log probabilities")),
    )
}
"""In the order in which they are run and told."""
NAMED = ("release", "ranks", "dp", "pd")
"""Those that are tried only where they are named: two releases may differ by right, and ranks take a process each."""


class NoTwin(SpecDebugError):
    """There is no such way to serve an arm on its target; the message says why."""


@dataclass(frozen=True)
class Twin:
    """The other way in which a target serves an arm.

    Attributes:
        how: what differs, in words; empty where the relation says all.
        options: engine options, laid over the arm's.
        target: in the arm's place, if it is another.
        coins: a sampled request draws the same coins, so that it must get the same tokens.
        unlike: what need not stay, although the relation keeps it elsewhere.
    """

    how: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    target: TargetChoice | None = None
    coins: bool = False
    unlike: tuple[Kept, ...] = ()


LEAST_CHUNK = 16
LARGER_PAGE = 4
"""Tokens of a page where pages hold one; where they hold more, they hold one."""

Options = dict[str, Any]


def option_twin(relation: str, options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options | None:
    """The engine options that are another way's, laid over ``options``, which have every default written out; None for
    a way that options do not make. ``prompt``: tokens of the longest prompt. ``space``: what the engine takes. Raises
    NoTwin."""
    made = _BY_OPTIONS.get(relation)
    return None if made is None else made(options, prompt, space)


def said(before: Mapping[str, Any], over: Mapping[str, Any]) -> str:
    """Options that are laid over others, in words."""
    told = []
    for name, value in over.items():
        was = before.get(name)
        if isinstance(value, Mapping) and isinstance(was, Mapping):
            told.append(f"{name}.{said(was, value)}")
        elif was != value:
            told.append(f"{name} {_word(value)} in place of {_word(was)}")
    return ", ".join(told)


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("algorithm", "some"))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _plain(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    if options["speculative"] is None:
        raise NoTwin("it drafts nothing")
    return {"speculative": None}


def _chunks(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    page = options["page_size"]
    if options["chunked_prefill_size"] is not None:
        return {"chunked_prefill_size": None}
    chunk = _whole(max(LEAST_CHUNK, prompt // 3), page)
    if chunk >= prompt:
        raise NoTwin(f"no prompt is longer than a chunk of {chunk} tokens")
    return {"chunked_prefill_size": chunk}


def _eager(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    if not options["cuda_graph"]["enabled"]:
        raise NoTwin("it has no graphs")
    return {"cuda_graph": {"enabled": False}}


def _branches(options: Mapping[str, Any]) -> int:
    return int((options["speculative"] or {}).get("eagle_topk", 1))


def _page(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    page = 1 if options["page_size"] > 1 else LARGER_PAGE
    plan, plans = options["attention_backend"], space.pages_with_trees
    if page > 1 and _branches(options) > 1 and plan not in plans:
        raise NoTwin(f"with {plan} it takes no pages beside branches")
    # branches of a draft own whole pages, and a request reserves for two steps
    more = 2 * page * (1 + _branches(options)) * options["max_running_requests"]
    over: Options = {"page_size": page, "memory": {"num_slots": _whole(options["memory"]["num_slots"] + more, page)}}
    chunk = options["chunked_prefill_size"]
    return over if chunk is None else over | {"chunked_prefill_size": _whole(chunk, page)}


def _whole(slots: int, page: int) -> int:
    return -(-slots // page) * page


def _backend(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    both = options["page_size"] > 1 and _branches(options) > 1
    now, plans = options["attention_backend"], space.pages_with_trees if both else space.plans
    others = [*plans[plans.index(now) + 1 :], *plans] if now in plans else list(plans)
    other = next((each for each in others if each != now), None)
    if other is None:
        raise NoTwin(f"beside {now} it has no backend{' for pages and branches' if both else ''}")
    return {"attention_backend": other}


def _ranks(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    layout = RankLayout.read(options)
    if layout.tp * layout.pp == 1:
        return {"tp": 2}
    alone = {"tp": 1, "pp": 1, "dp": 1, "dp_attention": False, "dp_balance": BALANCES[0]}
    return {key: value for key, value in alone.items() if key in options}


def _dp(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    layout = RankLayout.read(options)
    if layout.dp == 1:
        raise NoTwin("its ranks have no parts")
    return {"dp_balance": next(each for each in BALANCES if each != layout.dp_balance)}


def _pd(options: Mapping[str, Any], prompt: int, space: OptionSpace) -> Options:
    return {"disaggregation": PD if RankLayout.read(options).disaggregation is None else None}


_BY_OPTIONS: dict[str, Callable[[Mapping[str, Any], int, OptionSpace], Options]] = {
    "plain": _plain,
    "chunks": _chunks,
    "eager": _eager,
    "page": _page,
    "backend": _backend,
    "ranks": _ranks,
    "dp": _dp,
    "pd": _pd,
}
