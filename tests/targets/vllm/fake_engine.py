"""Stands for vLLM's engine: its scheduler's functions that are listened to, over the runner of ``fake_runner.py``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.targets.vllm.inside.fake_runner import VOCABULARY, Runner

CHUNK = 4
"""Tokens of a prompt that a step computes at most."""


class Request:
    """Its output is whatever follows in the fake's count."""

    def __init__(self, rid: str, prompt: list[int], params: Any) -> None:
        self.request_id, self.prompt, self.params = rid, prompt, params
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.stop_reason: int | None = None
        self.reason = ""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output_token_ids)

    def get_finished_reason(self) -> str:
        return self.reason


class Scheduler:
    def __init__(self, runner: Runner) -> None:
        self.requests: dict[str, Request] = {}
        self.runner = runner
        blocks = [SimpleNamespace(block_id=number) for number in range(4)]
        manager = SimpleNamespace(block_size=64, req_to_blocks={})
        pool = SimpleNamespace(blocks=blocks)
        coordinator = SimpleNamespace(single_type_managers=[manager])
        self.kv_cache_manager = SimpleNamespace(block_pool=pool, coordinator=coordinator)

    def _update_request_with_output(self, own: Request, tokens: list[int]) -> tuple[list[int], bool]:
        for place, token in enumerate(tokens, 1):
            own.output_token_ids.append(token)
            if token in own.params.stop_token_ids:
                own.reason, own.stop_reason = "stop", token
            elif len(own.output_token_ids) == own.params.max_new_tokens:
                own.reason = "length"
            if own.reason:
                del tokens[place:]
                break
        return tokens, bool(own.reason)

    def _preempt_request(self, own: Request, timestamp: float) -> None:
        self.runner.computed[own.request_id] = own.num_computed_tokens = 0
        self.runner.prompts[own.request_id] = own.num_tokens

    def _free_request(self, own: Request) -> None:
        del self.requests[own.request_id]


class Engine:
    """A prompt that begins with 0 is declined. ``preempts``: the request that the next step puts back first; ``fails``:
    the next step raises this. ``stops``: by request, the tokens that a stop string leaves it in the next step."""

    def __init__(self) -> None:
        self.runner = Runner()
        self.runner.device = torch.device("cpu")  # type: ignore[attr-defined]
        self.runner.kv_cache_config = SimpleNamespace(kv_cache_groups=[])  # type: ignore[attr-defined]
        self.runner.compilation_config = SimpleNamespace(static_forward_context={})  # type: ignore[attr-defined]
        self.runner.drafter._draft_attn_layer_names = set()  # type: ignore[assignment]
        self.scheduler = Scheduler(self.runner)
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=self.runner))
        core = SimpleNamespace(scheduler=self.scheduler, model_executor=SimpleNamespace(driver_worker=worker))
        self.engine_core = SimpleNamespace(engine_core=core)
        self.vllm_config = SimpleNamespace(
            num_speculative_tokens=3,
            speculative_config=SimpleNamespace(method="eagle"),
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY, max_model_len=20),
            cache_config=SimpleNamespace(block_size=64, enable_prefix_caching=False, num_gpu_blocks=4),
        )
        self.flushes = True
        self.preempts = ""
        self.fails: Exception | None = None
        self.stops: dict[str, int] = {}
        self.output_processor = SimpleNamespace(_trim_surplus_tokens=lambda *_: None)
        self.input_processor = self

    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.requests)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def process_inputs(self, rid: str, prompt: dict[str, list[int]], params: Any, supported_tasks: Any) -> None:
        if prompt["prompt_token_ids"][0] == 0:
            raise ValueError("too long")

    def add_request(self, rid: str, prompt: dict[str, list[int]], params: Any, priority: int) -> str:
        self.scheduler.requests[rid] = Request(rid, prompt["prompt_token_ids"], params)
        self.runner.add(rid, prompt["prompt_token_ids"])
        return rid

    def abort_request(self, rids: list[str]) -> None:
        for rid in rids:
            self.scheduler._free_request(self.scheduler.requests[rid])

    def reset_prefix_cache(self) -> bool:
        return self.flushes

    def step(self) -> list[Any]:
        if self.fails is not None:
            raise self.fails
        runner, outputs = self.runner, []
        if rid := self.preempts:
            self.scheduler._preempt_request(self.scheduler.requests[rid], 0.0)
            self.preempts = ""
        owns = list(self.scheduler.requests.values())
        if not owns:
            return []
        before = {own.request_id: len(runner.tokens[own.request_id]) for own in owns}
        runner.step(**{own.request_id: self._count(own) for own in owns})
        for own in owns:
            rid = own.request_id
            own.num_computed_tokens = runner.computed[rid]
            made, stopped = runner.tokens[rid][before[rid] :], False
            if made:
                made, stopped = self.scheduler._update_request_with_output(own, made)
                reason = own.reason or None
                said = {"finish_reason": reason, "stop_reason": own.stop_reason, "logprobs": None}
                one = SimpleNamespace(index=0, token_ids=made, finished=lambda stopped=stopped: stopped, **said)
                outputs.append(SimpleNamespace(request_id=rid, outputs=[one], num_cached_tokens=1))
            if stopped:
                self.scheduler._free_request(own)
        for rid, kept in self.stops.items():
            state = SimpleNamespace(
                request_id=rid, detokenizer=SimpleNamespace(num_output_tokens=lambda kept=kept: kept)
            )
            self.output_processor._trim_surplus_tokens(state, None, 0)
            self.scheduler._free_request(self.scheduler.requests[rid])
        return outputs

    def _count(self, own: Request) -> int:
        left = self.runner.prompts[own.request_id] - self.runner.computed[own.request_id]
        return min(left, CHUNK) if left > 0 else 4
