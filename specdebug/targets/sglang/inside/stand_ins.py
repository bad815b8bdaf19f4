"""The stand-ins put into SGLang's modules on a CPU, where a release has them: kernels, and the device it sees. SGLang's
own function around a kernel runs as it is; its branches for CPUs, from 0.5.16 on, are switched off."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from specdebug.targets.inside.guard import tell_lost
from specdebug.targets.sglang.inside import attention, recurrent, sgl_kernel
from specdebug.targets.sglang.inside.empty_modules import EmptyModule
from specdebug.targets.sglang.inside.launches import LaunchedStandIn, TorchKernel
from specdebug.targets.sglang.inside.seats import Seat, in_sglang, installed

_KERNELS, _OLD_KERNELS = "kernels.ops.attention", "srt.layers.attention.triton_ops"
_UTILS = "srt.speculative.eagle_utils"
_HOOK = "srt.arg_groups.speculative_hook"
_TREE, _SAMPLE = "kernels.ops.speculative.tree", "kernels.ops.speculative.sampling"
_SAMPLING = (
    sgl_kernel.tree_speculative_sampling_target_only,
    sgl_kernel.top_k_renorm_prob,
    sgl_kernel.top_p_renorm_prob,
)
_LINEAR = "srt.layers.attention.linear"
_BRANCHES: dict[str, tuple[str, ...]] = {
    "kernels.ops.kvcache.cache_move": ("_is_cpu",),
    "kernels.ops.speculative.cache_locs": ("_is_cpu", "_is_cuda"),
    "kernels.ops.speculative.eagle": ("_is_cpu",),
    "kernels.ops.speculative.spec_tree": ("_is_cpu", "_is_cuda"),
    "srt.mem_cache.allocation": ("_is_cpu",),
    "srt.speculative.triton_ops.cache_locs": ("_is_cuda",),
    "srt.speculative.eagle_utils": ("_is_cpu", "_is_cuda"),
    "srt.speculative.eagle_worker_common": ("_is_cpu",),
    "srt.speculative.eagle_worker_v2": ("_is_cpu", "_is_cuda"),
    "srt.speculative.ngram_worker": ("_is_cpu",),
    "srt.speculative.spec_utils": ("_is_cpu",),
}
"""Modules in which SGLang is told that this is a GPU, and by which of their names."""


@dataclass(frozen=True)
class StandIn:
    """A stand-in for a name. ``made``: out of what is there, None for what only a GPU's process imports.
    ``needed``: every release must have one of the places; of others, a release that has none has nothing to replace.
    ``kernel``: of a Triton kernel, what it is stood in for by. ``late``: it is put there for recurrent layers alone."""

    places: tuple[str, ...]
    made: Callable[[Any], Any]
    needed: bool = True
    kernel: TorchKernel | None = None
    late: bool = False

    @property
    def seat(self) -> Seat:
        return Seat("kernels in torch", self.places)

    @property
    def applies(self) -> bool:
        """True where there is something to replace, or should be."""
        return self.needed or any(map(installed().has, self.places))

    def put(self) -> str:
        """Put it there; returns the place. Raises NoSeat."""
        owner, name = self.seat.find()
        setattr(owner, name, self.made(getattr(owner, name, None)))
        return self.seat.place(installed()).removeprefix("srt.").replace(":", ".")


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _triton(kernel: TorchKernel, module: str, name: str) -> StandIn:
    places = tuple(f"{folder}.{module}:{name}" for folder in (_KERNELS, _OLD_KERNELS))
    return StandIn(places, lambda there: LaunchedStandIn(there, kernel), kernel=kernel)


def _its_own(module: str, otherwise: Any) -> Callable[[Any], Any]:
    """A function of SGLang's own around a kernel, by the name of the stand-in for that; the stand-in itself where a
    release takes that from sgl-kernel."""

    def made(_: Any) -> Any:
        if not installed().has(f"{module}:{otherwise.__name__}"):
            return otherwise
        return getattr(importlib.import_module(f"sglang.{module}"), otherwise.__name__)

    return made


def _of_module(module: str, name: str) -> Callable[[Any], Any]:
    """A name of SGLang's that another module of its has."""
    return lambda _: getattr(importlib.import_module(f"sglang.{module}"), name)


class _OnAGpu:
    """Options, but for the device, which is a GPU."""

    device = "cuda"

    def __init__(self, options: Any) -> None:
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)


def _on_a_gpu(handle: Callable[..., Any]) -> Callable[..., Any]:
    """A function that completes SGLang's options, in which the device is a GPU while it does."""

    @functools.wraps(handle)
    def handled(*args: Any, **named: Any) -> Any:
        module: Any = importlib.import_module(f"sglang.{_HOOK}")
        view = module.resolving_view
        module.resolving_view = lambda options: _OnAGpu(view(options))
        try:
            return handle(*args, **named)
        finally:
            module.resolving_view = view

    return handled


class _NoCpu:
    """A platform, but that it is no CPU."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def is_cpu(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def _its_rope(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """What picks a rotary embedding by the device picks that of a GPU."""

    @functools.wraps(wrapper)
    def picked(*args: Any, **named: Any) -> Any:
        return wrapper(*args, **{**named, "device": "cuda"})

    return picked


def _of_no_tokens(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """A rotary embedding in torch, which a rank without requests calls for no token: it cannot tell heads of none."""

    @functools.wraps(rotate)
    def rotated(self: Any, positions: Any, query: Any, key: Any, *args: Any, **named: Any) -> Any:
        return rotate(self, positions, query, key, *args, **named) if positions.numel() else (query, key)

    return rotated


def _of_its_group(_: Any) -> Callable[..., None]:
    """An exchange of all ranks with all, which SGLang has as an operator of a GPU: the group's own function."""

    def exchanged(output: Any, input: Any, group_name: str) -> None:
        in_sglang("srt.distributed.parallel_state")._groups[group_name]()._all_to_all_single(output, input)

    return exchanged


def _no_nccl(*_: Any) -> None:
    """In the place of NCCL's library, which is there beside a torch for GPUs: its ranks would take one each."""
    raise OSError("there is no NCCL on a CPU")


def _asked_as_on_a_gpu() -> Sequence[str]:
    """Backends are asked what a CPU's graphs pad lengths with, which those of a GPU do not know: the same as theirs."""
    seat = Seat("the padding of lengths", ("srt.layers.attention.base_attn_backend:AttentionBackend",))
    if not installed().has("srt.model_executor.cpu_graph_runner"):
        return []
    owner, name = seat.find()
    getattr(owner, name).get_cpu_graph_seq_len_fill_value = lambda self: self.get_cuda_graph_seq_len_fill_value()
    return []


_SEEDED: tuple[tuple[str, Any], ...] = (
    ("srt.model_executor.model_runner:ModelRunner.maybe_enable_batch_invariant_mode", lambda self: None),
    ("kernels.ops.sampling.murmur_hash:murmur_hash32", sgl_kernel.murmur_hash32),
    ("srt.layers.sampler:murmur_hash32", sgl_kernel.murmur_hash32),
)
"""Draws by a request's own seed take kernels that compute a row alike in any batch, and hash what they draw by."""


_DELTA, _SCATTER = f"{_LINEAR}.kernels.gdn_triton", "kernels.ops.mamba.mamba_state_scatter_triton"
_MAMBA = "srt.layers.attention.mamba.mamba"
_RECURRENT: tuple[tuple[str, Any], ...] = (
    ("srt.arg_groups.mamba_hook:_platform_supports_mamba_cache_extra_buffer", lambda: True),
    ("srt.models.qwen3_next:_is_cpu", False),
    ("srt.models.qwen3_next:fused_qkvzba_split_reshape_cat", recurrent.fused_qkvzba_split_reshape_cat),
    (
        "kernels.ops.elementwise.elementwise:_launch_fused_gate_sigmoid_mul",
        recurrent.launch_fused_gate_sigmoid_mul,
    ),
    (f"{_DELTA}:chunk_gated_delta_rule", recurrent.chunk_gated_delta_rule),
    (
        f"{_DELTA}:fused_recurrent_gated_delta_rule_packed_decode",
        recurrent.fused_recurrent_gated_delta_rule_packed_decode,
    ),
    (f"{_DELTA}:fused_sigmoid_gating_delta_rule_update", recurrent.fused_sigmoid_gating_delta_rule_update),
    (f"{_SCATTER}:fused_mamba_state_scatter_with_mask", recurrent.scatter_states),
    (f"{_SCATTER}:fused_conv_window_scatter_with_mask", recurrent.scatter_states),
    (f"{_SCATTER}:_conv_multi_eligible", lambda _: False),
    (f"{_MAMBA}:mamba_chunk_scan_combined", recurrent.mamba_chunk_scan_combined),
    (f"{_MAMBA}:selective_state_update", recurrent.selective_state_update),
)
"""Kernels of recurrent layers, put there for models that have such."""


def _all() -> Iterable[StandIn]:
    yield _triton(attention.STAGE1, "decode_attention", "_fwd_kernel_stage1")
    yield _triton(attention.STAGE1, "decode_attention", "_fwd_grouped_kernel_stage1")
    yield _triton(attention.STAGE2, "decode_attention", "_fwd_kernel_stage2")
    yield _triton(attention.EXTENDING, "extend_attention", "_fwd_kernel")
    fa3 = tuple(f"{folder}.flash_attention_v3:_is_fa3_supported" for folder in (_KERNELS, "jit_kernel"))
    yield StandIn(fa3, _constant(lambda _=None: True))
    hopper = _constant(lambda *_, **__: (9, 0))  # the compute capability that FlashAttention 3 wants
    yield StandIn(("srt.layers.attention.attention_registry:get_device_capability",), hopper)
    # The modules that SGLang compiles for its tree kernels and for its sampling kernel.
    tree = SimpleNamespace(
        build_tree_kernel_efficient=sgl_kernel.build_tree_kernel_efficient,
        verify_tree_greedy=sgl_kernel.verify_tree_greedy,
        reconstruct_indices_from_tree_mask=sgl_kernel.reconstruct_indices_from_tree_mask,
    )
    sampling = SimpleNamespace(sample=sgl_kernel.tree_speculative_sampling_target_only)
    yield StandIn((f"{_TREE}:_jit_tree_module",), _constant(lambda: tree), needed=False)
    yield StandIn((f"{_SAMPLE}:_jit_sampling_module",), _constant(lambda *_: sampling), needed=False)
    builders = ("kernels.ops.speculative.spec_tree", _UTILS)
    build = _its_own(_TREE, sgl_kernel.build_tree_kernel_efficient)
    yield StandIn(tuple(f"{module}:sgl_build_tree_kernel_efficient" for module in builders), build)
    for kernel in _SAMPLING:
        # other releases import them where they call them
        for module in (
            _UTILS,
            *(f"srt.speculative.{name}" for name in ("eagle_info", "eagle_info_v2", "dflash_utils")),
        ):
            yield StandIn((f"{module}:{kernel.__name__}",), _its_own(_SAMPLE, kernel), needed=False)
    for there in ("eagle_info:TREE_SPEC_KERNEL_AVAILABLE", "dflash_utils:_DFLASH_SAMPLING_VERIFY_AVAILABLE"):
        yield StandIn((f"srt.speculative.{there}",), _constant(True), needed=False)
    # By the device, this would be a rope of sgl-kernel's for CPUs.
    yield StandIn(("srt.models.deepseek_v2:get_rope_wrapper",), _its_rope, needed=False)
    yield StandIn(("srt.layers.rotary_embedding.base:RotaryEmbedding.forward_native",), _of_no_tokens, needed=False)
    yield StandIn(("srt.distributed.device_communicators.pynccl:NCCLLibrary",), _constant(_no_nccl), needed=False)
    exchange = "srt.distributed.parallel_state:reg_all_to_all_single"
    yield StandIn((exchange,), _of_its_group, needed=False)
    # On a CPU it stores quantised keys and values for kernels of Intel's alone.
    for module in ("kv_cache_dtype", "kv_cache_configurator"):
        yield StandIn((f"srt.mem_cache.{module}:current_platform",), _NoCpu, needed=False)
    for place, value in _RECURRENT:
        yield StandIn((place,), _constant(value), needed=False, late=True)
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):  # which it imports on a GPU
        convolved = _of_module("kernels.ops.mamba.causal_conv1d_triton", name)
        yield StandIn((f"{_MAMBA}:{name}_triton",), convolved, needed=False, late=True)
    for place, value in _SEEDED:
        yield StandIn((place,), _constant(value), needed=False)
    # What turns overlap off for drafts on a CPU, and what refuses drafts of a block there.
    turned_off = _constant(lambda server_args: None)
    yield StandIn((f"{_HOOK}:_disable_overlap_schedule_for_cpu",), turned_off, needed=False)
    for name in ("_handle_dflash", "_handle_dspark"):
        yield StandIn((f"{_HOOK}:{name}",), _on_a_gpu, needed=False)
    for module, names in _BRANCHES.items():
        for name in names:
            yield StandIn((f"{module}:{name}",), _constant(name == "_is_cuda"), needed=False)


STAND_INS: tuple[StandIn, ...] = tuple(_all())


WITHOUT_A_GPU = (
    "CUDA graphs: a replay calls the captured Python again",
    "CUDA streams and events: there are none, what overlaps on a GPU runs in order",
)
"""The differences of a CPU beside the stand-ins, in words for reports."""


def without_a_gpu() -> list[str]:
    """All that a CPU's process does not run of SGLang's own, in words for reports."""
    return [*WITHOUT_A_GPU, *replace_for_cpu(), *_replaced_late, *_besides()]


def _besides() -> list[str]:
    """The other parts that a GPU does not run: SGLang's own way round a kernel, and modules that are empty here."""
    empty = sorted(name for name, module in sys.modules.items() if isinstance(module, EmptyModule) and "." not in name)
    moves = "KV moves by torch, SGLang's own (SGLANG_NATIVE_MOVE_KV_CACHE)"
    return [
        *([moves] if "SGLANG_NATIVE_MOVE_KV_CACHE" in os.environ else ()),
        *([f"empty modules: {', '.join(empty)}"] if empty else ()),
    ]


_replaced_late: list[str] = []


@cache
def replace_recurrent() -> None:
    """Import the modules of recurrent layers, where a release has them, so that they take a GPU's kernels, and put
    stand-ins in the place of these. They ask once, as they are imported, whether this is a CPU, and so do modules that
    they import: those are to be there by now."""
    utils: Any = importlib.import_module("sglang.srt.utils")
    asked = utils.is_cpu
    utils.is_cpu = lambda: False
    try:
        for name in ("kernels.gdn_triton", "gdn_backend", "kernels.kda_triton", "kda_backend", "lightning_backend"):
            if installed().has(f"{_LINEAR}.{name}:is_cpu"):
                importlib.import_module(f"sglang.{_LINEAR}.{name}")
    except ImportError as error:
        tell_lost("recurrent layers", error, stand_in=True)
    finally:
        utils.is_cpu = asked
    _replaced_late.extend(each.put() for each in STAND_INS if each.late and each.applies)


def prepare_for_cpu() -> None:
    """Put the stand-ins in place, once SGLang has imported what asks if there are a GPU's libraries and is not to find
    the stand-ins for them. One that this release has no place for is noted."""
    for module in ("sglang.srt.server_args", "sglang.srt.layers.quantization"):
        with suppress(ImportError):  # where there is no SGLang, or none like it, every stand-in says so
            importlib.import_module(module)
    replace_for_cpu()


def import_for_cpu() -> None:
    """Import SGLang with all its models, stand-ins in place."""
    prepare_for_cpu()
    for module in ("sglang.srt.managers.scheduler", "sglang.srt.models.registry"):
        importlib.import_module(module)


@cache
def replace_for_cpu() -> tuple[str, ...]:
    """Put the stand-ins in the place of what needs a GPU; returns the names of what was replaced. One that this release
    has no place for is told."""
    import torch

    from specdebug.targets.inside.speed import interpret_fast
    from specdebug.targets.sglang.inside.flashinfer import use_flashinfer
    from specdebug.targets.sglang.inside.graphs import GRAPHS, use_captured_calls

    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    torch.cuda.synchronize = nothing
    torch.cuda.empty_cache = nothing
    torch.Tensor.record_stream = nothing  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]
    replaced = ["torch.cuda.synchronize", "torch.cuda.empty_cache"]
    replaced += ["torch.Tensor.record_stream", "torch.Tensor.pin_memory"]
    puts: list[tuple[str, Callable[[], Sequence[str]]]] = [
        ("attention by FlashInfer", use_flashinfer),  # first: SGLang asks for it once
        ("Triton's interpreter", interpret_fast),
        *(
            (each.places[0], lambda each=each: [each.put()] if each.applies else [])
            for each in STAND_INS
            if not each.late
        ),
        (GRAPHS, use_captured_calls),
        ("the padding of lengths", _asked_as_on_a_gpu),
    ]
    for what, put in puts:
        try:
            replaced += put()
        except Exception as error:
            tell_lost(what, error, stand_in=True)
    return tuple(replaced)
