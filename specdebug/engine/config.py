"""Engine configuration: frozen, loud about unknown keys, and free of torch so that tools can check it fast.

Derived quantities, such as the width of a row table, are properties of the config that owns their facts.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar

from specdebug.base.assets import nextn_layers
from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import InvalidOption, did_you_mean
from specdebug.base.plugins import PluginError
from specdebug.engine.sites import Drafting
from specdebug.engine.speculative.registry import ALGORITHMS, SHIPPED

T = TypeVar("T")
_hints: Any = cache(partial(typing.get_type_hints, include_extras=True))

# The scheduler plans one batch while another is in flight, so a request reserves slots for both. The worker v1 takes
# its slots itself, step by step.
STEPS_IN_FLIGHT = 2


def _require(holds: bool, message: str, *key_path: str) -> None:
    if not holds:
        raise InvalidOption(message, key_path)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is no less than ``value``."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculativeConfig:
    """Drafting by one of the algorithms in ``speculative/registry.py``.

    Symbols: S num_steps, K eagle_topk, T num_draft_tokens (tree nodes, root included).
    """

    algorithm: Annotated[str, ALGORITHMS] = "EAGLE"
    worker: Literal["v2", "v1"] = "v2"
    draft_model: str | None = None
    num_steps: int = 5
    eagle_topk: int = 1
    num_draft_tokens: int | None = None
    draft_kv_on_hit: Literal["recompute", "zero_fill"] = "recompute"
    threshold_single: float = 1.0
    threshold_acc: float = 1.0

    @property
    def drafting(self) -> Drafting:
        """Return the kind of draft model that the algorithm has."""
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
        _require(steps >= 1, f"must be at least 1, got {steps}", path, "num_steps")
        _require(topk >= 1, f"must be at least 1, got {topk}", path, "eagle_topk")
        _require(steps <= 64, f"at most 64, got {steps}", path, "num_steps")
        _require(topk <= 64, f"at most 64, got {topk}", path, "eagle_topk")
        shipped = SHIPPED.get(self.algorithm)
        no_branches = f"must be 1 with algorithm {self.algorithm}, which drafts chains; got {topk}"
        _require(topk == 1 or shipped is None or not shipped.only_chains, no_branches, path, "eagle_topk")
        no_chain = f"must be num_steps + 1 = {steps + 1} when eagle_topk is 1, got {nodes}"
        _require(topk > 1 or nodes == steps + 1, no_chain, path, "num_draft_tokens")
        no_tree = f"must be in 2..{self.max_tree_nodes} (1 + topk + topk²·(steps-1)), got {nodes}"
        _require(2 <= nodes <= self.max_tree_nodes, no_tree, path, "num_draft_tokens")
        nothing = f"{self.algorithm} has no draft KV to fill"
        _require(self.draft_kv_on_hit == "recompute" or self.draft_kv, nothing, path, "draft_kv_on_hit")
        for name in ("threshold_single", "threshold_acc"):
            value = getattr(self, name)
            _require(0.0 < value <= 1.0, f"must be in (0, 1], got {value}", path, name)
        first = self.worker == "v2" or ALGORITHMS[self.algorithm].v1 is not None
        _require(first, f"{self.algorithm} has no worker v1; leave the option out, or set it to v2", path, "worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaGraphConfig:
    """Graph runners: captured batch sizes and whether they are used (on a CPU the callable runs directly)."""

    enabled: bool = True
    max_bs: int = 8
    capture_bs: tuple[int, ...] | None = None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Captured batch sizes, ascending: 1, 2, 4, 8, ... and ``max_bs`` unless given."""
        if self.capture_bs is not None:
            return tuple(sorted(set(self.capture_bs)))
        return tuple(sorted({min(2**power, self.max_bs) for power in range(self.max_bs.bit_length() + 1)}))

    def check(self) -> None:
        """Raise :class:`InvalidOption` for sizes that cannot be captured."""
        _require(1 <= self.max_bs <= 512, f"must be in 1..512, got {self.max_bs}", "cuda_graph", "max_bs")
        if self.capture_bs is not None:
            path = ("cuda_graph", "capture_bs")
            positive = min(self.capture_bs, default=0) >= 1
            _require(positive, "needs at least one batch size, all positive", *path)
            _require(max(self.capture_bs) <= self.max_bs, f"holds a size above max_bs={self.max_bs}", *path)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """KV slots, and what fresh or released memory holds: a GPU promises nothing, and ``zeros`` would be kind."""

    num_slots: int = 16384
    fill: Literal["zeros", "nan", "garbage"] = "garbage"
    guards: bool = False

    def check(self) -> None:
        """Raise :class:`InvalidOption` for a pool that cannot be."""
        slots = self.num_slots
        _require(1 <= slots <= 2**26, f"must be in 1..{2**26}, got {slots}", "memory", "num_slots")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything that decides what an engine does. Build from plain data with :meth:`from_dict`."""

    model: str = "tiny"
    attention_backend: Annotated[str, PLANS] = "flashinfer"
    page_size: int = 1
    context_length: int = 2048
    max_running_requests: int = 8
    chunked_prefill_size: int | None = None
    radix_cache: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    seed: int = 0
    speculative: SpeculativeConfig | None = None
    cuda_graph: CudaGraphConfig = field(default_factory=CudaGraphConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineConfig:
        """Build and check. Next-n layers draft a token each, so that ``num_steps`` left out is the draft's number of
        them. Raises :class:`InvalidOption` naming the key, with the nearest known one."""
        config = _build(cls, data, ())
        spec, draft = config.speculative, config.draft_model
        if spec and draft and spec.drafting == "layers" and "num_steps" not in data["speculative"]:
            config = replace(config, speculative=replace(spec, num_steps=nextn_layers(draft) or spec.num_steps))
        config.check()
        return config

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which :meth:`from_dict` makes an equal config."""
        plain = dataclasses.asdict(self)
        if self.cuda_graph.capture_bs is not None:
            plain["cuda_graph"]["capture_bs"] = list(self.cuda_graph.capture_bs)
        return plain

    @property
    def draft_model(self) -> str | None:
        """The draft head's checkpoint, by default the target's own for the algorithm; None without speculation."""
        spec = self.speculative
        if spec is None or spec.draft_model:
            return None if spec is None else spec.draft_model
        return f"{self.model}-{ALGORITHMS[spec.algorithm].draft_suffix or spec.algorithm.lower()}"

    @property
    def alloc_len_per_decode(self) -> int:
        """Slots one decode step may touch beyond the committed length (SGLang ``get_alloc_len_per_decode``).

        A chain or page_size 1 packs K branches of S draft slots; with both topk and page_size above one every branch
        owns whole pages, the first sharing the prefix's tail page. A draft without KV needs none: only the tree does.
        """
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
        """Cells a ``req_to_token`` row needs beyond ``context_length``: the reservation of a request whose
        committed length is at the context limit, in whole pages (SGLang PR 26972). Of the worker v1 it is what one
        step drafts into, for which upstream's v1 has 4 + T cells."""
        tree = self.speculative.tree_size if self.speculative else 0
        return max(4 + tree, self.steps_in_flight * self.alloc_len_per_decode) + self.page_size - 1

    @property
    def usable_slots(self) -> int:
        """N: KV slots handed out, rounded up to whole pages; page 0 comes on top as padding."""
        return round_up(self.memory.num_slots, self.page_size)

    def check(self) -> None:
        """Reject impossible values. Raises :class:`InvalidOption`."""
        bounds = (("page_size", 1, 1024), ("context_length", 8, 2**20), ("max_running_requests", 1, 512))
        for name, least, most in bounds:
            value = getattr(self, name)
            _require(least <= value <= most, f"must be in {least}..{most}, got {value}", name)
        chunk = self.chunked_prefill_size
        if chunk is not None and chunk < 1:  # no upper bound, and thousands of digits make no message
            raise InvalidOption(f"must be at least 1, got {chunk}", ("chunked_prefill_size",))
        known = re.fullmatch(r"cpu|cuda(:\d{1,2})?", self.device) is not None
        _require(known, f"must be cpu or cuda[:N], got {self.device!r}", "device")
        _require(0 <= self.seed < 2**63, f"must be in 0..2**63-1, got {self.seed}", "seed")
        if self.speculative is not None:
            self.speculative.check()
        self.cuda_graph.check()
        self.memory.check()
        smallest = round_up(self.steps_in_flight * self.alloc_len_per_decode + self.page_size, self.page_size)
        short = f"{self.memory.num_slots} slots cannot hold one request's decode reservation; needs at least {smallest}"
        _require(self.usable_slots >= smallest, short, "memory", "num_slots")


def _build(cls: type[T], data: Any, path: tuple[str, ...]) -> T:
    if not isinstance(data, Mapping):
        raise InvalidOption(f"must be a mapping, got {_kind(data)}", path)
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            raise InvalidOption(f"unknown option {key!r}{did_you_mean(str(key), hints)}", (*path, str(key)))
        values[key] = _coerce(hints[key], value, (*path, key))
    return cls(**values)


def choices_of(hint: Any) -> Collection[str] | None:
    """The values among which an option of this type chooses; None for an option of another type.

    A ``Literal`` lists them. An ``Annotated[str, names]`` refers to names that other packages can add to.
    """
    origin = typing.get_origin(hint)
    if origin is Literal:
        return typing.get_args(hint)
    if origin is not Annotated:
        return None
    named: Collection[str] = typing.get_args(hint)[1]
    return named


def _coerce(hint: Any, value: Any, path: tuple[str, ...]) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return None if value is None else _coerce(options[0], value, path)
    choices = choices_of(hint)
    if choices is not None:
        try:
            chosen = isinstance(value, str) and value in choices
        except PluginError as error:
            raise InvalidOption(str(error), path) from error
        if not chosen:
            raise InvalidOption(f"must be one of {', '.join(choices)}; got {value!r}", path)
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise InvalidOption(f"must be a list, got {_kind(value)}", path)
        return tuple(_coerce(typing.get_args(hint)[0], item, path) for item in value)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path) if isinstance(hint, type) else value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        # no option takes a number that large, and beyond it int does not convert
        value = float(max(min(value, 2**63), -(2**63)))
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise InvalidOption(f"must be {_ARTICLE[hint]}, got {_kind(value)}", path)
    return value


_ARTICLE = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return repr(value) if len(repr(value)) <= 40 else type(value).__name__
