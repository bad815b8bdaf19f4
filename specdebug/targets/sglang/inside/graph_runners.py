"""SGLang's graph runners (target, draft, draft extend) on a CPU, as each release has them.

In 0.5.13 each runner captures by a method of its own; from 0.5.18 on all have a graph backend that does.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch

from specdebug.targets.sglang.inside.graphs import ReplayedCall
from specdebug.targets.sglang.inside.releases import installed, of_release


def use_captured_calls() -> list[str]:
    """Have the graph runners capture on a CPU; returns what was replaced."""
    from sglang.srt.model_executor import forward_batch_info

    torch.cuda.CUDAGraph = ReplayedCall  # type: ignore[misc, assignment]
    torch.cpu.graph_pool_handle = lambda: 0  # type: ignore[attr-defined]
    torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]
    torch.cuda.current_stream = torch.cpu.current_stream  # type: ignore[assignment]
    forward_batch_info.ForwardMode.is_cpu_graph = forward_batch_info.ForwardMode.is_cuda_graph
    use = of_release({"0.5.13": _capturing_runners, "0.5.18": _capturing_backend}, installed())
    return ["torch.cuda.CUDAGraph", "torch.cuda.current_stream", "ForwardMode.is_cpu_graph", *use()]


def _capture_context(*_: Any, **__: Any) -> Any:
    """In the place of ``graph_capture``, which gives a stream to capture on."""
    return contextlib.nullcontext(types.SimpleNamespace(stream=None))


def _capturing_runners() -> list[str]:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor import cuda_graph_runner
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative import eagle_draft_cuda_graph_runner as draft
    from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as extend
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    def capture(self: Any, graph: ReplayedCall, pool: Any, stream: Any, run_once_fn: Callable[[], Any]) -> Any:
        return graph.capture(run_once_fn, self)

    def init_device_graphs(self: Any) -> None:
        self.graph_runner, self.graph_mem_usage = None, 0
        if self.is_generation and not self.server_args.disable_cuda_graph:
            self.graph_runner = cuda_graph_runner.CudaGraphRunner(self)

    runners = (
        cuda_graph_runner.CudaGraphRunner,
        draft.EAGLEDraftCudaGraphRunner,
        extend.EAGLEDraftExtendCudaGraphRunner,
    )
    for runner in runners:
        runner._capture_graph = capture
    for module in (cuda_graph_runner, draft, extend):
        if hasattr(module, "set_graph_pool_id"):
            module.set_graph_pool_id = lambda *_: None
    cuda_graph_runner.graph_capture = _capture_context
    ModelRunner.init_device_graphs = init_device_graphs
    EagleDraftWorker.init_cuda_graphs = _captures_drafts(
        lambda worker: worker.server_args.disable_cuda_graph, (TritonAttnBackend,)
    )
    return [*(f"{runner.__name__}._capture_graph" for runner in runners),
            "ModelRunner.init_device_graphs", "EagleDraftWorker.init_cuda_graphs"]  # fmt: skip


def _capturing_backend() -> list[str]:
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
    from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
    from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner as decode
    from sglang.srt.model_executor.runner_backend import full_cuda_graph_backend as full
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    def capture_one(self: Any, shape_key: Any, forward_fn: Callable[[], Any], *_: Any, **__: Any) -> None:
        self._graphs[shape_key] = graph = ReplayedCall()
        self._outputs[shape_key] = graph.capture(forward_fn, self._cuda_graph_runner)

    def disabled(_: Any = None) -> bool:
        return bool(check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED))

    def capture_decode_graph(*, model_runner: Any) -> Any:
        runner = None if disabled() else decode.DecodeCudaGraphRunner(model_runner)
        phase = "target_verify" if model_runner.spec_algorithm.is_speculative() else "decode"
        return cuda_graph_setup.GraphCapture(runner=runner, memory_phase=phase, memory_usage_gb=0.0, capture_time=0.0)

    full.FullCudaGraphBackend.capture_one = capture_one
    full.set_graph_pool_id = lambda *_: None
    decode.graph_capture = _capture_context
    cuda_graph_setup.capture_decode_graph = capture_decode_graph
    extends = (TritonAttnBackend, FlashInferAttnBackend)
    extends = of_release({"0.5.18": extends, "0.5.23": (*extends, FlashAttentionBackend)}, installed())
    EagleDraftWorker._capture_cuda_graphs = _captures_drafts(disabled, extends)
    return ["FullCudaGraphBackend.capture_one", "cuda_graph_setup.capture_decode_graph",
            "EagleDraftWorker._capture_cuda_graphs"]  # fmt: skip


def _captures_drafts(disabled: Callable[[Any], bool], extends: tuple[type, ...]) -> Callable[[Any], None]:
    """The method of a draft worker that captures its graphs. ``extends``: the attention backends, of those here, for
    which SGLang captures the draft's extend."""
    from sglang.srt.speculative import eagle_draft_cuda_graph_runner as draft
    from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as extend

    def capture_drafts(self: Any) -> None:
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = None
        if disabled(self):
            return
        if self.speculative_num_steps > 1:
            self.cuda_graph_runner = draft.EAGLEDraftCudaGraphRunner(self)
        if isinstance(self.draft_extend_attn_backend, extends):
            self.cuda_graph_runner_for_draft_extend = extend.EAGLEDraftExtendCudaGraphRunner(self)

    return capture_drafts
