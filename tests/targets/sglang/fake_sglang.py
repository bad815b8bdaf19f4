"""SGLang as its sessions see it: modules whose scheduler answers with numbers that count up, two tokens a verify.

Step by step: requests arrive, one batch is launched, the results of one are taken (of the one before where it
overlaps), what is new is streamed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.targets.sglang.inside.engine import imported, scheduler

RECEIVER, SENDER, RESULTS = (
    f"managers.scheduler_components.{name}" for name in ("request_receiver", "output_sender", "batch_result_processor")
)
EOS = 30
"""The token that ends a text, whatever its request says."""


@dataclass
class TokenizedGenerateReqInput:
    """What arrives; of the fields of real releases those that are read here, and one that has a default."""

    rid: str
    input_ids: Any
    sampling_params: Any
    return_logprob: bool
    stream: bool
    lora_id: str | None = None


@dataclass
class AbortReq:
    rid: str


class SamplingParams:
    def __init__(self, **asked: Any) -> None:
        self.__dict__.update(asked)

    def normalize(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer


class Reason:
    def __init__(self, kind: str, **more: Any) -> None:
        self._plain = {"type": kind, **more}

    def to_json(self) -> dict[str, Any]:
        return self._plain


class Req:
    """A request of the scheduler's; it holds slots while it has a ``req_pool_idx``."""

    def __init__(self, arrived: TokenizedGenerateReqInput) -> None:
        self.rid, self.origin_input_ids = arrived.rid, list(arrived.input_ids)
        self.most, self.stops = arrived.sampling_params.max_new_tokens, [EOS]
        self.output_ids: list[int] = []
        self.finished_reason: Any = None
        self.is_retracted = self.to_abort = False
        self.retraction_count = self.cached_tokens = self.kv_committed_len = self.kv_allocated_len = self.told = 0
        self.cache_protected_len = 0
        self.req_pool_idx: int | None = None
        self.last_node = None
        self.ends = sys.maxsize

    def finished(self) -> bool:
        return self.finished_reason is not None

    @property
    def output_ids_through_stop(self) -> list[int]:
        return self.output_ids[: self.ends]

    def take(self, count: int) -> None:
        """So many tokens more, each the one before and one."""
        for _ in range(count):
            self.output_ids.append(([*self.origin_input_ids, *self.output_ids][-1]) + 1)
        self.kv_committed_len = len(self.origin_input_ids) + len(self.output_ids) - 1
        stop = next((at for at, token in enumerate(self.output_ids) if token in self.stops), None)
        if stop is not None and stop < self.most:
            self.ends, self.finished_reason = stop + 1, Reason("stop", matched=self.output_ids[stop])
        elif len(self.output_ids) >= self.most:
            self.ends, self.finished_reason = self.most, Reason("length", length=self.most)


class SchedulerRequestReceiver:
    def recv_requests(self, local_reqs: list[Any] | None = None) -> list[Any]:
        raise AssertionError("a session gives the requests")


class SenderWrapper:
    def send_output(self, output: Any, asked: Any = None) -> None:
        raise AssertionError("a session takes what is streamed")


def release_kv_cache(request: Req, tree: Any) -> None:
    request.req_pool_idx = None


class Scheduler:
    """``acts``: by the number of a batch, what is done while it is computed. ``waits``: so many flushes are refused."""

    def __init__(self, args: Any, ports: Any, gpu_id: int, tp_rank: int, dp_rank: int | None) -> None:
        vars(self).update(vars(scheduler(running=False)))
        self.words, self.ranks, self.tokenizer = args, (gpu_id, tp_rank, dp_rank), "the tokenizer"
        self.running_batch = SimpleNamespace(reqs=[])
        self.acts: dict[int, Callable[[], None]] = {}
        self.overlaps = False
        self.now: Any = None  # the batch that was launched last
        self.waits, self.flushed, self.batches = 0, 0, 0
        self.arrived: list[Any] = []
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.launched: list[tuple[Any, Any]] = []

    def run_event_loop(self) -> None:
        while True:
            for each in SchedulerRequestReceiver().recv_requests(local_reqs=[]):
                self._receive(each)
            batch = self._next_batch()
            if batch is not None:
                self.launched.append((batch, self.run_batch(batch)))
            if self.launched and (len(self.launched) > 1 or batch is None or not self.overlaps):
                self.process_batch_result(*self.launched.pop(0))
            self.running = [each for each in self.running if not each.finished()]

    def _receive(self, each: Any) -> None:
        self.arrived.append(each)
        if isinstance(each, AbortReq):
            (request,) = (request for request in self.running if request.rid == each.rid)
            request.to_abort = True
        elif len(each.input_ids) > 32:
            abort = {"type": "abort", "message": "the prompt is too long"}
            SenderWrapper().send_output(SimpleNamespace(rids=[each.rid], output_ids=[[]], finished_reasons=[abort]))
        else:
            self.waiting.append(Req(each))

    def _next_batch(self) -> Any:
        self.waiting, new = [], self.waiting
        for each in new:
            each.req_pool_idx, each.is_retracted = 1 + len(self.running), False
            each.kv_committed_len = each.kv_allocated_len = len(each.origin_input_ids) + len(each.output_ids)
            each.cached_tokens = 4 if each.origin_input_ids[0] == 7 else 0
            self.running.append(each)
        chosen = new or self.running
        self.running_batch = SimpleNamespace(reqs=list(self.running))
        mode = SimpleNamespace(is_extend=lambda: bool(new))
        cached = [4 if each.origin_input_ids[0] == 7 else 0 for each in chosen]
        rows = [len(each.origin_input_ids) - kept for each, kept in zip(chosen, cached, strict=True)]
        batch = SimpleNamespace(reqs=list(chosen), forward_mode=mode, extend_lens=rows, prefix_lens=cached)
        return batch if chosen else None

    def run_batch(self, batch: Any, unused: Any = None) -> Any:
        self.batches += 1
        self.now = batch
        self.acts.get(self.batches, lambda: None)()
        verified = not batch.forward_mode.is_extend()
        return SimpleNamespace(accept_lens=torch.full((len(batch.reqs),), 2) if verified else None)

    def process_batch_result(self, batch: Any, result: Any) -> None:
        live = [each for each in batch.reqs if not (each.finished() or each.is_retracted)]
        for request in live:
            request.take(1 if batch.forward_mode.is_extend() else 2)
            if request.to_abort:
                request.finished_reason = Reason("abort")
            if request.finished():
                self._release(request)
        self._stream(live)

    def _release(self, request: Req) -> None:
        sys.modules[f"sglang.srt.{RESULTS}"].release_kv_cache(request, self.tree_cache)  # type: ignore[attr-defined]

    def _stream(self, requests: list[Req]) -> None:
        output = SimpleNamespace(rids=[], output_ids=[], finished_reasons=[])
        for each in requests:
            output.rids.append(each.rid)
            output.output_ids.append(each.output_ids_through_stop[each.told :])
            output.finished_reasons.append(each.finished_reason)
            each.told = len(each.output_ids_through_stop)
        SenderWrapper().send_output(output, None)

    def retract(self, rid: str) -> None:
        """Take a request out of the next batches, to be prefilled anew."""
        (request,) = (each for each in self.running if each.rid == rid)
        self.running.remove(request)
        request.retraction_count, request.is_retracted = request.retraction_count + 1, True
        self._release(request)
        self.waiting.append(request)

    def flush_cache(self) -> bool:
        self.flushed += 1
        self.waits -= 1
        return self.waits < 0


def copied(kind: type) -> type:
    """A class of its own, to be wrapped."""
    return type(kind.__name__, (), {name: each for name, each in vars(kind).items() if name != "__dict__"})


def import_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this module's classes stand for SGLang's."""
    own = sys.modules[__name__]
    for kind in (Scheduler, SchedulerRequestReceiver, SenderWrapper):
        monkeypatch.setattr(own, kind.__name__, copied(kind))
    arguments = {
        "prepare_server_args": lambda words: SimpleNamespace(words=words, check_server_args=lambda: None),
        "PortArgs": SimpleNamespace(init_new=lambda args: SimpleNamespace(rpc_ipc_name=None)),
    }
    modules: dict[str, Mapping[str, Any]] = {
        "managers.scheduler": {"Scheduler": own.Scheduler},  # type: ignore[attr-defined]
        "managers.io_struct": {"TokenizedGenerateReqInput": TokenizedGenerateReqInput, "AbortReq": AbortReq},
        "sampling.sampling_params": {"SamplingParams": SamplingParams},
        "server_args": arguments,
        RECEIVER: {"SchedulerRequestReceiver": own.SchedulerRequestReceiver},  # type: ignore[attr-defined]
        SENDER: {"SenderWrapper": own.SenderWrapper},  # type: ignore[attr-defined]
        RESULTS: {"release_kv_cache": release_kv_cache},
    }
    imported(monkeypatch, modules)
