"""Algorithms that engines of others draft by and ours does not: how a scenario's ``speculative`` says each, and what
its session cannot show. Imports nothing of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.errors import InvalidOption

_DRAFTS: frozenset[Ability] = INSIDE - {"pools"}
_STEPS, _TOPK = "speculative_num_steps", "speculative_eagle_topk"
Draft = Literal["head", "model", "block", "none"]


@dataclass(frozen=True)
class ForeignAlgorithm:
    """One of them.

    Attributes:
        draft: what drafts. ``head``: one in the place of an EAGLE head, which every look at drafts fits. ``model``: a
            whole model, ``draft_model`` names it. ``block``: a draft of all tokens at once, made for the target where
            ``draft_model`` names none. ``none``: no model.
        only_chains: a verify has one branch.
        unsaid: flags of the command line, as parameters, that it has not.
        renamed: flags that are other ones there.
        hides: abilities that its session lacks.
        remembers: what it drafts depends on the texts that were served before, which a thread of its own takes in.
    """

    draft: Draft
    only_chains: bool = False
    unsaid: frozenset[str] = frozenset()
    renamed: tuple[tuple[str, str], ...] = ()
    hides: frozenset[Ability] = _DRAFTS
    remembers: bool = False

    @property
    def has_model(self) -> bool:
        return self.draft != "none"


_BLOCK = ForeignAlgorithm("block", only_chains=True, unsaid=frozenset({_STEPS, _TOPK}))
SGLANG: Mapping[str, ForeignAlgorithm] = {
    "STANDALONE": ForeignAlgorithm("model"),
    "NGRAM": ForeignAlgorithm(
        "none", renamed=(("--speculative-eagle-topk", "--speculative-ngram-max-bfs-breadth"),), remembers=True
    ),
    "DFLASH": _BLOCK,
    "DSPARK": _BLOCK,
    "NEXTN": ForeignAlgorithm("head", hides=frozenset()),
}
"""Those of SGLang's that are mapped, from :data:`SINCE` on."""
SINCE = "0.5.23"
"""The release of SGLang's that they were tried on."""
ADAPTIVE = "adaptive"
"""The key of ``speculative`` that has an engine choose its number of steps while it serves."""
CAN_ADAPT = ("EAGLE", "EAGLE3", "NEXTN")


def foreign_in(options: Mapping[str, Any]) -> tuple[str | None, ForeignAlgorithm | None, bool]:
    """The algorithm that options name, what it is if it is one of :data:`SGLANG`, and if lengths are to adapt."""
    spec = options.get("speculative")
    if not isinstance(spec, Mapping):
        return None, None, False
    name = spec.get("algorithm", "EAGLE")
    return name, SGLANG.get(name) if isinstance(name, str) else None, ADAPTIVE in spec


def hidden_by(options: Mapping[str, Any]) -> frozenset[Ability]:
    """The abilities that a session of these options lacks. Chains that change their lengths fit no look at trees."""
    _, foreign, adapts = foreign_in(options)
    return _DRAFTS if adapts else frozenset() if foreign is None else foreign.hides


def drafts_by_history(options: Mapping[str, Any]) -> bool:
    """Return True if accept lengths of a request depend on which others were served, and when."""
    _, foreign, adapts = foreign_in(options)
    return adapts or (foreign is not None and foreign.remembers)


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Raise InvalidOption for what only SGLang has."""
    name, foreign, adapts = foreign_in(options)
    if foreign is None and not adapts:
        return
    what, key = (f"'{name}'", "algorithm") if foreign is not None else ("that lengths adapt", ADAPTIVE)
    raise InvalidOption(f"only SGLang has {what}; give --target sglang=={SINCE}", ("speculative", key))


def as_ours(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with EAGLE in the place of an algorithm of :data:`SGLANG`, whose shapes of trees it shares. Raises
    InvalidOption for what such an algorithm cannot have."""
    name, foreign, adapts = foreign_in(options)
    if foreign is None and not adapts:
        return dict(options)
    spec = {key: value for key, value in options["speculative"].items() if key != ADAPTIVE}
    if adapts:
        _check_adaptive(name, options["speculative"])
    if foreign is None:
        return {**options, "speculative": spec}
    if foreign.draft == "model" and not spec.get("draft_model"):
        raise InvalidOption(f"{name} drafts with a whole model; name it here", ("speculative", "draft_model"))
    if not foreign.has_model and spec.get("draft_model"):
        raise InvalidOption(f"{name} drafts without a model", ("speculative", "draft_model"))
    if foreign.only_chains and spec.get("eagle_topk", 1) != 1:
        raise InvalidOption(f"must be 1 with algorithm {name}, which drafts chains", ("speculative", "eagle_topk"))
    for place, value in (("worker", "v2"), ("draft_kv_on_hit", "recompute")):
        if spec.get(place, value) != value:
            raise InvalidOption(f"{name} has nothing but {value}", ("speculative", place))
    return {**options, "speculative": {**spec, "algorithm": "EAGLE"}}


def _check_adaptive(name: str | None, spec: Mapping[str, Any]) -> None:
    place = ("speculative", ADAPTIVE)
    if not isinstance(spec[ADAPTIVE], bool):
        raise InvalidOption("must be true or false", place)
    if spec[ADAPTIVE] and (name not in CAN_ADAPT or spec.get("eagle_topk", 1) != 1):
        raise InvalidOption(f"only chains of {', '.join(CAN_ADAPT)} adapt their lengths", place)
