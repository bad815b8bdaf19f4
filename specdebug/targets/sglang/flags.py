"""A scenario's engine options as SGLang's command line. Most flags of ``specdebug serve`` are SGLang's own
(``engine_flags.py``); here stand those that differ, those that it has not, and those that a CPU needs besides."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from specdebug.base.engine_flags import ENGINE_FLAGS, values_of
from specdebug.base.errors import InvalidOption
from specdebug.targets.algorithms import ADAPTIVE, KV_DTYPE, SGLANG
from specdebug.targets.options import SGLANGS
from specdebug.targets.ranks.layout import CONNECTORS, RankLayout

NO_FLAG: dict[tuple[str, ...], str] = {
    ("memory", "fill"): "its memory is torch's: what it holds is not decided",
    ("memory", "guards"): "its buffers have no guard regions",
    ("speculative", "draft_kv_on_hit"): "it always recomputes",
    ("speculative", "worker"): "a release has its own",
    ("device",): "it is the environment's",
}
"""Options that SGLang has not, and what is so there."""

KNOWN = ("EAGLE", "EAGLE3", *SGLANG.foreign)
"""Algorithms whose drafts its checkpoints can be made from, or that are made."""
ADAPTING = "--speculative-adaptive"
_THREADS = "SGLANG_CPU_OMP_THREADS_BIND"

BY_PHASE = "srt.model_executor.cuda_graph_config:Phase"
"""There in releases that have graphs by phase, from 0.5.14 on, and flags for each."""
RENAMED = {"--cuda-graph-max-bs": "--cuda-graph-max-bs-decode", "--cuda-graph-bs": "--cuda-graph-bs-decode"}
"""The names of flags in those."""
NO_PREFILL_GRAPHS = {False: ("--disable-piecewise-cuda-graph",), True: ("--cuda-graph-backend-prefill", "disabled")}
ALWAYS = (
    "--skip-server-warmup", "--host", "127.0.0.1", "--log-level", "info", "--grammar-backend", "none",
    "--sampling-backend", "pytorch", "--mem-fraction-static", "0.5",
)  # fmt: skip
"""Beside the options: nothing that a scenario does not ask for, one sampler whose rules are known, and room on a device
for servers of other arms."""
IDLING = "--sleep-on-idle"
"""Of a server on a CPU: with nothing to do it would take a core from the judge. A session's idle steps are the
workload's, and the sockets that are slept on do not outlive a fork."""
STATES = ("--max-mamba-cache-size", "64")
"""Recurrent states that a pool holds: by itself SGLang takes as many as fit into half of the memory."""
ON_CPU = ("--device", "cpu", "--enable-cudagraph-gc")
"""A scheduler that thaws what a fork server froze would walk through all of it at each collection."""
ON_CPU_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_USE_SGL_FA3_KERNEL": "1",  # else it asks a hub for one
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
}
NATIVE_MOVES = {"SGLANG_NATIVE_MOVE_KV_CACHE": "1"}
"""Its own switch for KV moves by torch: its Triton kernel, interpreted, takes a third of a step. Not where kernels are
looked at."""
ALWAYS_ENV = {
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    # else a server that has crashed waits 65 s for dumps before it ends
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
}


def reserved_tokens(options: Mapping[str, Any]) -> int:
    """Tokens of the context that SGLang keeps free for drafts: it declines requests that want these, too."""
    branches, steps, nodes = SGLANGS.shape(options).tree or (0, 0, 0)
    return max(branches * steps, nodes)


def require_known(options: Mapping[str, Any]) -> None:
    """Raise InvalidOption for options that no engine can have, and for an algorithm of ours that no draft of SGLang's
    stands for."""
    algorithm = SGLANGS.shape(options).algorithm
    if algorithm is not None and algorithm not in KNOWN:
        known = ", ".join(KNOWN)
        raise InvalidOption(f"of SGLang's are mapped {known}; not {algorithm}", ("speculative", "algorithm"))


def mapped(
    options: Mapping[str, Any], *, cpu: bool, has: Callable[[str], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A release's command line for an engine of these options, every default of ours written out, and what is otherwise
    there, a line for each option. ``has`` says if a place is there in its files (``inside/seats.py``). Raises
    SpecDebugError for options that no engine can have, or not SGLang's."""
    by_phase = has(BY_PHASE)
    require_known(options)
    completed = SGLANGS.completed(options)
    values = values_of(completed)
    _, foreign, adapts = SGLANG.named(options)
    renamed = (RENAMED if by_phase else {}) | ({} if foreign is None else dict(foreign.renamed))
    unsaid = frozenset() if foreign is None else foreign.unsaid
    words = list(ALWAYS)
    for flag in ENGINE_FLAGS:
        here = not flag.ours and flag.into not in NO_FLAG and flag.parameter not in unsaid
        value = values[flag.parameter] if here else None
        if value is None or value is False:
            continue
        words.append(renamed.get(flag.name, flag.name))
        if value is not True:  # a switch that is on is its name alone
            words += map(str, value if isinstance(value, (list, tuple)) else (value,))
    words += [ADAPTING] if adapts and completed["speculative"][ADAPTIVE] else []
    words += _ranks(RankLayout.read(options))
    words += ["--kv-cache-dtype", completed[KV_DTYPE]] if KV_DTYPE in completed else []
    lacking = [place for place in NO_FLAG if place != ("device",) and _is_given(options, place)]
    words += (*NO_PREFILL_GRAPHS[by_phase], *(ON_CPU if cpu else ("--device", "cuda")))
    return tuple(words), tuple(f"{'.'.join(place)}: {NO_FLAG[place]}" for place in lacking)


def _ranks(layout: RankLayout) -> list[str]:
    words = ["--tp-size", str(layout.tp)] if layout.tp > 1 else []
    words += ["--pp-size", str(layout.pp)] if layout.pp > 1 else []
    return words + (["--enable-dp-attention", "--dp-size", str(layout.dp)] if layout.dp_attention else [])


def on_this_machine(layout: RankLayout, *, drafts: bool) -> dict[str, str]:
    """Variables that give each rank one of the cores of this process: on a CPU SGLang would have a NUMA node for each.
    What ranks hand over stays on this machine. Pipelines that draft are behind a switch of SGLang's."""
    cores = sorted(os.sched_getaffinity(0))
    bound = "|".join(str(cores[rank % len(cores)]) for rank in range(layout.world))
    variables = {"SGLANG_HOST_IP": "127.0.0.1", "MOONCAKE_PROTOCOL": "tcp", _THREADS: os.environ.get(_THREADS, bound)}
    return variables | ({"SGLANG_ENABLE_PP_SPEC": "1"} if layout.pp > 1 and drafts else {})


def disaggregated(layout: RankLayout, role: str | None, port: int | None) -> list[str]:
    """The words of a server that only prefills, or only decodes, beside another of the other role, which meet at a
    port."""
    if role is None or layout.disaggregation is None:
        return []
    connector = CONNECTORS[layout.disaggregation]
    words = ["--disaggregation-mode", role, "--disaggregation-transfer-backend", connector]
    words += ["--disaggregation-bootstrap-port", str(port)]
    # By itself what is set back goes to a pool on the host, for which it wants 10 GiB to be free besides.
    return [
        *words,
        *(
            ["--disaggregation-decode-retraction-backup", "cpu_tensor", "--num-reserved-decode-tokens", "64"]
            if role == "decode"
            else []
        ),
    ]


def _is_given(options: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    for key in place[:-1]:
        options = options.get(key) or {}
    return place[-1] in options
