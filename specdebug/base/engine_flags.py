"""The options of an engine as flags of a command line, by SGLang's names where it has one.

:data:`ENGINE_FLAGS` is all that ``specdebug serve`` reads and a starter of one writes; :data:`NOT_SUPPORTED` is
refused by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specdebug.base.errors import SpecDebugError, did_you_mean

Kind = Literal["text", "whole", "number", "switch", "sizes"]
"""The value of a flag. ``switch``: it has none. ``sizes``: whole numbers with commas between them."""


@dataclass(frozen=True)
class EngineFlag:
    """A flag, and the option that it sets.

    Attributes:
        name: as typed, such as ``--page-size``.
        option: keys that lead to the option in a scenario's ``engine``, with dots between them.
        kind: its value.
        help: one line about it.
        switched: of a switch, the value that it sets.
        ours: SGLang has no such flag.
        nothing: the number that stands for no value, as -1 does in SGLang.
    """

    name: str
    option: str
    kind: Kind
    help: str
    switched: bool = True
    ours: bool = False
    nothing: int | None = None

    @property
    def into(self) -> tuple[str, ...]:
        """The keys of the option."""
        return tuple(self.option.split("."))

    @property
    def parameter(self) -> str:
        """The flag as the name of a parameter."""
        return self.name.removeprefix("--").replace("-", "_")


_MODEL = "Serve this checkpoint: a folder, or a shipped name such as tiny."
_CHUNKS = "Prefill at most so many prompt tokens a step; -1 sets no limit."
_WORKER = "Use SGLang's second worker (v2) or, for EAGLE and EAGLE3, its first (v1)."
_SINGLE = "Accept a drafted token of at least this probability; 1 is lossless."
_ACC = "Divide the odds of acceptance by this; 1 is lossless."
_ON_HIT = "Where a cached prefix has no draft KV, recompute it or zero_fill it."
_FILL = "Fill memory that was not written with zeros, nan or garbage."
_OF_DRAFTS = "Draft by EAGLE, EAGLE3, MTP or FROZEN_KV_MTP; nothing is drafted unless given."

ENGINE_FLAGS: tuple[EngineFlag, ...] = (
    EngineFlag("--model-path", "model", "text", _MODEL),
    EngineFlag("--device", "device", "text", "Run on this device: cpu, cuda or cuda:N."),
    EngineFlag("--dtype", "dtype", "text", "Compute in this type: float32, bfloat16 or float16."),
    EngineFlag("--context-length", "context_length", "whole", "Let a request have at most so many tokens."),
    EngineFlag("--max-running-requests", "max_running_requests", "whole", "Run so many requests at a time."),
    EngineFlag("--max-total-tokens", "memory.num_slots", "whole", "Make a pool of so many KV slots."),
    EngineFlag("--page-size", "page_size", "whole", "Divide the pool into pages of so many KV slots."),
    EngineFlag("--attention-backend", "attention_backend", "text", "Use this attention plan."),
    EngineFlag("--chunked-prefill-size", "chunked_prefill_size", "whole", _CHUNKS, nothing=-1),
    EngineFlag("--disable-radix-cache", "radix_cache", "switch", "Do not reuse the KV of prefixes.", switched=False),
    EngineFlag("--random-seed", "seed", "whole", "Draw samples, and the garbage in fresh memory, from this seed."),
    EngineFlag("--disable-cuda-graph", "cuda_graph.enabled", "switch", "Use no graph runners.", switched=False),
    EngineFlag("--cuda-graph-max-bs", "cuda_graph.max_bs", "whole", "Capture batches of at most so many requests."),
    EngineFlag("--cuda-graph-bs", "cuda_graph.capture_bs", "sizes", "Capture these batch sizes, as in 1,2,4."),
    EngineFlag("--speculative-algorithm", "speculative.algorithm", "text", _OF_DRAFTS),
    EngineFlag("--speculative-worker", "speculative.worker", "text", _WORKER, ours=True),
    EngineFlag("--speculative-draft-model-path", "speculative.draft_model", "text", "Draft with this checkpoint."),
    EngineFlag("--speculative-num-steps", "speculative.num_steps", "whole", "Draft so many steps before each verify."),
    EngineFlag("--speculative-eagle-topk", "speculative.eagle_topk", "whole", "Keep so many branches a step."),
    EngineFlag(
        "--speculative-num-draft-tokens",
        "speculative.num_draft_tokens",
        "whole",
        "Verify trees of so many nodes, the root included.",
    ),
    EngineFlag("--speculative-accept-threshold-single", "speculative.threshold_single", "number", _SINGLE),
    EngineFlag("--speculative-accept-threshold-acc", "speculative.threshold_acc", "number", _ACC),
    EngineFlag("--draft-kv-on-hit", "speculative.draft_kv_on_hit", "text", _ON_HIT, ours=True),
    EngineFlag("--memory-fill", "memory.fill", "text", _FILL, ours=True),
    EngineFlag("--memory-guards", "memory.guards", "switch", "Put guard regions around buffers.", ours=True),
)
"""Every option of an engine that can be set, once."""

NOT_SUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("--tp", "--tp-size", "--tensor-parallel-size", "--pp-size", "--pipeline-parallel-size", "--dp", "--dp-size",
         "--data-parallel-size", "--ep", "--ep-size", "--nnodes", "--node-rank", "--dist-init-addr", "--nccl-port",
         "--enable-dp-attention", "--base-gpu-id"),
        "the engine runs in one process on one device",
    ),
    **dict.fromkeys(
        ("--mem-fraction-static",), "the pool has a fixed number of slots; use --max-total-tokens",
    ),
    **dict.fromkeys(
        ("--quantization", "--kv-cache-dtype", "--torchao-config", "--speculative-draft-model-quantization"),
        "weights and KV are of one dtype; use --dtype",
    ),
    **dict.fromkeys(
        ("--enable-lora", "--lora-paths", "--max-loras-per-batch"), "the engine has no LoRA",
    ),
    **dict.fromkeys(
        ("--tool-call-parser", "--reasoning-parser", "--grammar-backend", "--chat-template", "--enable-multimodal",
         "--is-embedding"),
        "the server completes text and nothing else",
    ),
    **dict.fromkeys(
        ("--tokenizer-path", "--tokenizer-mode", "--skip-tokenizer-init", "--load-format", "--trust-remote-code",
         "--revision"),
        "tokenizer and weights are read from the checkpoint's folder as they are",
    ),
    **dict.fromkeys(
        ("--schedule-policy", "--schedule-conservativeness", "--enable-mixed-chunk", "--max-prefill-tokens",
         "--disable-overlap-schedule", "--stream-interval", "--enable-priority-scheduling"),
        "there is one scheduler: first come first served, prefill before decode",
    ),
    **dict.fromkeys(
        ("--disaggregation-mode", "--enable-hierarchical-cache", "--enable-torch-compile", "--speculative-token-map",
         "--speculative-attention-mode", "--sampling-backend", "--decode-attention-backend",
         "--prefill-attention-backend", "--disable-cuda-graph-padding", "--skip-server-warmup"),
        "the engine has no such thing",
    ),
}  # fmt: skip
"""Flags of SGLang's, and why each is refused."""


def refusal(flag: str, known: Sequence[str]) -> str:
    """One line about a flag that is not taken; ``known`` are those that are."""
    name = flag.partition("=")[0]
    if name in NOT_SUPPORTED:
        return f"{name} is not supported: {NOT_SUPPORTED[name]}"
    hint = did_you_mean(name, known)
    return f"there is no option {name}{hint if 'did you mean' in hint else '; see specdebug serve --help'}"


def options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's options by the values of flags, by parameter; None and a switch that is off set nothing.

    Raises SpecDebugError for options of speculation without an algorithm.
    """
    options: dict[str, Any] = {}
    for flag in ENGINE_FLAGS:
        value = values.get(flag.parameter)
        if value is None or (flag.kind == "switch" and not value):
            continue
        place = options
        for key in flag.into[:-1]:
            place = place.setdefault(key, {})
        place[flag.into[-1]] = _option(flag, value)
    if "speculative" in options and "algorithm" not in options["speculative"]:
        raise SpecDebugError("options of speculation need --speculative-algorithm")
    return options


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """The words of a command line that sets these options, as a scenario's ``engine`` has them.

    Raises SpecDebugError for an option without a flag.
    """
    words: list[str] = []
    if options.get("speculative") is not None:  # speculation without an algorithm's name is by the first
        options = {**options, "speculative": {"algorithm": "EAGLE", **options["speculative"]}}
    by_place = {flag.into: flag for flag in ENGINE_FLAGS}
    for place, value in _leaves(options, ()):
        if place not in by_place:
            raise SpecDebugError(f"specdebug serve has no flag for engine.{'.'.join(place)}")
        words += _words(by_place[place], value)
    return words


def values_of(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The value in effect of every flag, by parameter, for an engine's options with every default written out; of
    speculation None where there is none."""
    values: dict[str, Any] = {}
    for flag in ENGINE_FLAGS:
        place: Any = plain
        for key in flag.into:
            place = place.get(key) if isinstance(place, Mapping) else None
        values[flag.parameter] = place == flag.switched if flag.kind == "switch" else place
        if place is None and flag.nothing is not None:
            values[flag.parameter] = flag.nothing
    return values


def flag_of(path: Sequence[str]) -> str | None:
    """The flag that sets an option; None where there is none."""
    return next((flag.name for flag in ENGINE_FLAGS if flag.into == tuple(path)), None)


def _option(flag: EngineFlag, value: Any) -> Any:
    if flag.kind == "switch":
        return flag.switched
    if flag.kind == "sizes":
        try:
            return [int(each) for each in str(value).split(",")]
        except ValueError:
            raise SpecDebugError(f"{flag.name} must be whole numbers with commas between them, got {value!r}") from None
    return None if flag.nothing is not None and value == flag.nothing else value


def _leaves(options: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
        elif (*above, key) != ("speculative",):  # that is none, and so is a command line without its flags
            yield (*above, key), value


def _words(flag: EngineFlag, value: Any) -> list[str]:
    if flag.kind == "switch":
        return [flag.name] if value == flag.switched else []
    if value is None:
        return [] if flag.nothing is None else [flag.name, str(flag.nothing)]
    return [flag.name, ",".join(map(str, value)) if flag.kind == "sizes" else str(value)]
