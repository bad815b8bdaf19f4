"""CUDA graphs without CUDA, under SGLang's own graph runners: their padding, static buffers and metadata are theirs.

A replay calls the captured function again over the same static buffers, and puts what it returns where the capture's
answer lies, as a graph would. Two things a graph keeps are kept: the forward context, and each attention backend's
metadata, of the capture; what Python would find there now is not what a graph reads. What the function does on the host
happens at each replay, which is the one difference.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class ReplayedCall:
    """In the place of ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._call: Callable[[], Any]
        self._context: Any = None
        self._planned: list[tuple[Any, Any]] = []
        self._answer: Any = None

    def pool(self) -> int:
        return 0

    def reset(self) -> None:
        """Do nothing: there is no memory to give back."""

    def capture(self, call: Callable[[], Any], backends: Sequence[Any]) -> Any:
        """Call it once, and keep what it was called with; returns the answer that replays write."""
        from sglang.srt.model_executor.forward_context import get_forward_context

        self._call, self._context = call, get_forward_context()
        self._planned = [(each, each.forward_metadata) for each in backends if hasattr(each, "forward_metadata")]
        self._answer = call()
        return self._answer

    def replay(self) -> None:
        from sglang.srt.model_executor.forward_context import forward_context

        with torch.inference_mode(), _metadata(self._planned), forward_context(self._context):
            _write(self._answer, self._call())


@contextlib.contextmanager
def _metadata(planned: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Give backends the metadata of a capture meanwhile."""
    now = [(backend, backend.forward_metadata) for backend, _ in planned]
    for backend, metadata in planned:
        backend.forward_metadata = metadata
    try:
        yield
    finally:
        for backend, metadata in now:
            backend.forward_metadata = metadata


def _write(kept: Any, new: Any) -> None:
    """Copy an answer over the one that is kept, tensor by tensor."""
    if isinstance(kept, Tensor):
        if isinstance(new, Tensor) and kept.data_ptr() != new.data_ptr():
            kept.copy_(new)
    elif isinstance(kept, (tuple, list)):
        for old, each in zip(kept, new, strict=True):
            _write(old, each)
    elif hasattr(kept, "__dict__"):
        for name, value in vars(kept).items():
            if isinstance(value, (Tensor, tuple, list)):
                _write(value, getattr(new, name, None))


def backends_of(runner: Any) -> list[Any]:
    """The attention backends that a graph runner's forward may use, those within others included."""
    worker = getattr(runner, "eagle_worker", None)
    found = [
        runner.model_runner.attn_backend,
        getattr(runner, "attn_backend", None),
        getattr(runner, "draft_attn_backend", None),
        getattr(worker, "draft_extend_attn_backend", None),
    ]
    every = [each for each in found if each is not None]
    every += [inner for each in every for inner in getattr(each, "attn_backends", ())]
    return list({id(each): each for each in every}.values())


def use_captured_calls() -> list[str]:
    """Have SGLang's graph runners (target, draft, draft extend) capture on a CPU; returns what was replaced."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor import cuda_graph_runner, forward_batch_info
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative import eagle_draft_cuda_graph_runner as draft
    from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as extend
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    def capture(self: Any, graph: ReplayedCall, pool: Any, stream: Any, run_once_fn: Callable[[], Any]) -> Any:
        return graph.capture(run_once_fn, backends_of(self))

    def init_device_graphs(self: Any) -> None:
        self.graph_runner, self.graph_mem_usage = None, 0
        if self.is_generation and not self.server_args.disable_cuda_graph:
            self.graph_runner = cuda_graph_runner.CudaGraphRunner(self)

    def init_cuda_graphs(self: Any) -> None:
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = None
        if self.server_args.disable_cuda_graph:
            return
        if self.speculative_num_steps > 1:
            self.cuda_graph_runner = draft.EAGLEDraftCudaGraphRunner(self)
        if isinstance(self.draft_extend_attn_backend, TritonAttnBackend):  # of those here, the one it captures for
            self.cuda_graph_runner_for_draft_extend = extend.EAGLEDraftExtendCudaGraphRunner(self)

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
    torch.cuda.CUDAGraph = ReplayedCall  # type: ignore[misc, assignment]
    torch.cpu.graph_pool_handle = lambda: 0  # type: ignore[attr-defined]
    torch.cuda.current_stream = torch.cpu.current_stream  # type: ignore[assignment]
    cuda_graph_runner.graph_capture = lambda *_, **__: contextlib.nullcontext(types.SimpleNamespace(stream=None))
    forward_batch_info.ForwardMode.is_cpu_graph = forward_batch_info.ForwardMode.is_cuda_graph
    ModelRunner.init_device_graphs = init_device_graphs
    EagleDraftWorker.init_cuda_graphs = init_cuda_graphs
    return ["torch.cuda.CUDAGraph", *(f"{runner.__name__}._capture_graph" for runner in runners),
            "ModelRunner.init_device_graphs", "EagleDraftWorker.init_cuda_graphs"]  # fmt: skip
