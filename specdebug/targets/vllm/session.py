"""vLLM as a session in the worker's own process: its engine, unedited, without processes of its own, is stepped, and
requests enter between two steps."""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.base.abilities import Ability
from specdebug.base.errors import SpecDebugError
from specdebug.base.features import features_of
from specdebug.events import Finishing, Prefilled, StepBegan, StepOver, Stepped
from specdebug.targets.base import Asked, Opening, StoredDrafts
from specdebug.targets.inside.failure import failure_of
from specdebug.targets.inside.guard import LOST, Call, EngineLook, wrap_method
from specdebug.targets.ranks.crew import WatchedThread
from specdebug.targets.ranks.session import RankSession
from specdebug.targets.requests import (
    CannotBeServed,
    Lost,
    NotShown,
    RequestView,
    Sampling,
    SessionFailed,
    within_context,
)
from specdebug.targets.vllm.inside.books import MOST_BLOCKS, check_books
from specdebug.targets.vllm.inside.boundaries import (
    HEADS,
    SCHEDULER_TAPS,
    Boundaries,
    BoundaryOnlooker,
    StepRequests,
)
from specdebug.targets.vllm.inside.kv import BlockReader
from specdebug.targets.vllm.inside.look import DraftLook, StoredRows
from specdebug.targets.vllm.inside.probes import SiteProbes
from specdebug.targets.vllm.inside.second_runner import SecondBoundaries, is_second
from specdebug.targets.vllm.inside.sites import StepSites, StepSitesInOrder

DECLINES = ("VLLMValidationError", "VLLMClientError")
"""What vLLM raises of a request that it cannot serve, beside ValueError, of which these are no kind in 0.32.0."""


@dataclass(eq=False)
class VllmRequest:
    """A request, as ``requests.RequestView``. ``own``: vLLM's. ``look``: who knows what it drafts from next.
    ``prefills``: its next token is a prefill's. ``kept``: the tokens of its output, where a stop string was complete
    before the last that a verify accepted."""

    rid: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    speculative: bool
    own: Any = None
    look: DraftLook | None = None
    prefills: bool = True
    kv_len: int = 0
    cached_tokens: int = 0
    accept_lengths: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    kept: int | None = None

    @property
    def output_ids(self) -> Sequence[int]:
        return list(self.own.output_token_ids)[: self.kept]

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def stored(self) -> StoredRows | None:
        """Its row of what is stored for the next draft; None where there is none."""
        try:
            return None if self.look is None else self.look.stored([self])
        except NotShown:
            return None

    def note_computed(self) -> None:
        """Take in how much has KV: behind the newest token that is kept there is nothing of use."""
        self.kv_len = min(self.own.num_computed_tokens, len(self.all_ids) - 1)

    def end(self, reason: str, matched: int | str | None) -> None:
        """Take in how it ended. The model's own end of text is a stop token, too."""
        self.finish_reason, stops = reason, self.sampling.stop_token_ids
        if reason == "stop":
            self.matched_stop = matched = self.output_ids[-1] if matched is None else matched
            if isinstance(matched, int) and matched not in stops:
                self.sampling = dataclasses.replace(
                    cast(Any, self.sampling), stop_token_ids=(*stops, self.matched_stop)
                )


class VllmSession(RankSession):
    """An ``LLMEngine`` that serves."""

    own = False

    def __init__(
        self,
        engine: Any,
        asked: Asked,
        shows: frozenset[Ability],
        opening: Opening,
        watch: Callable[[], None] | None = None,
    ) -> None:
        """``watch``: of an engine that is one of several ranks, what looks after the others while it steps."""
        self._step_engine = engine.step if watch is None else partial(WatchedThread(watch).call, engine.step)
        config, core = engine.vllm_config, engine.engine_core.engine_core
        self.asked, self._opening = asked, opening
        self.vocab_size = int(config.model_config.get_vocab_size())
        self._engine, self._scheduler = engine, core.scheduler
        self._runner = core.model_executor.driver_worker.worker.model_runner
        self._num_steps = config.num_speculative_tokens
        self._requests: dict[str, VllmRequest] = {}
        self._seen = SimpleNamespace(running=())  # for faults: those of ranks act on no request
        self._late: list[Any] = []
        """Requests that wait for the step after the next."""
        self._noted: set[str] = set()
        self._step, self._batch = 0, list[StepRequests]()
        self._lengths: dict[str, int] = {}
        self._retracted: list[str] = []
        self._wants_logprobs = False
        self._broken: set[str] = set()
        self._sites = StepSites(self.request, self.observers, self._num_steps)
        self._books, self._kv = EngineLook("the scheduler's books"), BlockReader(self._runner, self._scheduler)
        if len(self._scheduler.kv_cache_manager.block_pool.blocks) > MOST_BLOCKS:
            shows -= {"pools"}
            self._note(f"the scheduler's books are not looked at, for its pool has more than {MOST_BLOCKS} blocks")
        self.shows = shows
        kinds = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        if (cache := config.cache_config).enable_prefix_caching and len(kinds) == 1:  # windows and states keep less
            self.cache = cache.block_size, cache.block_size * cache.num_gpu_blocks
        self._listen(config)

    def _listen(self, config: Any) -> None:
        look, cache = EngineLook("the requests of a step"), config.cache_config
        for name in SCHEDULER_TAPS:
            wrap_method(self._scheduler, name, getattr(self, name.lstrip("_")), look, bound=0)
        wrap_method(self._engine.output_processor, "_trim_surplus_tokens", self.trim_surplus_tokens, look, bound=0)
        self._look = DraftLook(self.request, self.observers, self._num_steps)
        slots = cache.block_size * cache.num_gpu_blocks
        size = {"vocab_size": self.vocab_size, "block_size": cache.block_size, "num_slots": slots}
        onlookers: list[BoundaryOnlooker] = [self, SiteProbes(num_steps=self._num_steps, **size)]
        if self._num_steps:
            onlookers.append(self._look)
        self._onlookers = onlookers
        drafts = config.speculative_config is not None and config.speculative_config.method in HEADS
        if is_second(self._runner):
            SecondBoundaries(self._runner, onlookers, drafts=drafts, blocks_of=self._blocks_of)
        else:
            Boundaries(self._runner, onlookers, drafts=drafts)

    def _blocks_of(self, rid: str) -> tuple[int, ...]:
        """Blocks of KV that the scheduler gave a request, of its first group of layers."""
        held = self._scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks[rid]
        return tuple(block.block_id for block in held)

    @property
    def inside(self) -> Any:
        """The engine as faults and recorders see it."""
        steps = self._num_steps
        config = SimpleNamespace(speculative=SimpleNamespace(eagle_topk=1, tree_size=steps + 1) if steps else None)
        return SimpleNamespace(view=self._seen, observers=self.observers, config=config, sites=self._sites)

    def record(self, *, beside_ours: bool = False) -> None:
        kind = StepSitesInOrder if beside_ours else StepSites
        self._sites = kind(self.request, self.observers, self._num_steps)
        self._onlookers.append(self._sites)

    @property
    def has_work(self) -> bool:
        return bool(self._engine.has_unfinished_requests())

    def begin(self, seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        self.arrive(rid, tuple(prompt_ids), self.admitted(rid, prompt_ids, sampling, speculative), speculative, 0)

    def admitted(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, speculative: bool) -> Sampling:
        if not speculative and self._num_steps:
            self._note("this engine cannot leave out drafts for a request; all are served with them")
        limit = self._engine.vllm_config.model_config.max_model_len
        sampling = within_context(prompt_ids, sampling, limit, self._note, "engine")
        if rid in self._requests:  # a completion of a request that the engine has
            return sampling
        try:
            params = params_of(sampling, logprobs=self._wants_logprobs)
            prompt, tasks = {"prompt_token_ids": list(prompt_ids)}, self._engine.get_supported_tasks()
            self._engine.input_processor.process_inputs(rid, prompt, params, supported_tasks=tasks)
        except Exception as error:
            if not isinstance(error, ValueError) and type(error).__name__ not in DECLINES:
                raise
            raise CannotBeServed(rid, f"is declined by the engine: {error}") from None
        return sampling

    def arrive(self, rid: str, prompt_ids: tuple[int, ...], sampling: Sampling, speculative: bool, room: int) -> None:
        """Take in a request that was admitted; each rank has all of them."""
        if rid in self._requests:
            return
        asked = features_of(sampling)
        if asked.grammar:
            self._engine.engine_core.engine_core.structured_output_manager._use_async_grammar_compilation = False
        whole, _, number = rid.rpartition(".") if (n := asked.n) > 1 else (rid, "", "0")
        params = params_of(sampling, int(number), logprobs=self._wants_logprobs)
        own = self._engine.add_request(whole, {"prompt_token_ids": list(prompt_ids)}, params, priority=asked.priority)
        for each in range(n):  # the engine makes a request of each completion, by a name of its own
            name, here = (rid, own) if n == 1 else (f"{whole}.{each}", f"{each}_{own}")
            request = VllmRequest(name, prompt_ids, sampling, speculative, self._scheduler.requests[here], self._look)
            self._requests[name] = self._requests[here] = request

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._opening.say("note", text=text)

    def abort(self, rid: str) -> None:
        self._requests[rid].end("abort", None)
        self._engine.abort_request([self._requests[rid].own.request_id])

    def advance(self) -> Stepped:
        self._step += 1
        self._batch, self._lengths, self._retracted = [], {}, []
        async_probe.set_step(self._step)
        self.observers.tell(StepBegan, self._step)
        try:
            outputs = self._step_engine()
        except SessionFailed:
            raise
        except Exception as error:
            self.observers.tell(StepOver, True)
            raise failure_of(error) from None
        self.observers.tell(StepOver)
        while self._late:
            self._scheduler.waiting.add_request(self._late.pop(0))
        return self._stepped(outputs)

    def fall_behind(self) -> None:
        waiting = self._scheduler.waiting
        self._late = [waiting.pop_request() for _ in range(len(waiting))]

    def _stepped(self, outputs: Sequence[Any]) -> Stepped:
        rids = tuple(self._requests[rid].rid for share in self._batch for rid in share.rids)
        cached, emitted, finished = dict[str, int](), dict[str, list[int]](), list[str]()
        for rid in rids:
            request = self._requests[rid]
            if request.finish_reason is None and request.prefills:
                request.note_computed()
        for output, made in ((each, made) for each in outputs for made in each.outputs):
            name = output.request_id
            request = self._requests.get(name) or self._requests[f"{name}.{made.index}"]
            if output.num_cached_tokens and not request.cached_tokens:
                request.cached_tokens = cached[request.rid] = output.num_cached_tokens
            emitted[request.rid] = list(made.token_ids)
            for token, told in zip(made.token_ids, made.logprobs or (), strict=False):
                request.logprobs.append(float(told[token].logprob) if token in told else math.nan)
                best = sorted((each.rank, other, float(each.logprob)) for other, each in told.items())
                most = features_of(request.sampling).logprobs or 0
                request.tops.append({other: value for _, other, value in best[:most]})
            if made.finished():
                request.end(str(made.finish_reason), made.stop_reason)
                finished.append(request.rid)
        prefill = any(share.doing == "prefill" for share in self._batch)
        kind: Any = "idle" if not rids else "prefill" if prefill else "decode"
        retracted = tuple(self._retracted)
        return Stepped(self._step, kind, rids, emitted, self._lengths, cached, tuple(finished), retracted)

    def request(self, rid: str) -> RequestView:
        return self._requests[rid]

    def clock(self) -> float:
        return time.process_time() if self._runner.device.type == "cpu" else time.perf_counter()

    def settle(self) -> bool:
        if on_gpu := str(self._runner.device) != "cpu":
            torch.cuda.synchronize()
        return on_gpu

    def flush_cache(self) -> None:
        """Raises SessionFailed where blocks are held although no request is served."""
        if not self.flushed():
            raise SessionFailed("the engine cannot forget its cached prefixes: blocks are held", "engine.flush_cache")

    def flushed(self) -> bool:
        return bool(self._engine.reset_prefix_cache())

    def idle(self) -> None:
        """Nothing waits for it: a step takes in its own results."""

    def want_logprobs(self) -> None:
        self._wants_logprobs = True

    def logprobs(self, rid: str) -> Sequence[float]:
        return self._requests[rid].logprobs

    def top_logprobs(self, rid: str) -> Sequence[Mapping[int, float]]:
        return self._requests[rid].tops

    def set_back(self) -> Sequence[str]:
        """All that run wait again, by the call with which vLLM forgets its cache while it serves."""
        running = [self._requests[own.request_id].rid for own in self._scheduler.running]
        if len(running) < 2 or not all(self._requests[rid].output_ids for rid in running):
            return ()
        return running if self._engine.reset_prefix_cache(reset_running_requests=True) else ()

    def lost(self) -> Sequence[Lost]:
        return tuple(dict.fromkeys(LOST))

    def check_pools(self) -> Sequence[str]:
        """The first violation of each law."""
        fresh = list[str]()
        for broken in self._books.attempt(lambda: check_books(self._scheduler), list[str]()):
            law, _, _ = broken.partition(":")
            if law not in self._broken:
                self._broken.add(law)
                fresh.append(broken)
        return fresh

    def draft_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._kv.read("draft", self._requests[request.rid].own.request_id, start, stop)

    def target_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._kv.read("target", self._requests[request.rid].own.request_id, start, stop)

    def draft_state(self, requests: Sequence[RequestView]) -> StoredDrafts:
        return self._look.stored(requests)

    def joined(self, rows: Sequence[StoredRows]) -> StoredDrafts:
        return StoredRows.of(rows)

    # As a ``BoundaryOnlooker``.

    def on_step(self, shares: Sequence[StepRequests]) -> None:
        self._batch = list(shares)
        for share in shares:
            for rid, start in zip(share.rids, share.starts, strict=True):
                self._requests[rid].kv_len = start

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        """What passes is for others."""

    def on_step_over(self) -> None:
        """What a step decided the scheduler's taps see."""

    # The scheduler's taps.

    def update_request_with_output(self, call: Call, own: Any, tokens: Any, *args: Any, **named: Any) -> Any:
        """A request is given tokens, of which the end of the request may cut some off. Its blocks are still there."""
        accepted = len(tokens)
        answer = call(own, tokens, *args, **named)
        request = self._requests[own.request_id]
        request.note_computed()
        if request.prefills:
            request.prefills = False
            self.observers.tell(Prefilled, request)
        elif self._num_steps:
            request.accept_lengths.append(accepted)
            self._lengths[request.rid] = accepted
        _, stopped = answer
        if stopped:
            request.end(str(own.get_finished_reason()), own.stop_reason)
            self.observers.tell(Finishing, request)
        return answer

    def trim_surplus_tokens(self, call: Call, state: Any, *args: Any, **named: Any) -> Any:
        """A stop string is complete; what a verify accepted behind it, the scheduler keeps and nothing else does."""
        request = self._requests[state.request_id]
        request.kept = state.detokenizer.num_output_tokens()
        request.note_computed()
        return call(state, *args, **named)

    def preempt_request(self, call: Call, own: Any, *args: Any, **named: Any) -> Any:
        """A request is put back, and will be prefilled again."""
        request = self._requests[own.request_id]
        request.prefills, request.kv_len = True, 0
        self._look.forget(request.rid)
        self._retracted.append(request.rid)
        return call(own, *args, **named)

    def free_request(self, call: Call, own: Any, *args: Any, **named: Any) -> Any:
        """A request's blocks are given back. One that nothing has ended yet a stop string ends."""
        request = self._requests[own.request_id]
        if request.finish_reason is None:
            request.finish_reason = "stop"
            self.observers.tell(Finishing, request)
        self._look.forget(request.rid)
        return call(own, *args, **named)


def params_of(sampling: Sampling, completion: int = 0, *, logprobs: bool = False) -> Any:
    """vLLM's parameters. A request without stop tokens goes on to its length, whatever the model says; one with a
    grammar ends with that. ``completion``: the number of the one whose sampling this is; a seed is the first one's."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    asked = features_of(sampling)
    grammar = StructuredOutputsParams(json=asked.schema, regex=asked.regex) if asked.grammar else None
    told = asked.logprobs if asked.logprobs is not None else 0 if logprobs else None
    return SamplingParams(
        n=asked.n,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=(sampling.seed - completion) % 2**53 if sampling.temperature else None,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=asked.ignore_eos or not (sampling.stop_token_ids or grammar),
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        logprobs=told,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        repetition_penalty=asked.repetition_penalty,
        min_tokens=asked.min_new_tokens,
        min_p=asked.min_p,
        logit_bias={int(token): value for token, value in asked.logit_bias.items()} or None,
        bad_words=list(asked.bad_words) or None,
        allowed_token_ids=list(asked.allowed_token_ids) or None,
        structured_outputs=grammar,
        output_kind=RequestOutputKind.DELTA,
    )


def build(arguments: Mapping[str, Any], words: Sequence[str] = ()) -> Any:
    """vLLM's engine of these arguments, and over them those of its command line; of two mappings, as is
    ``--speculative-config``, key by key. Raises SpecDebugError for words that it does not know, and what vLLM
    raises."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    def decline(message: str) -> None:
        raise SpecDebugError(f"target.arguments: {message}")

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(argument_default=SUPPRESS))
    parser.error = decline
    for action in parser._actions:
        action.default = SUPPRESS
    given = vars(parser.parse_args([*words]))
    for name in given.keys() & {key for key, value in arguments.items() if isinstance(value, dict)}:
        given[name] = {**arguments[name], **given[name]}
    with _files_of_its_own():
        return LLMEngine.from_engine_args(EngineArgs(**{**arguments, **given}))


@contextmanager
def _files_of_its_own() -> Iterator[None]:
    """Files that an engine makes among the temporary ones while it is built, names of sockets and a meeting place of
    ranks, are removed once it is: vLLM leaves them behind."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="specdebug-", ignore_cleanup_errors=True) as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = before
