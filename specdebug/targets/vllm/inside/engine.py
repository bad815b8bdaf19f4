"""vLLM's engine in a thread of its own: requests go in and what becomes of them comes out, step by step."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specdebug.targets.inside.guard import Call, EngineLook, Tap, wrap_method
from specdebug.targets.inside.words import say

FAILED = 86
"""Exit status of the process when the engine has failed."""
Event = dict[str, Any]


def listen(verified: Callable[[str, int], None], preempted: Callable[[str], None]) -> None:
    """Have ``verified`` told a request's own id and how many of its drafts a verify accepted, and ``preempted`` the id,
    from now on: vLLM's scheduler, which counts both for its own statistics, is listened to. A release that has no such
    function is served without, and that is told."""
    from vllm.v1.core.sched.scheduler import Scheduler

    def counted(call: Call, _: Any, *args: Any, **named: Any) -> Any:
        verified(named["request_id"], int(named["num_accepted_tokens"]))
        return call(*args, **named)

    def put_back(call: Call, _: Any, request: Any, *args: Any, **named: Any) -> Any:
        preempted(request.request_id)
        return call(request, *args, **named)

    taps: dict[str, Tap] = {"make_spec_decoding_stats": counted, "_preempt_request": put_back}
    for name, tap in taps.items():
        look = EngineLook("accept lengths")
        look.attempt(partial(wrap_method, Scheduler, name, tap, look), None)


@dataclass
class Served:
    """One request. ``told`` takes its events, and is called in the engine's thread.

    ``accepted``: by number of drafts that were, how many verifies; a decode step that had none to verify counts as one
    of none. ``emitted``: tokens so far. ``verified``: drafts were, since the last of them. ``preempted``: so often.
    ``prefills``: the next token is a prefill's.
    """

    rid: str
    prompt: list[int]
    told: Callable[[Event], object]
    accepted: dict[int, int] = field(default_factory=dict)
    emitted: int = 0
    verified: bool = False
    preempted: int = 0
    prefills: bool = True

    def event(self, text: str, ids: list[int], cached: int, finish: Mapping[str, Any] | None) -> Event:
        """An event of SGLang's interface, with all tokens so far."""
        verifies = sum(self.accepted.values())
        meta: Event = {
            "id": self.rid,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(ids),
            "cached_tokens": cached,
            "finish_reason": finish,
            "spec_verify_ct": verifies,
            "num_retractions": self.preempted,
        }
        if verifies:
            meta["spec_accept_histogram"] = [self.accepted.get(length, 0) for length in range(max(self.accepted) + 1)]
            meta["spec_accept_length"] = 1 + sum(n * times for n, times in self.accepted.items()) / verifies
        return {"text": text, "output_ids": ids, "meta_info": meta}


class EngineThread:
    """Serves requests with one engine. Everything that touches it runs in its thread, in the order it was asked, as do
    ``after_step``, which is called after each of its steps and before what came of it is told, and the methods that
    begin, end or forget."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Load it; this takes as long as vLLM does."""
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        listen(self._verified, self._preempted)
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._served: dict[str, Served] = {}
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.verifies, self.accepted = 0, 0
        self.after_step: Callable[[], None] = lambda: None
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    @property
    def config(self) -> Any:
        """vLLM's configuration."""
        return self._engine.vllm_config

    @property
    def runner(self) -> Any:
        """What computes the steps. Raises AttributeError of an engine in another process."""
        return self._engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    @property
    def scheduler(self) -> Any:
        """What plans the steps. Raises AttributeError of an engine in another process."""
        return self._engine.engine_core.engine_core.scheduler

    def name_of(self, rid: str) -> str:
        """The id that a request was given, by vLLM's own of it, which has a suffix."""
        known = self._engine.output_processor.request_states.get(rid)
        return rid if known is None else str(known.external_req_id)

    def ask(self, work: Callable[[], None]) -> None:
        """Have something done in the engine's thread, between two steps."""
        self._work.put(work)

    def add(self, served: Served, params: Any) -> None:
        """Begin a request. Raises ValueError for one that cannot be served."""
        self._engine.add_request(served.rid, {"prompt_token_ids": served.prompt}, params)
        self._served[served.rid] = served

    def abort(self, rid: str) -> None:
        """End a request where it is."""
        served = self._served.pop(rid, None)
        if served is not None:
            self._engine.abort_request([rid])
            served.told(served.event("", [], 0, {"type": "abort", "message": "Aborted"}))

    def flush(self) -> bool:
        """Forget every prefix, unless something is served."""
        return not self._served and bool(self._engine.reset_prefix_cache())

    def _run(self) -> None:
        try:
            while True:
                while not self._engine.has_unfinished_requests() or not self._work.empty():
                    self._work.get()()
                outputs = self._engine.step()
                self.after_step()
                for output in outputs:
                    self._give(output)
        except BaseException:
            traceback.print_exc()
            say("the engine has failed; this process ends")
            os._exit(FAILED)

    def _give(self, output: Any) -> None:
        served = self._served.get(output.request_id)
        if served is None:  # it was aborted
            return
        (made,) = output.outputs
        if len(made.token_ids) > served.emitted:
            drafting = self.config.speculative_config is not None
            if drafting and not served.verified and not served.prefills:  # a decode without drafts: a verify of none
                self._add(served, 0)
            served.emitted, served.verified, served.prefills = len(made.token_ids), False, False
        finish = None
        if output.finished:
            del self._served[output.request_id]
            finish = {"type": made.finish_reason}
            if made.finish_reason == "stop":
                finish["matched"] = made.stop_reason if made.stop_reason is not None else made.token_ids[-1]
            else:
                finish["length"] = len(made.token_ids)
        served.told(served.event(made.text, list(made.token_ids), output.num_cached_tokens or 0, finish))

    def _verified(self, rid: str, drafts: int) -> None:
        """A verify has accepted so many drafts of a request, which vLLM names by the id it was given and a suffix."""
        if (served := self._named(rid)) is not None and not served.prefills:  # some prefills are padded with drafts
            served.verified = True
            self._add(served, drafts)

    def _preempted(self, rid: str) -> None:
        """A request is put back, and will be prefilled again."""
        if (served := self._named(rid)) is not None:
            served.preempted += 1
            served.prefills = True

    def _named(self, rid: str) -> Served | None:
        return self._served.get(rid) or next(
            (each for name, each in self._served.items() if rid.startswith(f"{name}-")), None
        )

    def _add(self, served: Served, drafts: int) -> None:
        served.accepted[drafts] = served.accepted.get(drafts, 0) + 1
        self.verifies += 1
        self.accepted += drafts
