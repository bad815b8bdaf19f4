"""The target ``vllm``: a release of vLLM that is installed here, with a scenario's engine options as its arguments."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.base.files import name_beside
from specdebug.engine.config import EngineConfig, SpeculativeConfig, round_up
from specdebug.targets.base import Asked, Opening, Traits
from specdebug.targets.installed import InstalledTarget, config_of, make_import_folder, remade
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.options import OURS
from specdebug.targets.relations import RELATIONS
from specdebug.workers.home import Home
from specdebug.workers.pool import PRELOAD

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.targets.vllm.session import VllmSession

METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3"}
"""vLLM's names of the algorithms."""
CPU_BLOCK = 32
"""Blocks of its attention on a CPU hold a multiple of so many slots."""
ALWAYS_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
ON_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
"""GiB, of which how much is used says the number of blocks; and threads: a fork has none of its parent's."""
WITHOUT_A_GPU = (
    "GPU kernels, CUDA graphs and streams: there are none, its own code for CPUs runs in their place",
    "Triton kernels: vLLM's own stand-ins for CPUs (vllm.utils.cpu_triton_utils)",
)
"""The parts of a run on a CPU that are not the code that serves on a GPU, in words for reports."""
SHOWS: frozenset[Ability] = INSIDE | {
    *("steps", "tokens", "plain", "logits", "accept_lengths", "cached_tokens", "cache_flush", "probes", "reverts"),
    *("logprobs", "set_back"),
}


class VllmTarget(InstalledTarget):
    """A release of vLLM, whose engine is built in a worker that runs with its environment's Python."""

    traits = Traits("vllm", SHOWS, records=True)
    # A request draws from a generator of its own, seeded by what it asks.
    coins = frozenset(RELATIONS) - {"plain", "reference", "release", "retracted"}
    no_twins = MappingProxyType(
        {
            "backend": "it has one attention backend on a CPU",
            "eager": "its graphs are not used here",
            "overlap": "its engine, stepped in one process, waits for each batch as it is",
            "runner": "its second model runner needs Triton, which its environment on a CPU lacks",
        }
    )

    def options_of_twin(self, relation: str, options: Mapping[str, Any], prompt: int) -> dict[str, Any] | None:
        if relation != "page":
            return super().options_of_twin(relation, options, prompt)
        page = CPU_BLOCK if options["page_size"] > CPU_BLOCK else 2 * CPU_BLOCK
        slots = options["memory"]["num_slots"] + page * options["max_running_requests"]
        return {"page_size": page, "memory": {"num_slots": round_up(slots, page)}}

    def asked(self, options: Mapping[str, Any]) -> Asked:
        mapped(OURS.read(options), "", "", cpu=True)  # what it cannot do is told before anything is started
        device = "cpu"
        with contextlib.suppress(StoreError):  # nothing is installed, which the run will say
            device = self.installed().device
        asked = replace(OURS.asked(options), device=device, attention_backend="vllm", guards=False, graphs=())
        return replace(asked, context_length=self.room(options))

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        return tuple(f"engine.{note}" for note in self.mapped(options, here)[1])

    def home(self) -> Home:
        here = self.installed()
        cpu = here.device == "cpu"
        own = ALWAYS_ENV | (ON_CPU_ENV if cpu else {}) | dict(self._settings.variables)
        # A GPU's process cannot be forked once it has one, so there each worker imports the engine itself.
        preload = (*PRELOAD, *((f"{__package__}.inside.imported",) if cpu else ()))
        path = tuple(filter(None, (here.tree, str(make_import_folder(here.folder, {})))))
        return Home(here.python, path, tuple(sorted(own.items())), preload)

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> VllmSession:
        """The engine is built with no seed of a run's: trials of many seeds share it."""
        from specdebug.targets.inside.failure import importing
        from specdebug.targets.vllm.inside.imported import ENGINE
        from specdebug.targets.vllm.session import VllmSession, build

        here, asked = self.begun(options, opening)
        there = opening.over_there
        with importing(self._settings):
            importlib.import_module(ENGINE)
        engine = build(self.mapped(options, here)[0], self._settings.arguments)
        opening.busy.said("")
        if asked.device == "cpu":
            opening.say("not_engine_code", parts=list(WITHOUT_A_GPU))
        return VllmSession(engine, asked, SHOWS - INSIDE | frozenset(there.shows), opening)

    def mapped(self, options: Mapping[str, Any], here: Installed) -> tuple[dict[str, Any], list[str]]:
        """As :func:`mapped`, checkpoints by their folders."""
        config = OURS.read(options)
        draft = None
        if config.draft_model is not None:
            draft = str(draft_folder(config.draft_model, config.model, here.folder / "checkpoints"))
        return mapped(config, str(checkpoint_path(config.model).resolve()), draft, cpu=here.device == "cpu")


def mapped(config: EngineConfig, model: str, draft: str | None, *, cpu: bool) -> tuple[dict[str, Any], list[str]]:
    """vLLM's engine arguments for an engine of these options, but for the seed, checkpoints by their folders, and what
    is otherwise there, a line for each option. Raises InvalidOption for what vLLM cannot do."""
    block, spec = round_up(config.page_size, CPU_BLOCK) if cpu else config.page_size, config.speculative
    lacking = (
        (
            block != config.page_size,
            f"page_size: {config.page_size} is {block}, the least that its attention takes on a CPU",
        ),
        (cpu, "attention_backend: its own for CPUs"),
        (config.cuda_graph.enabled, "cuda_graph: its graphs are not used"),
        (
            config.memory.fill != "zeros" or config.memory.guards,
            "memory: fill and guards are not there; its memory is torch's",
        ),
        (spec is not None and spec.worker != "v2", "speculative.worker: it has its own"),
    )
    tree = 1 if spec is None else spec.tree_size
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": config.dtype,
        "max_model_len": config.context_length,
        "max_num_seqs": config.max_running_requests,
        "block_size": block,
        # one of its blocks is never given away
        "num_gpu_blocks_override": -(-config.usable_slots // block) + 1,
        "enable_prefix_caching": config.radix_cache,
        "enforce_eager": True,
        # the most of a step: a chunk of a prompt, or a whole one, and beside it a verify of every request
        "max_num_batched_tokens": (
            (config.chunked_prefill_size or config.context_length) + config.max_running_requests * tree
        ),
        "enable_chunked_prefill": config.chunked_prefill_size is not None,
    }
    if spec is not None:
        _require_possible(spec)
        draft_of = {"method": METHODS[spec.algorithm], "model": draft, "num_speculative_tokens": spec.num_steps}
        arguments["speculative_config"] = draft_of
    return arguments, [note for otherwise, note in lacking if otherwise]


def _require_possible(spec: SpeculativeConfig) -> None:
    kept, known = "vLLM keeps the draft's KV with the target's", ", ".join(METHODS)
    for wrong, name, why in (
        (spec.eagle_topk > 1, "eagle_topk", f"vLLM drafts chains, not trees, so it is 1, not {spec.eagle_topk}"),
        (spec.threshold_single != 1.0, "threshold_single", "vLLM has no such threshold"),
        (spec.threshold_acc != 1.0, "threshold_acc", "vLLM has no such threshold"),
        (spec.draft_kv_on_hit != "recompute", "draft_kv_on_hit", kept),
        (spec.algorithm not in METHODS, "algorithm", f"of vLLM's methods here are {known}; not {spec.algorithm}"),
    ):
        if wrong:
            raise InvalidOption(why, ("speculative", name))


ARCHITECTURE = "EagleLlamaForCausalLM"
_WEIGHTS = "model.safetensors"
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")


def draft_folder(name: str, target: str, below: Path) -> Path:
    """The folder of a draft head for vLLM: its own, or one made ``below``. ``target``: whose embedding it shares.
    Raises SpecDebugError."""
    path, shared = checkpoint_path(name).resolve(), checkpoint_path(target).resolve()
    config = config_of(path)
    eagle3 = any("eagle3" in str(each).lower() for each in config.get("architectures") or ())
    if eagle3 or (config.get("architectures") == [ARCHITECTURE] and "bias" not in config):
        return path
    config = {**{key: value for key, value in config.items() if key != "bias"}, "architectures": [ARCHITECTURE]}
    below /= hashlib.sha256(str(shared).encode()).hexdigest()[:12]
    return remade(path, config, below, lambda made: _write_weights(path, shared, made / _WEIGHTS))


def with_bias_folded(weights: Mapping[str, Tensor], embedding: Tensor) -> dict[str, Tensor]:
    """A head's tensors without ``fc.bias``, and with an embedding that stands for it. ``embedding``: [V, H], the one
    that the head would have used. Raises CheckpointError where no embedding can stand for the bias."""
    import torch

    rest = dict(weights)
    bias = rest.pop("fc.bias", None)
    if bias is None:
        return rest
    half = rest["fc.weight"][:, : embedding.shape[1]].double()
    try:
        shift = torch.linalg.solve(half, bias.double())
    except RuntimeError:  # torch.linalg.LinAlgError
        raise CheckpointError(
            "the head's fc.bias cannot be folded into its embedding, and vLLM's fc has none"
        ) from None
    rest["embed_tokens.weight"] = (embedding.double() + shift).float()
    return rest


def _write_weights(head: Path, target: Path, into: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors, of_target = (
        {name: each for file in sorted(folder.glob("*.safetensors")) for name, each in load_file(file).items()}
        for folder in (head, target)
    )
    found = next((each[name] for each in (tensors, of_target) for name in _EMBEDDINGS if name in each), None)
    if found is None:
        raise CheckpointError(f"neither {head} nor {target} has an embedding")
    beside = name_beside(into)
    save_file({name: each.contiguous() for name, each in with_bias_folded(tensors, found).items()}, beside)
    os.replace(beside, into)
