"""Engine configuration: frozen, loud about unknown keys, and free of torch so that tools can check it fast.

Derived quantities, such as the width of a row table, are properties of the config that owns their facts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Literal

from specdebug.base.assets import nextn_layers
from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import ContentError, InvalidOption
from specdebug.base.schema import FLAG, TEXT, Part, choice, form, list_of, name_of, nested, nullable, real, whole
from specdebug.base.yamlio import plain_doc
from specdebug.engine.sites import Drafting
from specdebug.engine.workers.registry import ALGORITHMS, SHIPPED

# The scheduler plans one batch while another is in flight, so a request reserves slots for both. The worker v1 takes
# its slots itself, step by step.
STEPS_IN_FLIGHT = 2


def _require(holds: bool, message: str, *key_path: str) -> None:
    if not holds:
        raise InvalidOption(message, key_path)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is no less than ``value``."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig(Part):
    """Drafting by one of the algorithms in ``workers/registry.py``.

    Symbols: S num_steps, K eagle_topk, T num_draft_tokens (tree nodes, root included).
    """

    algorithm: Annotated[str, name_of(ALGORITHMS), "what drafts"] = "EAGLE"
    worker: Annotated[Literal["v2", "v1"], choice("v2", "v1"), "which of SGLang's two workers"] = "v2"
    draft_model: Annotated[str | None, nullable(TEXT), "the draft's checkpoint; null: the model's own"] = None
    num_steps: Annotated[int, whole(1, 64), "draft steps a verify"] = 5
    eagle_topk: Annotated[int, whole(1, 64), "branches of a draft step"] = 1
    num_draft_tokens: Annotated[
        int | None, nullable(whole(2, 2**20)), "nodes of a verify's tree, the root included; null: a chain's"
    ] = None
    draft_kv_on_hit: Annotated[
        Literal["recompute", "zero_fill"],
        choice("recompute", "zero_fill"),
        "what becomes of a hit prefix without draft KV",
    ] = "recompute"
    threshold_single: Annotated[
        float, real(0, 1, above=True), "accept a draft of at least this probability; 1 is lossless"
    ] = 1.0
    threshold_acc: Annotated[float, real(0, 1, above=True), "divide the odds of acceptance by this; 1 is lossless"] = (
        1.0
    )

    @property
    def drafting(self) -> Drafting:
        return ALGORITHMS[self.algorithm].drafting

    @property
    def draft_kv(self) -> bool:
        """True where the draft keeps keys and values of its own."""
        return ALGORITHMS[self.algorithm].draft_kv

    @property
    def tree_size(self) -> int:
        """T: nodes of the verify tree, root included."""
        return self.num_draft_tokens if self.num_draft_tokens is not None else self.num_steps + 1

    @property
    def max_tree_nodes(self) -> int:
        """Most nodes S selections of K can offer, root included: 1 + K + K²(S-1)."""
        return 1 + self.eagle_topk + self.eagle_topk**2 * (self.num_steps - 1)

    def check(self) -> None:
        """Raise :class:`InvalidOption` for a shape of tree that cannot be."""
        path, steps, topk, nodes = "speculative", self.num_steps, self.eagle_topk, self.tree_size
        shipped = SHIPPED.get(self.algorithm)
        no_branches = f"must be 1 with algorithm {self.algorithm}, which drafts chains; got {topk}"
        _require(topk == 1 or shipped is None or not shipped.only_chains, no_branches, path, "eagle_topk")
        no_chain = f"must be num_steps + 1 = {steps + 1} when eagle_topk is 1, got {nodes}"
        _require(topk > 1 or nodes == steps + 1, no_chain, path, "num_draft_tokens")
        no_tree = f"must be in 2..{self.max_tree_nodes} (1 + topk + topk²·(steps-1)), got {nodes}"
        _require(2 <= nodes <= self.max_tree_nodes, no_tree, path, "num_draft_tokens")
        nothing = f"{self.algorithm} has no draft KV to fill"
        _require(self.draft_kv_on_hit == "recompute" or self.draft_kv, nothing, path, "draft_kv_on_hit")
        first = self.worker == "v2" or ALGORITHMS[self.algorithm].v1 is not None
        _require(first, f"{self.algorithm} has no worker v1; leave the option out, or set it to v2", path, "worker")


@dataclass(frozen=True, kw_only=True)
class CudaGraphConfig(Part):
    """Graph runners: captured batch sizes and whether they are used (on a CPU the callable runs directly)."""

    enabled: Annotated[bool, FLAG, "false: no graph runners"] = True
    max_bs: Annotated[int, whole(1, 512), "the largest batch that is captured"] = 8
    capture_bs: Annotated[
        tuple[int, ...] | None,
        nullable(list_of(whole(1, 512), at_least=1)),
        "the batch sizes captured; null: 1, 2, 4, 8, ... and max_bs",
    ] = None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Captured batch sizes, ascending: 1, 2, 4, 8, ... and ``max_bs`` unless given."""
        if self.capture_bs is not None:
            return tuple(sorted(set(self.capture_bs)))
        return tuple(sorted({min(2**power, self.max_bs) for power in range(self.max_bs.bit_length() + 1)}))

    def check(self) -> None:
        """Raise :class:`InvalidOption` for sizes that cannot be captured."""
        fits = self.capture_bs is None or max(self.capture_bs) <= self.max_bs
        _require(fits, f"holds a size above max_bs={self.max_bs}", "cuda_graph", "capture_bs")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(Part):
    """KV slots, and what fresh or released memory holds: a GPU promises nothing, and ``zeros`` would be kind."""

    num_slots: Annotated[int, whole(1, 2**26), "KV slots"] = 16384
    fill: Annotated[
        Literal["zeros", "nan", "garbage"], choice("zeros", "nan", "garbage"), "what unwritten memory holds"
    ] = "garbage"
    guards: Annotated[bool, FLAG, "put guard regions around buffers"] = False


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Part):
    """Everything that decides what an engine does. Build from plain data with :meth:`from_dict`."""

    model: Annotated[str, TEXT, "the target's checkpoint: a folder, or a shipped name"] = "tiny"
    attention_backend: Annotated[str, name_of(PLANS), "the attention plan"] = "flashinfer"
    page_size: Annotated[int, whole(1, 1024), "KV slots a page"] = 1
    context_length: Annotated[int, whole(8, 2**20), "tokens of prompt and output at most"] = 2048
    max_running_requests: Annotated[int, whole(1, 512), "requests that run at a time"] = 8
    chunked_prefill_size: Annotated[
        int | None, nullable(whole(1, 2**63 - 1)), "prompt tokens a step; null: no limit"
    ] = None
    radix_cache: Annotated[bool, FLAG, "reuse cached prefixes"] = True
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], choice("float32", "bfloat16", "float16"), "of all"] = (
        "float32"
    )
    device: Annotated[str, form(r"cpu|cuda(:\d{1,2})?"), "cpu, cuda or cuda:N"] = "cpu"
    seed: Annotated[int, whole(0, 2**63 - 1), "of sampling and of the garbage in fresh memory"] = 0
    speculative: Annotated[SpeculativeConfig | None, nullable(nested(SpeculativeConfig)), "null: no drafts"] = None
    cuda_graph: Annotated[CudaGraphConfig, nested(CudaGraphConfig), "graph runners"] = CudaGraphConfig()
    memory: Annotated[MemoryConfig, nested(MemoryConfig), "KV slots, and what memory holds"] = MemoryConfig()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineConfig:
        """Build and check. Next-n layers draft a token each, so that ``num_steps`` left out is the draft's number of
        them. Raises :class:`InvalidOption` naming the first key that is wrong, with the nearest known one."""
        try:
            config = cls.read(plain_doc(data, "engine").root)
        except ContentError as error:
            first = error.problems[0]
            keys = takewhile(lambda step: isinstance(step, str), first.path or ())  # a list is one option
            raise InvalidOption(first.reason, tuple(map(str, keys))) from error
        spec, draft = config.speculative, config.draft_model
        if spec and draft and spec.drafting == "layers" and "num_steps" not in data["speculative"]:
            config = replace(config, speculative=replace(spec, num_steps=nextn_layers(draft) or spec.num_steps))
        config.check()
        return config

    @property
    def loaded(self) -> tuple[Hashable, ...]:
        """What loading its models depends on."""
        spec = self.speculative
        draft = None if spec is None else (spec.algorithm, spec.draft_model)
        return (self.device, self.dtype, self.reach, self.model, draft)

    @property
    def draft_model(self) -> str | None:
        """The draft head's checkpoint, by default the target's own for the algorithm; None without speculation."""
        spec = self.speculative
        if spec is None or spec.draft_model:
            return None if spec is None else spec.draft_model
        return f"{self.model}-{ALGORITHMS[spec.algorithm].draft_suffix or spec.algorithm.lower()}"

    @property
    def alloc_len_per_decode(self) -> int:
        """Slots one decode step may touch beyond the committed length (SGLang ``get_alloc_len_per_decode``): a tree, or
        draft slots, of which with both topk and page_size above one every branch owns whole pages."""
        spec = self.speculative
        if spec is None:
            return 1
        if not spec.draft_kv:
            return spec.tree_size
        steps, topk, page = spec.num_steps, spec.eagle_topk, self.page_size
        if topk == 1 or page == 1:
            return max(steps * topk, spec.tree_size)
        return max(-(-(page - 1 + steps) // page) * page * topk, spec.tree_size)

    @property
    def steps_in_flight(self) -> int:
        """Decode steps for which a request must have room at once."""
        return 1 if self.speculative is not None and self.speculative.worker == "v1" else STEPS_IN_FLIGHT

    @property
    def reach(self) -> int:
        """Positions a model may be asked for: the context, and what a step looks at beyond it."""
        spec = self.speculative
        return self.context_length + (max(spec.tree_size, spec.num_steps) if spec else 1)

    @property
    def row_headroom(self) -> int:
        """Cells a ``req_to_token`` row needs beyond ``context_length``: the reservation of a request at the context
        limit, in whole pages (SGLang PR 26972); of the worker v1, for which upstream has 4 + T, what one step drafts
        into."""
        tree = self.speculative.tree_size if self.speculative else 0
        return max(4 + tree, self.steps_in_flight * self.alloc_len_per_decode) + self.page_size - 1

    @property
    def usable_slots(self) -> int:
        """N: KV slots handed out, rounded up to whole pages; page 0 comes on top as padding."""
        return round_up(self.memory.num_slots, self.page_size)

    def check(self) -> None:
        """Reject impossible values. Raises :class:`InvalidOption`."""
        if self.speculative is not None:
            self.speculative.check()
        self.cuda_graph.check()
        smallest = round_up(self.steps_in_flight * self.alloc_len_per_decode + self.page_size, self.page_size)
        short = f"{self.memory.num_slots} slots cannot hold one request's decode reservation; needs at least {smallest}"
        _require(self.usable_slots >= smallest, short, "memory", "num_slots")
