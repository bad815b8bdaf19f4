"""The target ``vllm``: a release of vLLM that is installed here, with a scenario's engine options as its arguments."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import specdebug
from specdebug.base import features
from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, InvalidOption, SpecDebugError
from specdebug.base.files import name_beside
from specdebug.engine.config import EngineConfig, SpeculativeConfig, round_up
from specdebug.targets.algorithms import VLLM
from specdebug.targets.base import Asked, Opening, Session, Traits
from specdebug.targets.installed import InstalledTarget, config_of, key_value_heads, make_import_folder, remade
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.options import VLLMS
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.relations import RELATIONS, Kept, Relation, Twin
from specdebug.targets.sglang.drafts import block_draft
from specdebug.targets.vllm.faults import VllmFaults
from specdebug.targets.vllm.mtp_draft import with_layer
from specdebug.workers.home import Home
from specdebug.workers.pool import PRELOAD

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.kernel_memory.finding import KernelRule
    from specdebug.targets.vllm.session import VllmSession

METHODS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NGRAM": "ngram",
    "STANDALONE": "draft_model",
    "DFLASH": "dflash",
    "NEXTN": "mtp",
}
"""vLLM's names of the algorithms."""
NGRAMS = {"prompt_lookup_min": 1, "prompt_lookup_max": 12}
"""Tokens that must have followed each other before: the most are tried first."""
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
LAUNCHED = "external_launcher"
"""vLLM's executor of ranks that it does not start itself, each with an engine of its own."""
SECOND = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's own switch between its model runners."""
_INTERPRETED_ENV = {"TRITON_INTERPRET": "1"}
_NAMED = f"specdebug_triton-{specdebug.__version__}.dist-info"
_BACKEND = {
    f"{_NAMED}/METADATA": f"Metadata-Version: 2.1\nName: specdebug-triton\nVersion: {specdebug.__version__}\n",
    f"{_NAMED}/entry_points.txt": "[triton.backends]\ncpu = specdebug.targets.vllm.inside.triton_backend\n",
}
"""A distribution that names Triton a backend ``cpu``, without which vLLM takes no Triton on a CPU."""
ON_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
"""GiB, of which how much is used says the number of blocks; and threads: a fork has none of its parent's."""
WITHOUT_A_GPU = (
    "GPU kernels, CUDA graphs and streams: there are none, its own code for CPUs runs in their place",
    "Triton kernels: vLLM's own stand-ins for CPUs (vllm.utils.cpu_triton_utils)",
)
"""The parts of a run on a CPU that are not the code that serves on a GPU, in words for reports."""
SHOWS: frozenset[Ability] = INSIDE | {
    *("steps", "tokens", "plain", "logits", "accept_lengths", "cached_tokens", "cache_flush", "probes", "reverts"),
    *("faults", "logprobs", "set_back"),
}


class VllmTarget(InstalledTarget):
    """A release of vLLM, whose engine is built in a worker that runs with its environment's Python."""

    traits = Traits("vllm", SHOWS, records=True, faults=VllmFaults(), features=features.ALL)
    # A request draws from a generator of its own, seeded by what it asks.
    coins = frozenset(RELATIONS) - {"plain", "reference", "release", "retracted"}
    no_twins = MappingProxyType(
        {
            "backend": "it has one attention backend on a CPU",
            "dp": "its ranks share layers here, and no requests",
            "eager": "its graphs are not used here",
            "overlap": "its engine, stepped in one process, waits for each batch as it is",
            "pd": "one server prefills and decodes here",
        }
    )

    @property
    def second(self) -> bool:
        """True if its model runner V2 serves."""
        return self._settings.runner == "v2"

    def twin(self, relation: Relation, options: Mapping[str, Any], prompt: int) -> Twin:
        if relation.name != "runner":
            return super().twin(relation, options, prompt)
        named = ("v2", "v1") if self.second else ("v1", "v2")
        how = f"the model runner {named[1]} in place of {named[0]}"
        # V2 drafts by n-grams what it finds for a whole chain, V1 as much as follows
        unlike: tuple[Kept, ...] = ("accept lengths",) if VLLM.named(options)[0] == "NGRAM" else ()
        return Twin(how, target=replace(self._settings, runner=named[1]), unlike=unlike)

    def options_of_twin(self, relation: str, options: Mapping[str, Any], prompt: int) -> dict[str, Any] | None:
        if relation != "page":
            return super().options_of_twin(relation, options, prompt)
        page = CPU_BLOCK if options["page_size"] > CPU_BLOCK else 2 * CPU_BLOCK
        slots = options["memory"]["num_slots"] + page * options["max_running_requests"]
        return {"page_size": page, "memory": {"num_slots": round_up(slots, page)}}

    def asked(self, options: Mapping[str, Any]) -> Asked:
        # what it cannot do is told before anything is started
        mapped(VLLMS.read(options), "", "", cpu=True, algorithm=VLLMS.shape(options).algorithm)
        device = "cpu"
        with contextlib.suppress(StoreError):  # nothing is installed, which the run will say
            device = self.installed().device
        if device != "cpu" and RankLayout.read(options).world > 1:
            raise InvalidOption("vLLM's ranks are run on a CPU alone", ("tp",))
        asked = replace(VLLMS.asked(options), device=device, attention_backend="vllm", guards=False, graphs=())
        return replace(asked, context_length=self.room(options))

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        return tuple(f"engine.{note}" for note in self.mapped(options, here)[1])

    def interprets(self, here: Installed) -> bool:
        return here.device == "cpu" and self.second

    def home(self) -> Home:
        here = self.installed()
        cpu = here.device == "cpu"
        interpreted = cpu and self.second
        own = ALWAYS_ENV | {SECOND: str(int(self.second))} | (ON_CPU_ENV if cpu else {})
        own |= (_INTERPRETED_ENV if interpreted else {}) | self._settings.variables
        files, packages = (_BACKEND, [triton_package()]) if interpreted else ({}, [])
        # A GPU's process cannot be forked once it has one, so there each worker imports the engine itself.
        preload = (*PRELOAD, *((f"{__package__}.inside.imported",) if cpu else ()))
        path = tuple(filter(None, (here.tree, str(make_import_folder(here.folder, files, packages)))))
        return Home(here.python, path, tuple(sorted(own.items())), preload)

    def forks(self, options: Mapping[str, Any]) -> bool:
        return RankLayout.read(options).world == 1

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> Session:
        """The engine is built with no seed of a run's: trials of many seeds share it."""
        from specdebug.targets.inside.failure import importing
        from specdebug.targets.launch.process import free_port
        from specdebug.targets.ranks.session import Ranks
        from specdebug.targets.vllm.inside.imported import ENGINE
        from specdebug.targets.vllm.inside.together import BY_GLOO, be_rank
        from specdebug.targets.vllm.session import VllmSession, build

        here, asked = self.begun(options, opening)
        there, layout = opening.over_there, RankLayout.read(options)
        with importing(self._settings):
            importlib.import_module(ENGINE)
        replaced = [*WITHOUT_A_GPU, *([BY_GLOO] if layout.world > 1 else [])]
        if asked.device == "cpu" and self.second:
            replaced[1:2] = ready_to_interpret(there.kernels)
        shows = (SHOWS - INSIDE | frozenset(there.shows)) - VLLM.hidden_by(options)

        def make(rank: int, watch: Callable[[], None] | None, starts: Mapping[str | None, int]) -> VllmSession:
            if layout.world > 1:
                be_rank(rank, layout.world, starts[None])
            engine = build(self.mapped(options, here)[0], self._settings.arguments)
            return VllmSession(engine, asked, shows, opening, watch)

        starts: dict[str | None, int] = {None: free_port()}
        heads = key_value_heads(checkpoint_path(asked.model))
        alone = layout.world == 1
        session = make(0, None, starts) if alone else Ranks(layout, make, opening.limit_s).open(starts, heads)
        opening.busy.said("")
        if asked.device == "cpu":
            opening.say("not_engine_code", parts=replaced)
        return session

    def mapped(self, options: Mapping[str, Any], here: Installed) -> tuple[dict[str, Any], list[str]]:
        """As :func:`mapped`, checkpoints by their folders."""
        config, algorithm = VLLMS.read(options), VLLMS.shape(options).algorithm
        named = {place[-1]: name for place, name in VLLMS.checkpoints(options)}
        draft, below = named.get("draft_model"), here.folder / "checkpoints"
        model = checkpoint_path(config.model).resolve()
        if algorithm == "NEXTN" and draft is not None:
            model = with_layer(draft, config.model, below)  # vLLM loads the layer from the target's own folder
            draft = str(model)
        elif draft is not None:
            draft = str(self._draft(draft, config.model, options, below))
        arguments, notes = mapped(config, str(model), draft, cpu=here.device == "cpu", algorithm=algorithm)
        ranks = {"tensor_parallel_size": RankLayout.read(options).tp, "distributed_executor_backend": LAUNCHED}
        return arguments | (ranks if RankLayout.read(options).world > 1 else {}), notes

    def _draft(self, name: str, model: str, options: Mapping[str, Any], below: Path) -> Path:
        """The folder of a draft. Raises SpecDebugError."""
        _, foreign, _ = VLLM.named(options)
        if foreign is None:
            return draft_folder(name, model, below)
        made = block_draft(name, below) if foreign.draft == "block" else None
        return checkpoint_path(name).resolve() if made is None else made


def ready_to_interpret(kernels: Sequence[KernelRule]) -> list[str]:
    """Have Triton's interpreter run vLLM's kernels in this process, their memory held by rules; what is otherwise than
    on a GPU, a line each."""
    from specdebug import kernel_memory
    from specdebug.targets.inside.speed import interpret_fast
    from specdebug.targets.vllm.inside.interpreter import mend_interpreter

    interpret_fast()
    mended = mend_interpreter()
    if kernels:
        kernel_memory.begin(kernels)
    return ["Triton kernels: Triton's interpreter runs them", *mended]


def triton_package() -> Path:
    """The folder of our own environment's Triton, which an engine of the same Python can import. Raises SpecDebugError
    where there is none."""
    found = importlib.util.find_spec("triton")
    if found is None or not found.submodule_search_locations:
        raise SpecDebugError("target.runner: v2 needs Triton, and specdebug's own environment has none")
    return Path(found.submodule_search_locations[0])


def mapped(
    config: EngineConfig, model: str, draft: str | None, *, cpu: bool, algorithm: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """vLLM's engine arguments for an engine of these options, but for the seed, checkpoints by their folders, and what
    is otherwise there, a line for each option. ``algorithm``: what it drafts by, where that is not the options' own.
    Raises InvalidOption for what vLLM cannot do."""
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
        algorithm = algorithm or spec.algorithm
        _require_possible(spec, algorithm)
        drafts = NGRAMS if draft is None else {"model": draft}
        method = {"method": METHODS[algorithm], "num_speculative_tokens": spec.num_steps}
        arguments["speculative_config"] = method | drafts
    return arguments, [note for otherwise, note in lacking if otherwise]


def _require_possible(spec: SpeculativeConfig, algorithm: str) -> None:
    kept, known = "vLLM keeps the draft's KV with the target's", ", ".join(METHODS)
    for wrong, name, why in (
        (spec.eagle_topk > 1, "eagle_topk", f"vLLM drafts chains, not trees, so it is 1, not {spec.eagle_topk}"),
        (spec.threshold_single != 1.0, "threshold_single", "vLLM has no such threshold"),
        (spec.threshold_acc != 1.0, "threshold_acc", "vLLM has no such threshold"),
        (spec.draft_kv_on_hit != "recompute", "draft_kv_on_hit", kept),
        (algorithm not in METHODS, "algorithm", f"of vLLM's methods here are {known}; not {algorithm}"),
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
