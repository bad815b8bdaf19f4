"""What engines of others have and ours has not: algorithms to draft by, and a type of its own for what is cached. How a
scenario says each, and what its session cannot show. Imports nothing of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.errors import InvalidOption
from specdebug.targets.ranks.layout import KEYS as RANKS
from specdebug.targets.ranks.layout import RankLayout

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
        draws: a sampled request's drafts are drawn, too, for padding rows of a graph as well.
        architectures: those that its draft must have one of, where ours has an algorithm of the same name for others.
    """

    draft: Draft
    only_chains: bool = False
    unsaid: frozenset[str] = frozenset()
    renamed: tuple[tuple[str, str], ...] = ()
    hides: frozenset[Ability] = _DRAFTS
    remembers: bool = False
    draws: bool = False
    architectures: frozenset[str] = frozenset()

    @property
    def has_model(self) -> bool:
        return self.draft != "none"


_BLOCK = ForeignAlgorithm("block", only_chains=True, unsaid=frozenset({_STEPS, _TOPK}))
ADAPTIVE = "adaptive"
"""The key of ``speculative`` that has an engine choose its number of steps while it serves."""
KV_DTYPE = "kv_cache_dtype"
"""The engine option that has keys and values stored in another type than the model's."""


@dataclass(frozen=True)
class Repertoire:
    """What an engine drafts by beside the algorithms of ours.

    Attributes:
        engine: its name for people. ``release``: the one that they were tried on.
        foreign: those that are mapped.
        adapting: algorithms whose chains may adapt their lengths.
        refused: names that it has and that cannot be run, and why.
        kv_dtypes: types that keys and values may be stored in.
        ranks: options of several ranks that it has.
    """

    engine: str
    release: str
    foreign: Mapping[str, ForeignAlgorithm] = field(default_factory=dict)
    adapting: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    kv_dtypes: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()

    def named(self, options: Mapping[str, Any]) -> tuple[str | None, ForeignAlgorithm | None, bool]:
        """The algorithm that options name, what it is if it is a foreign one, and if lengths are to adapt."""
        spec = options.get("speculative")
        if not isinstance(spec, Mapping):
            return None, None, False
        name = str(spec.get("algorithm", "EAGLE"))
        return name, self.foreign.get(name), ADAPTIVE in spec

    def hidden_by(self, options: Mapping[str, Any]) -> frozenset[Ability]:
        """The abilities that a session of these options lacks. Chains that change their lengths fit no look at
        trees."""
        _, foreign, adapts = self.named(options)
        return _DRAFTS if adapts else frozenset() if foreign is None else foreign.hides

    def drafts_by_history(self, options: Mapping[str, Any]) -> bool:
        """Return True if accept lengths of a request depend on which others were served, and when."""
        _, foreign, adapts = self.named(options)
        return adapts or (foreign is not None and foreign.remembers)

    def as_ours(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with EAGLE in the place of a foreign algorithm, whose shapes of trees it shares. Raises InvalidOption
        for what such an algorithm cannot have, and for what the engine has not."""
        name, foreign, adapts = self.named(options)
        self._refuse(name, foreign, adapts)
        if KV_DTYPE in options and options[KV_DTYPE] not in self.kv_dtypes:
            known = ", ".join(self.kv_dtypes)
            why = f"must be one of {known}" if known else f"only SGLang stores KV so; give --target {SGLANG.release}"
            raise InvalidOption(why, (KV_DTYPE,))
        self._refuse_ranks(RankLayout.read(options))
        options = {key: value for key, value in options.items() if key not in (KV_DTYPE, *RANKS)}
        if foreign is None and not adapts:
            return options
        spec = {key: value for key, value in options["speculative"].items() if key != ADAPTIVE}
        if adapts:
            self._check_adaptive(name, options["speculative"])
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

    def _refuse_ranks(self, layout: RankLayout) -> None:
        """Raise InvalidOption for ranks that only other engines have."""
        for key in RANKS if layout.world > 1 else ():
            if key not in self.ranks and getattr(layout, key) != getattr(_ALONE, key):
                has = [each for each in _EVERY if key in each.ranks]
                who, where = (" and ".join(getattr(each, name) for each in has) for name in ("engine", "release"))
                have = "has" if len(has) == 1 else "have"
                why = f"only {who} {have} ranks of this kind; give --target {where.replace(' and ', ' or ')}"
                raise InvalidOption(why, (key,))

    def _refuse(self, name: str | None, foreign: ForeignAlgorithm | None, adapts: bool) -> None:
        """Raise InvalidOption for what only other engines have."""
        if name is not None and name in self.refused:
            raise InvalidOption(f"{self.engine}'s {name} is not run here: {self.refused[name]}", _ALGORITHM)
        what, place = f"'{name}'", _ALGORITHM
        known = [(each, each.foreign.get(name or "")) for each in _EVERY]
        has = [each for each, found in known if found is not None and not found.architectures]
        if adapts and not self.adapting:
            what, place = "that lengths adapt", ("speculative", ADAPTIVE)
            has = [each for each in _EVERY if each.adapting]
        elif foreign is not None or not has:
            return
        who = f"only {' and '.join(each.engine for each in has)} {'has' if len(has) == 1 else 'have'}"
        raise InvalidOption(f"{who} {what}; give --target {' or '.join(each.release for each in has)}", place)

    def _check_adaptive(self, name: str | None, spec: Mapping[str, Any]) -> None:
        place = ("speculative", ADAPTIVE)
        if not isinstance(spec[ADAPTIVE], bool):
            raise InvalidOption("must be true or false", place)
        if spec[ADAPTIVE] and (name not in self.adapting or spec.get("eagle_topk", 1) != 1):
            raise InvalidOption(f"only chains of {', '.join(self.adapting)} adapt their lengths", place)


_ALGORITHM = ("speculative", "algorithm")
_ALONE = RankLayout()
SGLANG = Repertoire(
    "SGLang",
    "sglang==0.5.23",
    {
        "STANDALONE": ForeignAlgorithm("model"),
        "NGRAM": ForeignAlgorithm(
            "none", renamed=(("--speculative-eagle-topk", "--speculative-ngram-max-bfs-breadth"),), remembers=True
        ),
        "DFLASH": _BLOCK,
        "DSPARK": replace(_BLOCK, draws=True),
        "NEXTN": ForeignAlgorithm("head", hides=frozenset()),
        "FROZEN_KV_MTP": ForeignAlgorithm(
            "model", architectures=frozenset({"Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"})
        ),
    },
    adapting=("EAGLE", "EAGLE3", "NEXTN"),
    kv_dtypes=("fp8_e5m2", "fp8_e4m3"),
    ranks=RANKS,
)
VLLM = Repertoire(
    "vLLM",
    "vllm==0.32.0",
    {
        "STANDALONE": ForeignAlgorithm("model", only_chains=True, hides=_DRAFTS - {"kv"}),
        "NGRAM": ForeignAlgorithm("none", only_chains=True, hides=_DRAFTS - {"kv"}),
        "DFLASH": replace(_BLOCK, hides=_DRAFTS - {"kv"}),
        "NEXTN": ForeignAlgorithm("model", only_chains=True, hides=_DRAFTS - {"kv"}),
    },
    refused={
        "SUFFIX": "it needs arctic-inference, which has no wheel on PyPI",
    },
    ranks=("tp",),
)
_EVERY = (SGLANG, VLLM)
NONE = Repertoire("this engine", "embedded")
"""Of an engine that has nothing but the algorithms of ours."""
