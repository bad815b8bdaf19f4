"""SGLang as a session in the worker's own process: its scheduler, unedited, is stepped, and requests enter between two
steps. It reports a batch when it takes that batch's results; where it overlaps, the next is launched by then."""

from __future__ import annotations

import dataclasses
import random
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.base.abilities import Ability
from specdebug.base.features import features_of
from specdebug.events import (
    BatchBegan,
    BatchEnded,
    BatchKind,
    Decided,
    DraftForward,
    Finishing,
    InVain,
    Prefilled,
    StepBegan,
    StepOver,
    Stepped,
)
from specdebug.targets.base import Asked, Opening, StoredDrafts
from specdebug.targets.http.request import sampling_params
from specdebug.targets.inside.failure import failure_of
from specdebug.targets.inside.guard import LOST
from specdebug.targets.ranks.session import RankSession
from specdebug.targets.ranks.told import other_part
from specdebug.targets.requests import (
    CannotBeServed,
    Lost,
    NotShown,
    RequestView,
    Sampling,
    SessionFailed,
    within_context,
)
from specdebug.targets.sglang.build import Built, attempt
from specdebug.targets.sglang.inside.faults import SeenEngine, SeenRequest
from specdebug.targets.sglang.inside.grammars import attempt_grammars
from specdebug.targets.sglang.inside.scheduler import RECEIVE, SEND, booked, held, violated
from specdebug.targets.sglang.inside.seats import RETRACT, in_sglang
from specdebug.targets.sglang.inside.stages import RECORDING, DraftRows, StageSites, kv_of, record
from specdebug.targets.sglang.stepper import Stepper

if TYPE_CHECKING:
    from specdebug.engine.config import SpeculativeConfig

_FLUSH_STEPS = 8
"""Steps in which a scheduler without requests must have taken all results that it waits for."""


@dataclass(eq=False)
class SglangRequest:
    """A request, as ``requests.RequestView``. ``own``: SGLang's, once a batch has had it. ``stored``: the row that it
    drafts from next. ``sent``: the tokens that SGLang has streamed, and ``told`` those that steps have emitted: while
    the end of its text may become a stop string, nothing is streamed."""

    rid: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    speculative: bool
    room: int = 0
    own: Any = None
    accept_lengths: list[int] = field(default_factory=list)
    stored: dict[str, Any] | None = None
    cached_tokens: int = 0
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    retractions: int = 0
    sent: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    _output: list[int] | None = None

    @property
    def output_ids(self) -> Sequence[int]:
        if self._output is not None:
            return self._output
        return [] if self.own is None else list(self.own.output_ids_through_stop)

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def kv_len(self) -> int:
        if output := len(self.output_ids):
            return len(self.prompt_ids) + output - 1
        return 0 if self.own is None or self._output is not None else held(self.own).committed

    def tell(self, *, finished: bool) -> list[int]:
        """The tokens that a step emits: what it has more than was told; at its end what was streamed, so that a stream
        that is another is seen."""
        now = self.sent if finished else list(self.output_ids)
        fresh = now[len(self.told) :] if now[: len(self.told)] == self.told else list(now)
        self.told += fresh
        return fresh

    def end(self, reason: Mapping[str, Any]) -> None:
        """Take in how it ended; what the engine computes of it from now on counts for nothing."""
        self._output = list(self.output_ids)
        self.finish_reason, matched = str(reason["type"]), reason.get("matched")
        self.matched_stop, stops = matched, self.sampling.stop_token_ids
        minds = stops or features_of(self.sampling).grammar
        if minds and isinstance(matched, int) and matched not in stops and self._output[-1:] == [matched]:
            # The model's own end of text, which SGLang minds beside the stop tokens that it is given.
            self.sampling = dataclasses.replace(cast(Any, self.sampling), stop_token_ids=(*stops, matched))


@dataclass
class _Decisions:
    """What one step decided, as ``events.Stepped`` has it."""

    kind: Any = "idle"
    rids: list[str] = field(default_factory=list)
    emitted: dict[str, list[int]] = field(default_factory=dict)
    accept_lengths: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    retracted: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Launched:
    """A batch that was launched in a step, of these requests: its result, and what was seen of it, by request."""

    result: Any
    step: int
    rids: tuple[str, ...]
    seen: Mapping[str, dict[str, Any]]


class SglangSession(RankSession):
    """A scheduler that serves."""

    own = False

    def __init__(
        self,
        built: Built,
        asked: Asked,
        shows: frozenset[Ability],
        spec: SpeculativeConfig | None,
        opening: Opening,
        *,
        watch: Callable[[], None] | None = None,
        leads: bool = True,
        bootstrap_port: int | None = None,
    ) -> None:
        """``watch``, ``leads``: of a scheduler that is one of several ranks (:class:`Stepper`). ``bootstrap_port``: at
        which a server that decodes finds the one that prefills."""
        self.shows, self.asked, self._opening, self._leads = shows, asked, opening, leads
        self._scheduler, self._look, self._spec = built.scheduler, built.look, spec
        self.vocab_size = int(self._scheduler.model_config.vocab_size)
        if type(getattr(self._scheduler, "tree_cache", None)).__name__ == "RadixCache":  # others keep less
            self.cache = self._scheduler.page_size, int(self._scheduler.max_total_num_tokens)
        built.taps.update(
            run_batch=self.run_batch, process_batch_result=self.process_batch_result, release=self.release
        )
        self._bootstrap_port = bootstrap_port
        self._stepper = Stepper(self._scheduler, watch, leads=leads)
        self._requests: dict[str, SglangRequest] = {}
        self._arriving: list[Any] = []
        self._launched: dict[int, _Launched] = {}
        """Batches whose results are not taken yet, by the id of the result."""
        self._prefilled: dict[str, dict[str, Any]] = {}
        self._step = 0
        self._now = _Decisions()
        self._problems: list[str] = []
        self._known_problems: set[str] = set()
        self._noted: set[str] = set()
        self._seen: SeenEngine | None = None
        self._sites, self._recorded = StageSites(), False
        self._wants_logprobs = False
        owner, name = SEND.find()
        setattr(owner, name, lambda _, output, *__, **___: self._sent(output))

    @property
    def inside(self) -> Any:
        """The engine as faults see it, and recorders."""
        if self._seen is None:
            self._seen = SeenEngine(self._scheduler)
        config = SimpleNamespace(speculative=self._spec)
        return SimpleNamespace(view=self._seen, observers=self.observers, config=config, sites=self._sites)

    @property
    def has_work(self) -> bool:
        return any(each.finish_reason is None for each in self._requests.values())

    def begin(self, seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        self.arrive(rid, tuple(prompt_ids), self.admitted(rid, prompt_ids, sampling, speculative), speculative, 0)

    def admitted(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, speculative: bool) -> Sampling:
        """The sampling of a request as it is served. Raises CannotBeServed."""
        if not speculative and self._spec is not None:
            self._note("this engine cannot leave out drafts for a request; all are served with them")
        limit = None if self.asked is None else self.asked.context_length
        if limit is not None and len(prompt_ids) >= limit:  # so does its tokenizer's process, which is not here
            whole = (
                f"is declined by the engine: of its context, prompts and outputs have {limit} tokens, drafts the rest"
            )
            raise CannotBeServed(rid, f"{whole}; the prompt has {len(prompt_ids)}")
        sampling = within_context(prompt_ids, sampling, limit, self._note, "engine")
        if features_of(sampling).grammar and (why := attempt_grammars(self._scheduler)):
            raise CannotBeServed(rid, f"asks for a grammar: {why}")
        return sampling

    def arrive(self, rid: str, prompt_ids: tuple[int, ...], sampling: Sampling, speculative: bool, room: int) -> None:
        """Take in a request that was admitted; a rank that does not lead gets it from the one that does. ``room``: by
        which servers know what they hand over."""
        request = SglangRequest(rid, prompt_ids, sampling, speculative, room)
        self._requests[rid] = request
        if features_of(sampling).grammar:
            attempt_grammars(self._scheduler)  # each rank's; of the one that admitted it that is done
        if self._leads:
            self._arriving.append(self._tokenized(request))

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._opening.say("note", text=text)

    def _tokenized(self, request: SglangRequest) -> Any:
        """The request as SGLang's tokenizer process would send it: of several completions each by itself."""
        features = features_of(request.sampling)
        made = in_sglang("srt.managers.io_struct").TokenizedGenerateReqInput
        asked = sampling_params(request.sampling, seeded=True)
        params = in_sglang("srt.sampling.sampling_params").SamplingParams(**asked)
        params.normalize(self._scheduler.tokenizer)
        facts: dict[str, Any] = {
            "rid": request.rid,
            "input_text": None,
            "input_ids": array("q", request.prompt_ids),
            "input_embeds": None,
            "mm_inputs": None,
            "token_type_ids": None,
            "sampling_params": params,
            "return_logprob": self._wants_logprobs or features.logprobs is not None,
            "logprob_start_len": -1,
            "top_logprobs_num": features.logprobs or 0,
            "token_ids_logprob": None,
            "bootstrap_host": None if self._bootstrap_port is None else "127.0.0.1",
            "bootstrap_port": self._bootstrap_port,
            "bootstrap_room": None if self._bootstrap_port is None else request.room,
            "stream": True,
        }
        known = getattr(made, "__struct_fields__", None) or [each.name for each in dataclasses.fields(made)]
        return made(**{name: value for name, value in facts.items() if name in known})

    def abort(self, rid: str) -> None:
        self._requests[rid].end({"type": "abort"})
        if self._leads:
            self._arriving.append(in_sglang("srt.managers.io_struct").AbortReq(rid=rid))

    def advance(self) -> Stepped:
        self._step += 1
        self._now, arriving, self._arriving = _Decisions(), self._arriving, []
        self._iterate(arriving)
        facts = self._now
        for rid in dict.fromkeys((*facts.rids, *facts.finished)):
            if fresh := self._requests[rid].tell(finished=rid in facts.finished):
                facts.emitted[rid] = fresh
        return Stepped(
            self._step,
            facts.kind,
            tuple(facts.rids),
            facts.emitted,
            facts.accept_lengths,
            facts.cached,
            tuple(facts.finished),
            tuple(facts.retracted),
        )

    def fall_behind(self) -> None:
        """Take in what arrives at the next iteration one iteration later: a rank out of step."""
        owner, name = RECEIVE.find()
        receive, kept = getattr(owner, name), list[Any]()

        def late(*args: Any, **named: Any) -> list[Any]:
            arrived = receive(*args, **named)
            if kept or not arrived:
                setattr(owner, name, receive)
                return [*kept, *arrived]
            kept.extend(arrived)
            return []

        setattr(owner, name, late)

    def _iterate(self, arriving: Sequence[Any] = ()) -> None:
        try:
            self._stepper.step(arriving)
        except (CannotBeServed, SessionFailed):
            raise
        except BaseException as error:
            raise failure_of(error) from None

    def request(self, rid: str) -> RequestView:
        return self._requests[rid]

    def want_logprobs(self) -> None:
        self._wants_logprobs = True

    def logprobs(self, rid: str) -> Sequence[float]:
        return self._requests[rid].logprobs

    def top_logprobs(self, rid: str) -> Sequence[Mapping[int, float]]:
        return self._requests[rid].tops

    def set_back(self) -> Sequence[str]:
        """SGLang's own switch sets back the next request that its decodes can spare."""
        done = [each.rid for each in self._requests.values() if each.retractions]
        running = [each for each in self._requests.values() if each.output_ids and each.finish_reason is None]
        owner, _ = RETRACT.find()
        owner.TEST_RETRACT, owner.TEST_RETRACT_INTERVAL = not done and len(running) > 1, 1
        return done

    def clock(self) -> float:
        return time.process_time() if self.asked is None or self.asked.device == "cpu" else time.perf_counter()

    def settle(self) -> bool:
        if on_gpu := self.asked is not None and self.asked.device != "cpu":
            torch.cuda.synchronize()
        return on_gpu

    def books(self) -> Mapping[str, Any]:
        return booked(self._scheduler, [each.own for each in self._requests.values() if each.own is not None])

    def record(self, *, beside_ours: bool = False) -> None:
        self._sites, self._recorded = attempt(RECORDING, record) or self._sites, True

    def close(self, sound: bool) -> None:
        live = {rid for rid, each in self._requests.items() if each.finish_reason is None}
        for launched in self._launched.values():
            self._tell_vain(launched.step, launched.rids, live)
        self._stepper.end()

    def _tell_vain(self, step: int, rids: Sequence[str], live: set[str]) -> None:
        """Tell of what a batch was launched with in a step that had ended by then; ``live``: the others."""
        if vain := tuple(rid for rid in rids if rid not in live):
            self.observers.tell(InVain, step, vain)

    def flush_cache(self) -> None:
        """Raises SessionFailed where the scheduler still waits for something although it serves no request."""
        for _ in range(_FLUSH_STEPS):
            if self.flushed():
                return
            self.idle()
        raise SessionFailed("the scheduler serves no request and does not come to rest", "scheduler.flush_cache")

    def flushed(self) -> bool:
        """Flush the cache, unless the scheduler still waits for something."""
        if not self._step:  # its loop, which makes some of what it looks at, has not begun, and nothing is cached
            return True
        with torch.inference_mode():
            return bool(self._scheduler.flush_cache())

    def idle(self) -> None:
        """One iteration in which nothing arrives, which is no step."""
        with torch.inference_mode():
            self._iterate()

    def check_pools(self) -> Sequence[str]:
        problems, self._problems = self._problems, []
        return problems

    def lost(self) -> Sequence[Lost]:
        return tuple(dict.fromkeys(LOST))

    def draft_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._kv("draft", request, start, stop)

    def target_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._kv("target", request, start, stop)

    def _kv(self, pool: str, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        own = self._requests[request.rid].own
        if self._look is None or own is None or held(own).row is None:
            raise NotShown(request.rid)
        return kv_of(self._scheduler, pool, held(own).row, start, stop)

    def draft_state(self, requests: Sequence[RequestView]) -> StoredDrafts:
        rows = [self._requests[each.rid].stored for each in requests]
        if any(row is None for row in rows):
            raise NotShown(requests[0].rid)
        return self.joined([row for row in rows if row is not None])

    def joined(self, rows: Sequence[dict[str, Any]]) -> StoredDrafts:
        return DraftRows.of(rows)

    # What the taps of scheduler and stages call, in the scheduler's thread.

    def run_batch(self, call: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **named: Any) -> Any:
        async_probe.set_step(self._step)
        if self._look is not None:
            self._look.begin()
        kind: BatchKind = "prefill" if batch.forward_mode.is_extend() else "speculative" if self._spec else "plain"
        recorded = self._recorded and kind == "prefill"
        rows = (batch.extend_lens, batch.prefix_lens) if recorded else ((), ())
        with self._telling():
            for each in batch.reqs:
                self._of(each)
            if self._seen is not None:
                self._seen.see_running(scheduler)
            self.observers.tell(StepBegan, self._step)
            self.observers.tell(BatchBegan, kind, [SeenRequest(each) for each in batch.reqs], *map(tuple, rows))
        self._sites.computing = bool(batch.reqs)
        try:
            answer = call(batch, *args, **named)
        finally:
            self._sites.computing = False
            with self._telling():
                self.observers.tell(BatchEnded, kind)
        if self._recorded:
            self.settle()  # it computes on a stream of its own, of which a recorder knows nothing
        with self._telling():
            self.observers.tell(StepOver)
        rids, seen = tuple(each.rid for each in batch.reqs), {} if self._look is None else self._look.seen()
        self._launched[id(answer)] = _Launched(answer, self._step, rids, seen)
        return answer

    def process_batch_result(
        self, call: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **named: Any
    ) -> Any:
        now = self._now
        launched = self._launched.pop(id(result), None)
        live = [self._of(own) for own in batch.reqs if not (own.finished() or own.is_retracted)]
        live = [each for each in live if each.finish_reason is None]
        # a stage of a pipeline takes other results than its own, of batches of about now
        step, rids = self._step, tuple(own.rid for own in batch.reqs)
        if launched is not None:
            step, rids = launched.step, launched.rids
        self._tell_vain(step, rids, {each.rid for each in live})
        seen = {} if launched is None else launched.seen
        before = {each.rid: len(each.own.output_ids) for each in live}
        prefill = batch.forward_mode.is_extend()
        accepted = getattr(result, "accept_lens", None)
        lengths = (
            {}
            if prefill or accepted is None
            else dict(zip((own.rid for own in batch.reqs), accepted.tolist(), strict=False))
        )
        now.kind = "prefill" if prefill else "decode"
        now.rids += [each.rid for each in live]
        for each in live:
            event = seen.get(each.rid)
            if event is not None and event["what"] == "prefilled":
                self._prefilled[each.rid] = event
            elif event is not None:
                self._decided(each, event)
            if each.rid in lengths:
                each.accept_lengths.append(lengths[each.rid])
                now.accept_lengths[each.rid] = lengths[each.rid]
        answer = call(batch, result, *args, **named)
        for each in live:
            if prefill and len(each.own.output_ids) > before[each.rid] and each.own.finished_reason is None:
                self._told_prefilled(each)
            self._prefilled.pop(each.rid, None)
            if not before[each.rid] and not each.cached_tokens and each.own.cached_tokens:
                each.cached_tokens = now.cached[each.rid] = int(each.own.cached_tokens)
        for each in self._requests.values():
            if each.own is not None and each.own.retraction_count > each.retractions:
                each.retractions = each.own.retraction_count
                now.retracted.append(each.rid)
        if "pools" in self.shows:
            ended = [each.own for each in live if each.finish_reason not in (None, "abort")]
            fresh = [each for each in violated(scheduler, ended) if each not in self._known_problems]
            self._known_problems.update(fresh)
            self._problems += fresh
        return answer

    def release(self, call: Callable[..., Any], own: Any, *args: Any, **named: Any) -> Any:
        """A request's slots are about to be given back: at its end, or because it is retracted or was aborted."""
        request = self._requests.get(own.rid)
        if request is not None and request.finish_reason is None and own.finished():
            reason = own.finished_reason.to_json()
            request.own = own  # no batch had one that was handed over and ends with its first token
            if reason.get("type") != "abort":
                if request.rid in self._prefilled:
                    self._told_prefilled(request)
                request.end(reason)
                with self._telling():
                    self.observers.tell(Finishing, request)
        return call(*args, **named)

    def _of(self, own: Any) -> SglangRequest:
        request = self._requests[own.rid]
        request.own = own
        return request

    def _told_prefilled(self, request: SglangRequest) -> None:
        event = self._prefilled.pop(request.rid, None)
        if event is not None:
            request.stored = event["stored"]
            with self._telling():
                self.observers.tell(Prefilled, request)

    def _decided(self, request: SglangRequest, event: Mapping[str, Any]) -> None:
        spec = self._spec
        assert spec is not None  # for the type checker: what was verified was drafted
        self._relayed(request, event)
        with self._telling():
            for step, forward in enumerate(event["forwards"]):
                self.observers.tell(DraftForward, step, *forward)
            self.observers.tell(
                Decided,
                requests=[request],
                logits=event["logits"].float(),
                predict=event["predict"],
                accept_index=event["accept_index"].unsqueeze(0),
                num_correct_drafts=torch.tensor([event["accepted"] - 1]),
                coins=None if event["coins"] is None else event["coins"].unsqueeze(0),
                topk=spec.eagle_topk,
                num_steps=spec.num_steps,
                threshold_single=spec.threshold_single,
                threshold_acc=spec.threshold_acc,
                **{name: each.unsqueeze(0) for name, each in event["tree"].items()},
            )
        request.stored = event.get("stores")

    def _relayed(self, request: SglangRequest, event: Mapping[str, Any]) -> None:
        """The laws of what goes from one batch to the next: ``relay``, a request drafts from what it stored, which is
        what is judged, and ``lengths``, it goes on as long as its verify has made it."""
        before, drafted = request.stored, event["stored"]
        if "pools" not in self.shows or before is None:
            request.stored = drafted
        elif (part := other_part(before, drafted)) is not None:
            self._problems.append(f"relay: {request.rid} drafts from another {part} than it stored")
        due = drafted["seq_len"] + event["accepted"]
        if event.get("told_length", due) != due:
            told = f"{event['told_length']} after a verify that made it {due}"
            self._problems.append(f"lengths: {request.rid} goes on with the length {told}")

    def _telling(self) -> Any:
        """Oracles make tensors that outlive the step, so none of inference mode, in which SGLang computes."""
        return torch.inference_mode(False)

    def _sent(self, output: Any) -> None:
        """In the place of what SGLang sends to its detokenizer."""
        ids = getattr(output, "output_ids", None)
        if ids is None:
            return
        parts = ("output_token_logprobs_val", "output_top_logprobs_val", "output_top_logprobs_idx")
        logprobs = [getattr(output, name, None) or [()] * len(ids) for name in parts]
        for rid, tokens, reason, told, *tops in zip(output.rids, ids, output.finished_reasons, *logprobs, strict=True):
            request = self._requests.get(rid)
            if request is None or rid in self._now.finished or request.finish_reason == "abort":
                continue
            if tokens is not None and len(tokens):
                request.sent += [int(token) for token in tokens]
            request.logprobs += map(float, told or ())
            request.tops += [_likeliest(rid, *row) for row in zip(tops[1] or (), tops[0] or (), strict=True)]
            if reason is not None:
                plain = reason if isinstance(reason, Mapping) else reason.to_json()
                if plain["type"] == "abort" and request.own is None:
                    raise CannotBeServed(rid, f"is declined by the engine: {plain.get('message')}")
                if plain["type"] == "abort":
                    said = f"{rid} was aborted by the engine while it was served: {plain.get('message')}"
                    raise SessionFailed(said, "engine.abort")
                if request.finish_reason is None:
                    request.end(plain)
                self._now.finished.append(rid)


def _likeliest(rid: str, ids: Sequence[int], told: Sequence[float]) -> dict[int, float]:
    """Log probabilities of a position's likeliest tokens. Raises SessionFailed."""
    if len(ids) != len(told):
        raise SessionFailed(f"{rid} was told {len(told)} log probabilities of {len(ids)} tokens", "logprobs.likeliest")
    return dict(zip(ids, told, strict=True))
