"""The target ``vllm``: a release of vLLM that is installed here, with a scenario's engine options as its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import InvalidOption
from specdebug.base.interpreters import engine_python
from specdebug.engine.config import EngineConfig, SpeculativeConfig, round_up
from specdebug.targets.base import Asked, OverThere, Traits
from specdebug.targets.installed import InstalledTarget, make_import_folder
from specdebug.targets.installs.store import Installed
from specdebug.targets.launch.process import StartCommand
from specdebug.targets.launch.target import STARTED
from specdebug.targets.options import OURS
from specdebug.targets.vllm.checkpoints import draft_folder

METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3"}
"""vLLM's names of the algorithms."""
CPU_BLOCK = 32
"""Blocks of its attention on a CPU hold a multiple of so many slots."""
ALWAYS_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
ON_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB; how much of it is used says the number of blocks."""
SERVE = "specdebug.targets.vllm.inside.serve"


class VllmTarget(InstalledTarget):
    """A release of vLLM."""

    traits = Traits("vllm", STARTED, reverts=True, records=True)

    def asked(self, options: Mapping[str, Any]) -> Asked:
        mapped(OURS.read(options), "", "", cpu=True)  # what it cannot do is told before anything is started
        return replace(super().asked(options), probed=True)

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        return tuple(f"engine.{note}" for note in self._mapped(options, here)[1])

    def command(self, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
        """Raises StoreError where the release is not installed, SpecDebugError."""
        here = self.installed()
        arguments = {**self._mapped(options, here)[0], "seed": seed}
        own = ALWAYS_ENV | (ON_CPU_ENV if here.device == "cpu" else {})
        wanted = {"engine": arguments, "probes": [asdict(rule) for rule in there.rules], "tape": there.tape}
        env = self.environment(make_import_folder(here.folder, {}), here, there, own, **wanted)
        words = engine_python(here.python, "-m", SERVE, "--port", "{port}", *self._settings.arguments)
        return StartCommand(tuple(words), env)

    def _mapped(self, options: Mapping[str, Any], here: Installed) -> tuple[dict[str, Any], list[str]]:
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
