"""The options of a scenario's ``engine:``, which belong to its target: read, checked, completed, and drawn for a hunt.
All targets of ours have the names of our own engine's; nothing else in the harness knows one. A worker must not import
this before its reverts are in place, for one may reach into the engine's configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from packaging.version import Version

from specdebug.base import assets
from specdebug.base.attention_plans import PLANS, SHIPPED
from specdebug.base.made import MADE
from specdebug.base.trial import stream
from specdebug.engine.config import EngineConfig
from specdebug.engine.workers.registry import ALGORITHMS, LINEUP, WorkerEntry
from specdebug.faults.catalogue import check_fit, lacking
from specdebug.faults.model import Fault, FaultClass, Need
from specdebug.targets.algorithms import ADAPTIVE, KV_DTYPE, NONE, SGLANG, VLLM, Repertoire
from specdebug.targets.base import Asked
from specdebug.targets.ranks.layout import BALANCES, CONNECTORS, MOST, RankLayout
from specdebug.targets.ranks.layout import KEYS as RANKS
from specdebug.targets.settings import ReleasedEngine, TargetChoice, parse_target

T = TypeVar("T")
Plain = dict[str, Any]

LARGE = 64
"""Pages of as many tokens: a request takes several only if its prompt is longer than the others'."""


@dataclass(frozen=True)
class OptionSpace:
    """The options that an engine can be asked for.

    Attributes:
        workers: what drafts, and for which model.
        pages_with_trees: plans that take pages and several branches at once.
    """

    plans: tuple[str, ...]
    pages: tuple[int, ...]
    topks: tuple[int, ...]
    workers: tuple[WorkerEntry, ...]
    pages_with_trees: tuple[str, ...]
    steps: tuple[int, ...] = (1, 2, 3, 5)
    running: tuple[int, ...] = (1, 2, 3, 4, 8)
    chunks: tuple[int | None, ...] = (None, 24, None, 64)
    radix: tuple[bool, ...] = (True, True, False)
    graphs: tuple[Plain, ...] = ({"max_bs": 4}, {"max_bs": 4, "capture_bs": [4]}, {"max_bs": 2}, {"enabled": False})
    tight: tuple[bool, ...] = (True, False)

    def drawn(self, seed: int, number: int, tokens: int) -> tuple[Plain, bool]:
        """The options of engine ``number`` of a seed but for its memory, and True if that is to be tight. ``tokens``:
        the most that a request has, but for a page more where pages are :data:`LARGE`."""

        def deal(option: str, values: Sequence[T]) -> T:
            block, place = divmod(number, len(values))
            return stream(seed, "hunt", option, block).sample(list(values), len(values))[place]

        page_size, worker = deal("page", self.pages), deal("algorithm", self.workers)
        topk = 1 if worker.only_chains else deal("topk", self.topks)
        steps = worker.layers or deal("steps", self.steps)
        chunk = deal("chunk", self.chunks)
        plans = self.pages_with_trees if page_size > 1 and topk > 1 else self.plans
        most = min(1 + topk + topk**2 * (steps - 1), 12)
        nodes = steps + 1
        if topk > 1:
            nodes = min(stream(seed, "hunt", "nodes", number).randint(nodes, max(most, nodes)), most)
        longest = tokens + page_size * (page_size == LARGE)
        options: Plain = {
            **worker.options(steps, topk, nodes),
            "attention_backend": deal("plan", plans),
            "page_size": page_size,
            # SGLang keeps some of it free for drafts, and declines a request that wants those too
            "context_length": longest + max(nodes, topk * steps) + 8,
            "max_running_requests": deal("running", self.running),
            "chunked_prefill_size": None if chunk is None else -(-chunk // page_size) * page_size,
            "radix_cache": deal("radix", self.radix),
            "cuda_graph": deal("graph", self.graphs),
        }
        if isinstance(worker, ForeignEntry):
            options["attention_backend"] = worker.plan
            if not worker.eager and not options["cuda_graph"].get("enabled", True):
                options["cuda_graph"] = dict(self.graphs[0])
        return options, deal("slots", self.tight)


@dataclass(frozen=True)
class ForeignEntry(WorkerEntry):
    """One that only another engine has, drawn with the plan that it was tried on. ``branches``: it drafts trees;
    ``draft_model``: what it drafts with, if that is not the model's own; ``eager``: without graphs, too."""

    branches: bool = False
    draft_model: str | None = None
    eager: bool = True
    plan: str = "triton"

    @property
    def only_chains(self) -> bool:
        return not self.branches

    def options(self, num_steps: int, eagle_topk: int, num_draft_tokens: int) -> Plain:
        plain = super().options(num_steps, eagle_topk, num_draft_tokens)
        if self.draft_model is not None:
            plain["speculative"]["draft_model"] = self.draft_model
        return plain


_PLANS = tuple(plan.name for plan in SHIPPED)
_EAGLE, _EAGLE3 = LINEUP["EAGLE v2"], WorkerEntry("EAGLE3", algorithm="EAGLE3")
_OURS = (*LINEUP.values(), _EAGLE3, replace(_EAGLE3, worker="v1"), replace(LINEUP["MLA"], worker="v1"))
SPACES = {
    "embedded": OptionSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), _OURS, _PLANS),
    "sglang": OptionSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), (_EAGLE,), ("fa3",)),
    "vllm": OptionSpace(
        ("triton",), (32,), (1,), (_EAGLE, _EAGLE3), (), chunks=(None, 64), graphs=({"enabled": False},)
    ),
}
"""By the kind of target."""
_NEW_IN_SGLANG = (
    _EAGLE3,
    # a made block has three tokens, and DFLASH without graphs takes bfloat16 alone (docs/finds)
    ForeignEntry("DFLASH", "DFLASH", layers=3, draft_model="tiny-dflash", eager=False),
    ForeignEntry("DSPARK", "DSPARK", layers=3, draft_model="tiny-dspark"),
    ForeignEntry("NGRAM", "NGRAM"),
    ForeignEntry("STANDALONE", "STANDALONE", draft_model="tiny"),
    ForeignEntry("NEXTN", "NEXTN", model="tiny-mla", draft_model="tiny-mla-eagle"),
)
"""What is drawn for SGLang from the release on that they were tried on."""
SERVED = SPACES["sglang"]
"""For any other server of SGLang's options."""


Options = Mapping[str, Any]
Place = tuple[str, ...]
"""Keys that lead to an option."""

OVERRIDES = {
    "device": "--device",
    "dtype": "--dtype",
    "attention_backend": "--backend",
    "page_size": "--page-size",
    "target": "--target",
    "ready_timeout_s": "--ready-timeout",
}
"""Engine options, the target, and its time to be ready, that the command line can override, and how."""

_NUMBERS: tuple[tuple[Place, int], ...] = (
    (("max_running_requests",), 1),
    (("cuda_graph", "max_bs"), 1),
    (("page_size",), 1),
    (("speculative", "eagle_topk"), 1),
    (("speculative", "num_steps"), 1),
    (("speculative", "num_draft_tokens"), 2),
    (("context_length",), 8),
    (("memory", "num_slots"), 1),
)
"""Options that may be made smaller, and the least that each may ever be."""


@dataclass(frozen=True)
class EngineShape:
    """What an engine computes with, however it batches: engines of one shape have tensors that can be compared.

    Attributes:
        tree: branches, steps and nodes (the root included) of a draft; None where nothing is drafted.
        worker: the speculative worker of our own engine.
    """

    model: str
    draft_model: str | None
    device: str
    dtype: str
    attention_backend: str
    algorithm: str | None = None
    tree: tuple[int, int, int] | None = None
    worker: str | None = None

    def unlike(self, other: EngineShape) -> str:
        """What two engines differ in so that their tensors have no counterparts; empty if they have."""
        for name in ("model", "device", "dtype"):
            if (one := getattr(self, name)) != (two := getattr(other, name)):
                return f"the arms' engines differ in {name} ({one} and {two})"
        if self.tree is None or other.tree is None:
            return "" if self.tree is other.tree else "only one of the two arms speculates"
        names, drafts = ("algorithm", "eagle_topk", "num_steps", "tree_size"), (self.algorithm, *self.tree)
        pairs = zip(names, drafts, (other.algorithm, *other.tree), strict=True)
        unequal = next((f"{name} ({one} and {two})" for name, one, two in pairs if one != two), None)
        return f"the arms' engines differ in speculative {unequal}" if unequal else ""


@dataclass(frozen=True)
class TargetOptions:
    """The options that a target's engine takes. Each method raises InvalidOption for such as no engine can have.

    Attributes:
        space: those that a hunt draws from.
        algorithms: what it drafts by that our engine has not.
    """

    space: OptionSpace
    algorithms: Repertoire = NONE

    def read(self, options: Options) -> EngineConfig:
        """The engine's own form of them; of an algorithm that is another engine's with EAGLE in its place."""
        return EngineConfig.from_dict(self.algorithms.as_ours(options))

    def completed(self, options: Options) -> dict[str, Any]:
        """The options with every default written out."""
        config = self.read(options)
        plain = config.to_dict()
        name, foreign, adapts = self.algorithms.named(options)
        if foreign is not None:
            plain["speculative"] |= {"algorithm": name, "draft_model": self._draft_of(options, config)}
        if adapts:
            plain["speculative"][ADAPTIVE] = options["speculative"][ADAPTIVE]
        return plain | {key: options[key] for key in (KV_DTYPE, *RANKS) if key in options}

    def _draft_of(self, options: Options, config: EngineConfig) -> str | None:
        """The draft's checkpoint; None where there is none."""
        name, foreign, _ = self.algorithms.named(options)
        given = config.speculative is not None and config.speculative.draft_model
        if foreign is None or given or foreign.draft == "head":
            return config.draft_model
        return f"{config.model}-{name.lower()}" if name and foreign.draft == "block" else None

    def asked(self, options: Options) -> Asked:
        """An arm's wishes of our own engine."""
        config = self.read(options)
        spec = config.speculative
        name, foreign, _ = self.algorithms.named(options)
        like_ours = foreign is None or foreign.draft == "head"  # the dense reference has a draft like it
        return Asked(
            model=config.model,
            device=config.device,
            dtype=config.dtype,
            attention_backend=config.attention_backend,
            drafts=spec is not None,
            draft_model=config.draft_model if like_ours else None,
            algorithm=None if spec is None else spec.algorithm if like_ours else name,
            draft_kv=spec is None or spec.draft_kv,
            zero_fill=spec is not None and spec.draft_kv_on_hit == "zero_fill",
            guards=config.memory.guards,
            graphs=config.cuda_graph.batch_sizes if config.cuda_graph.enabled else (),
            ranks=(layout := RankLayout.read(options)).world,
            batches=layout.batches,
            exact=spec is None or spec.threshold_single == spec.threshold_acc == 1,
        )

    def shape(self, options: Options) -> EngineShape:
        """What an engine of these options computes with."""
        config = self.read(options)
        spec, models = config.speculative, (config.model, self._draft_of(options, config))
        plain = EngineShape(*models, config.device, config.dtype, config.attention_backend)
        if spec is None:
            return plain
        tree = (spec.eagle_topk, spec.num_steps, spec.tree_size)
        name, foreign, _ = self.algorithms.named(options)
        return dataclasses.replace(
            plain, algorithm=name if foreign is not None else spec.algorithm, tree=tree, worker=spec.worker
        )

    def drafts_by(self, options: Options) -> str:
        """What drafts, and how, in words."""
        spec = self.completed(options)["speculative"]
        if spec is None:
            return "none"
        how = "adaptive chains" if spec.get(ADAPTIVE) else "trees" if spec["eagle_topk"] > 1 else "chains"
        return f"{spec['algorithm']}, {how}"

    def checkpoints(self, options: Options) -> Iterator[tuple[Place, str]]:
        """The checkpoints that an engine of these options loads, each by the option that names it."""
        config = self.read(options)
        yield ("model",), config.model
        if (draft := self._draft_of(options, config)) is not None:
            yield ("speculative", "draft_model"), draft

    def no_room(self, options: Options, who: str, prompt: int, request: int) -> tuple[str, str] | None:
        """Whether it is the ``prompt`` of so many tokens or the ``request`` of so many positions that the engine of
        ``who`` cannot serve, and why; None if it can."""
        config = self.read(options)
        has = f"but the context_length of {who} is {config.context_length}"
        mend = "shorten it or raise engine."
        if prompt >= config.context_length:
            return "prompt", f"can reach {prompt} tokens, {has}; {mend}context_length"
        if request > config.context_length:
            return "request", f"needs at least {request} positions, {has}; {mend}context_length"
        least = request + config.row_headroom
        if least <= config.usable_slots:
            return None
        return "request", (
            f"needs at least {least} KV slots with its decode reservation, but memory.num_slots of {who} gives "
            f"{config.usable_slots}; {mend}memory.num_slots"
        )

    def lacking(self, options: Options, kind: FaultClass) -> Need | None:
        """The first need of a class of faults that an engine of these options does not meet."""
        return lacking(kind, self.read(options), RankLayout.read(options).meets)

    def check_fault(self, options: Options, fault: Fault, who: str) -> None:
        """Raise ContentError at the fault's place (BadFault for one of the command line) where it cannot act. ``who``
        has the engine, such as ``arm 'fixed'``."""
        layout = RankLayout.read(options)
        check_fit(fault, self.read(options), who, layout.world, layout.meets)

    def numbers(self, options: Options) -> Iterator[tuple[Place, int, int]]:
        """The numbers that may be made smaller: place, value, and the least that it may ever be."""
        config, plain = self.read(options), self.completed(options)
        spec, graph = config.speculative, config.cuda_graph
        for place, least in _NUMBERS:
            value: Any = plain
            for key in place:
                value = None if value is None else value[key]
            if spec is not None and place == ("speculative", "num_draft_tokens"):
                value = None if spec.eagle_topk == 1 else spec.tree_size  # a chain's follow from its steps
            if value is not None and (place[0] != "cuda_graph" or graph.enabled):
                yield place, value, least

    def consistent(self, options: Options) -> dict[str, Any]:
        """The options with those changed that follow from others: nodes of the verify tree, captured batches."""
        engine = dict(options)
        spec = engine.get("speculative")
        if isinstance(spec, Mapping) and spec.get("num_draft_tokens") is not None:
            steps, topk = spec.get("num_steps", 5), spec.get("eagle_topk", 1)
            most = 1 + topk + topk**2 * (steps - 1)
            rest = {key: value for key, value in spec.items() if key != "num_draft_tokens"}
            # a chain has a node for each step, however many the engine takes
            nodes = {} if topk == 1 else {"num_draft_tokens": min(spec["num_draft_tokens"], most)}
            engine["speculative"] = {**rest, **nodes}
        graph = engine.get("cuda_graph")
        if isinstance(graph, Mapping) and graph.get("capture_bs"):
            largest = graph.get("max_bs", 8)
            sizes = [size for size in graph["capture_bs"] if size <= largest] or [largest]
            engine["cuda_graph"] = {**graph, "capture_bs": sizes}
        return engine

    def drawn(self, seed: int, number: int, tokens: int) -> tuple[dict[str, Any], int]:
        """The options of engine ``number`` of a seed, whose requests have at most so many ``tokens`` (see
        :meth:`OptionSpace.drawn`), and the tokens of one of its pages."""
        options, tight = self.space.drawn(seed, number, tokens)
        page, each = options["page_size"], options["context_length"] + self.read(options).row_headroom
        # Tight: two requests at their full length are served only by retracting one, and cached prefixes go.
        slots = each + page if tight else each * options["max_running_requests"] + page
        return options | {"memory": {"num_slots": -(-slots // page) * page}}, page

    def pinned(self, options: Options) -> dict[str, Any]:
        """What a file that is to do the same for ever must say beside the options."""
        return {"memory": {"fill": self.read(options).memory.fill}}

    def stricter(self, options: Options) -> Iterator[str]:
        """The options that would show more of what is wrong, as a file has them, and what each shows."""
        memory = self.read(options).memory
        if memory.fill != "garbage":
            yield "engine: {memory: {fill: garbage}} in the scenario (what was never written is then not zero)"
        if not memory.guards:
            yield "engine: {memory: {guards: true}} in the scenario (a buffer that overruns is then named)"

    def words(self) -> frozenset[str]:
        """The texts that options can be, without those of other packages, paths and devices."""
        added = {*PLANS, *ALGORITHMS} - {*PLANS.shipped, *ALGORITHMS.shipped}
        defs: dict[str, Any] = {}
        return frozenset({*assets.NAMES, *MADE, *_choices([self.json_schema(defs), defs])} - added)

    def json_schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """The mapping as JSON schema, which puts what it refers to into ``defs``; every key is optional. It has what
        only other engines have, too: an editor does not know the target."""
        schema = EngineConfig.table(defs)
        spec = defs["SpeculativeConfig"]["properties"]
        spec["algorithm"] = {
            **spec["algorithm"],
            "enum": list(dict.fromkeys((*ALGORITHMS, *SGLANG.foreign, *VLLM.foreign))),
        }
        spec[ADAPTIVE] = {"type": "boolean", "description": "SGLang chooses its number of steps while it serves"}
        stored = {"enum": [*SGLANG.kv_dtypes], "description": "SGLang stores keys and values in this type"}
        count = {"type": "integer", "minimum": 1, "maximum": MOST}
        ranks = {
            "tp": count | {"description": "ranks that share each layer"},
            "pp": count | {"description": "stages, each of some layers"},
            "dp": count | {"description": "parts of the ranks that attend to requests of their own"},
            "dp_attention": {"type": "boolean", "description": "attention is by these parts"},
            "dp_balance": {"enum": [*BALANCES], "description": "which part gets a request"},
            "disaggregation": {"enum": [*CONNECTORS], "description": "one server prefills, another decodes"},
        }
        return schema | {"properties": schema["properties"] | {KV_DTYPE: stored} | ranks}


OURS = TargetOptions(SPACES["embedded"])
SGLANGS = TargetOptions(SPACES["sglang"], SGLANG)
VLLMS = TargetOptions(SPACES["vllm"], VLLM)


def options_of(target: TargetChoice) -> TargetOptions:
    """The options that a target's engine takes; those of SGLang for a server that is nothing else."""
    kind = target if isinstance(target, str) else target.kind
    if isinstance(target, ReleasedEngine) and kind == "sglang":
        version, since = target.named.version, parse_target(SGLANG.release)
        assert isinstance(since, ReleasedEngine)
        if version is not None and Version(version) >= Version(since.named.version or ""):
            space = replace(SPACES[kind], workers=(*SPACES[kind].workers, *_NEW_IN_SGLANG))
            return TargetOptions(space, SGLANG)
    return {"sglang": SGLANGS, "vllm": VLLMS}.get(kind) or TargetOptions(SPACES.get(kind, SERVED))


def _choices(schema: Any) -> Iterator[str]:
    """The texts that a JSON schema lists."""
    if isinstance(schema, dict):
        yield from schema.get("enum", ())
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else ():
        yield from _choices(each)
