"""Stands for vLLM where it is not installed: an engine that counts up, two tokens a step, one of them a draft."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest


class Scheduler:
    def make_spec_decoding_stats(self, stats: Any, *, num_accepted_tokens: int, request_id: str) -> Any:
        return stats

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        """It is computed again, which no test sees."""


class EngineArgs(SimpleNamespace):
    pass


class LLMEngine:
    """Each request's output is 1, 2, 3 ...; a prompt that begins with 0 is declined. One that begins with 7 is
    preempted after its third token, and has no drafts after its sixth: it gets one token then, and one at a time. The
    prefill of one that begins with 8 is padded with drafts that are none.
    """

    def __init__(self, arguments: EngineArgs) -> None:
        self.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(method="eagle"),
            model_config=SimpleNamespace(dtype="torch.float32", model=arguments.model),
        )
        self.scheduler = Scheduler()
        self.requests: dict[str, list[Any]] = {}
        self.flushed = 0

    @classmethod
    def from_engine_args(cls, arguments: EngineArgs) -> LLMEngine:
        return cls(arguments)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def add_request(self, rid: str, prompt: dict[str, list[int]], params: Any) -> None:
        if prompt["prompt_token_ids"][0] == 0:
            raise ValueError("too long")
        self.requests[rid] = [params, 0, prompt["prompt_token_ids"]]

    def abort_request(self, rids: list[str]) -> None:
        for rid in rids:
            del self.requests[rid]

    def reset_prefix_cache(self) -> bool:
        self.flushed += 1
        return True

    def step(self) -> list[Any]:
        outputs = []
        for rid, state in list(self.requests.items()):
            params, made, prompt = state
            again, alone = prompt[0] == 7 and made == 3, prompt[0] == 7 and made >= 6
            if again:
                self.scheduler._preempt_request(SimpleNamespace(request_id=f"{rid}-0a1b"), 0.0)
            elif not made and prompt[0] == 8:
                self.scheduler.make_spec_decoding_stats(None, num_accepted_tokens=0, request_id=f"{rid}-0a1b")
            elif made and not alone:
                self.scheduler.make_spec_decoding_stats(None, num_accepted_tokens=1, request_id=f"{rid}-0a1b")
            state[1] = made = min(made + (1 if again or alone or not made else 2), params.max_tokens)
            ids = list(range(1, made + 1))
            stop = next((each for each in ids if each in (params.stop_token_ids or ())), None)
            if stop is not None:
                ids = ids[:stop]
            done = stop is not None or made == params.max_tokens
            if done:
                del self.requests[rid]
            finish = "stop" if stop is not None else "length" if done else None
            one = SimpleNamespace(text="x" * len(ids), token_ids=ids, finish_reason=finish, stop_reason=stop)
            outputs.append(SimpleNamespace(request_id=rid, outputs=[one], finished=done, num_cached_tokens=3))
        return outputs


class SamplingParams(SimpleNamespace):
    stop_token_ids: Any = None


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put it in the place of vLLM."""
    members: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SamplingParams, "__version__": "0"},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.llm_engine": {"LLMEngine": LLMEngine},
        "vllm.v1.core": {},
        "vllm.v1.core.sched": {},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
    }
    for name in ("make_spec_decoding_stats", "_preempt_request"):
        monkeypatch.setattr(Scheduler, name, getattr(Scheduler, name))  # put back after
    for name, held in members.items():
        module = types.ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)
