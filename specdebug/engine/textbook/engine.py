"""The engine: add requests, step, read tokens. A step is one batch: prompt chunks if any are due, else one decode of
all.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.base.assets import checkpoint_path, tokenizer_path
from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.attention.backend import make_backends, make_planner
from specdebug.engine.config import EngineConfig
from specdebug.engine.device import upload
from specdebug.engine.errors import RequestRejected
from specdebug.engine.graph.runner import EngineParts
from specdebug.engine.inspect import EngineView
from specdebug.engine.memory.arena import FillPolicy, GuardViolation
from specdebug.engine.memory.kv_pool import KVPool, kv_pool_of
from specdebug.engine.model.interface import DraftSizes, Heads
from specdebug.engine.model.loader import load_target
from specdebug.engine.model.models import TargetModel
from specdebug.engine.model.rope import separate_pairs
from specdebug.engine.model.tokenizer import TargetTokenizer
from specdebug.engine.textbook.memory.allocator import KVMemory, SlotAllocator
from specdebug.engine.textbook.memory.mha_pool import PoolSizes
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import PrefillBatch, Request, SamplingParams, Status, StopStrings
from specdebug.engine.textbook.scheduler import Scheduler
from specdebug.engine.textbook.target_worker import TargetWorker
from specdebug.engine.workers.protocol import SpeculativeWorker, WorkerParts
from specdebug.engine.workers.registry import part_of
from specdebug.events import Finishing, Observers, Prefilled, Scheduling, StepBegan, StepOver, Stepped


class Models(NamedTuple):
    """A target, and the draft model it speculates with."""

    target: TargetModel
    draft: DraftSizes | None


class Engine:
    """One target, at most one draft, one KV memory.

    Raises InvalidOption if the configuration contradicts the checkpoint, CheckpointError if one cannot be read.
    """

    def __init__(self, config: EngineConfig, models: Models | None = None) -> None:
        """``models`` are used in place of the checkpoints that ``config`` names; they live where it says."""
        self.config = config
        self.requests: dict[str, Request] = {}
        self.observers = Observers()
        self._step = 0
        self._tokenizer: TargetTokenizer | None = None
        device, dtype, spec = usable_device(config.device), getattr(torch, config.dtype), config.speculative
        if device.type == "cuda":
            async_probe.prepare(device, (dtype, torch.float32))
        target, draft = models if models is not None else load_models(config)
        self.model: TargetModel = target
        _check_fit(config, target, draft)
        fill = FillPolicy(config.memory.fill, config.seed)
        rows, width = config.max_running_requests, config.context_length + config.row_headroom
        self._req_to_token = ReqToToken(rows, width, fill=fill, guards=config.memory.guards, device=device)
        slots, page = config.usable_slots, config.page_size
        sizes = PoolSizes(num_slots=slots, page_size=page, dtype=dtype, fill=fill, device=device)
        target_kv = kv_pool_of(target.config.kv_layout)(target.config, **sizes)
        has_kv = draft is not None and draft.num_layers > 0
        draft_kv = kv_pool_of(draft.kv_layout)(draft, **sizes) if draft is not None and has_kv else None
        self._memory = KVMemory(SlotAllocator(slots, page), target_kv, draft_kv)
        lookahead = 0 if draft is None else draft.lookahead
        self._cache = PrefixCache(config, self._memory, self._req_to_token, lookahead=lookahead)
        self._scheduler = Scheduler(config, self._cache)
        self._heads: list[Heads] = [target.config] if draft is None else [target.config, draft]
        planner = make_planner(config, self._req_to_token, self._heads[-1].kv_layout)
        parts = EngineParts(config, planner, fill, dtype, device, self.observers)
        backends = make_backends(config, self._heads, dtype, device)
        aux_layers = () if draft is None else draft.aux_layers
        self._target_worker = TargetWorker(
            parts, target, self._memory.target, backends[0], self._req_to_token, aux_layers
        )
        self._speculative_worker: SpeculativeWorker | None = None
        if spec is not None and draft is not None:
            self._speculative_worker = part_of(spec.algorithm, "v1" if spec.worker == "v1" else "worker")(
                WorkerParts(
                    **vars(parts),
                    spec=spec,
                    target=target,
                    draft=draft,
                    memory=self._memory,
                    req_to_token=self._req_to_token,
                    target_attention=backends[0],
                    draft_attention=backends[1],
                )
            )

    @property
    def view(self) -> EngineView:
        """Handles on the engine's parts."""
        # made when asked for: kept here, it would keep the engine's device memory until the next garbage collection
        return EngineView(
            self, self._scheduler, self._memory, self._cache, self._req_to_token, self._speculative_worker
        )

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add_request(
        self,
        rid: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        speculative: bool = True,
        cache_limit: int | None = None,
        ahead: bool = False,
    ) -> Request:
        """Queue a request, behind all others or ``ahead`` of them. ``speculative`` is ignored by an engine without a
        draft model. ``cache_limit``: positions that may come from the prefix cache at most.

        Raises RequestRejected if the id is taken, a token id is outside the vocabulary, it can never fit, or it has
        stop strings and the checkpoint no tokenizer.
        """
        if rid in self.requests:
            raise RequestRejected(rid, "exists already")
        prompt = [int(token) for token in prompt_ids]
        vocab = self.model.config.vocab_size
        if not prompt:
            raise RequestRejected(rid, "has an empty prompt")
        if min(prompt) < 0 or max(prompt) >= vocab:
            raise RequestRejected(rid, f"holds a token id outside [0, {vocab})")
        longest = len(prompt) + sampling.max_new_tokens
        if longest > self.config.context_length:
            raise RequestRejected(rid, f"needs {longest} positions, context_length is {self.config.context_length}")
        slots, usable = longest + self.config.row_headroom, self.config.usable_slots
        if slots > usable:
            why = f"needs {slots} KV slots with its decode reservation, memory.num_slots gives {usable}"
            raise RequestRejected(rid, why)
        speculative = speculative and self._speculative_worker is not None
        stops = self._stop_strings(rid, sampling.stop)
        request = Request(rid, prompt, sampling, speculative, stop_strings=stops, cache_limit=cache_limit)
        self.requests[rid] = request
        self._scheduler.add(request, ahead=ahead)
        return request

    def _stop_strings(self, rid: str, strings: Sequence[str]) -> StopStrings | None:
        if not strings:
            return None
        if self._tokenizer is None:  # loaded for the first request that needs text: the others do without
            try:
                self._tokenizer = TargetTokenizer(tokenizer_path(self.config.model))
            except CheckpointError as error:
                raise RequestRejected(rid, f"has stop strings, and they need a tokenizer: {error}") from None
        return StopStrings(strings, self._tokenizer)

    def abort(self, rid: str) -> None:
        """End a request where it is; its slots are free at once. Unknown or finished ids are ignored."""
        request = self.requests.get(rid)
        if request is not None and not request.finished:
            request.finish_reason = "abort"
            self._scheduler.drop(request, keep=False)

    def put_back(self, rid: str) -> bool:
        """Have a running request wait behind all others, its KV in the prefix cache; False if it does not run."""
        request = self.requests.get(rid)
        if request is None or request.status is not Status.RUNNING:
            return False
        self._scheduler.put_back(request)
        return True

    def forget_finished(self) -> None:
        """Drop the records of requests that have ended, which are kept until then; their ids may be used again."""
        self.requests = {rid: request for rid, request in self.requests.items() if not request.finished}

    def step(self) -> Stepped:
        """Run one batch."""
        self._step += 1
        self.observers.tell(StepBegan, self._step)
        try:
            report = self._run_batch()
        except BaseException:
            self.observers.tell(StepOver, True)
            raise
        self.observers.tell(StepOver, False)
        return report

    @torch.inference_mode()
    def _run_batch(self) -> Stepped:
        async_probe.set_step(self._step)
        self.observers.tell(Scheduling, False)
        chunks = self._scheduler.next_prefill()
        if chunks:
            requests, lens = zip(*chunks, strict=True)
            starts = tuple(request.kv_len for request in requests)
            with self.observers.computing("prefill", requests, lens, starts):
                report = self._prefill(chunks)
        else:
            report = self._decode() if self._scheduler.running else Stepped(self._step, "idle")
        self.observers.tell(Scheduling, True)
        return report

    def flush_cache(self) -> None:
        """Drop every cached prefix that no request reads."""
        self._cache.flush()

    def check_guards(self) -> list[GuardViolation]:
        """Guard regions damaged since the last call, of the row table and of every runner's arena."""
        found = self._req_to_token.check_guards() + self._target_worker.check_guards()
        if self._speculative_worker is not None:
            found += self._speculative_worker.check_guards()
        return found

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns seen before a graph was launched: all of :meth:`check_guards` that a lost GPU leaves."""
        found = self._target_worker.damage_seen()
        return found if self._speculative_worker is None else found + self._speculative_worker.damage_seen()

    def draft_kv(self, request: Request, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Draft keys and values of positions [start, stop) of a request that holds a row.

        Keys [layers, n, num_kv_heads, head_dim], rotated, in Hugging Face's order of dimensions, values [layers, n,
        num_kv_heads, value_dim]. Of latent attention, a key is a position's normed latent and its rotated key part.
        """
        if self._memory.draft is None:
            raise ValueError("this engine has no draft KV")
        return self._read_kv(self._memory.draft, self._heads[-1], request, start, stop)

    def target_kv(self, request: Request, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """As :meth:`draft_kv`, of the target."""
        return self._read_kv(self._memory.target, self._heads[0], request, start, stop)

    def draft_state(self, requests: Sequence[Request]) -> Any:
        """Copies of what requests that hold rows store for their next draft. Raises EngineError without our worker."""
        return self.view.state.read(upload([request.row for request in requests], self._target_worker.device))

    def _read_kv(self, pool: KVPool, heads: Heads, request: Request, start: int, stop: int) -> tuple[Tensor, Tensor]:
        k, v = pool.read(self._req_to_token.slots(request.row, start, stop))
        return separate_pairs(k, heads.rotary_dim), v

    def _prefill(self, chunks: list[tuple[Request, int]]) -> Stepped:
        batch = PrefillBatch.build(chunks, self._req_to_token, self._target_worker.device)
        sampled, features = self._target_worker.prefill(batch)
        speculating = [i for i, request in enumerate(batch.requests) if request.speculative]
        if self._speculative_worker is not None and speculating:
            drafted, next_ids = batch, sampled
            if len(speculating) < len(batch.requests):
                drafted = PrefillBatch.build([chunks[i] for i in speculating], self._req_to_token, sampled.device)
                features = features[batch.rows_of(speculating)]
                next_ids = sampled[upload(speculating, sampled.device)]
            with self.observers.computing("prefill", drafted.requests, drafted.extend_lens_cpu):
                self._speculative_worker.prefill(drafted, next_ids, features)
        first = [r for r in batch.requests if r.retractions == 0 and r.kv_len == r.cached_tokens]
        cached = {r.rid: r.cached_tokens for r in first}
        report = Stepped(self._step, "prefill", tuple(r.rid for r in batch.requests), cached=cached)
        for (request, length), token in zip(chunks, sampled.tolist(), strict=True):
            request.kv_len += length
            self._scheduler.prefilled(request)
            self._cache.publish(request)
            if request.status is Status.RUNNING:
                report.emitted[request.rid] = request.accept_tokens([token])
                self.observers.tell(Prefilled, request)
                self._finish_if_done(request)
        return replace(report, finished=tuple(r.rid for r in batch.requests if r.finished))

    def _decode(self) -> Stepped:
        retracted = self._scheduler.prepare_decode()
        running = list(self._scheduler.running)
        report = Stepped(self._step, "decode", tuple([request.rid for request in running]))
        plain = [request for request in running if not request.speculative]
        speculating = [request for request in running if request.speculative] if plain else running
        if plain:
            with self.observers.computing("plain", plain):
                next_ids = self._target_worker.decode(plain)
            for request, token in zip(plain, next_ids, strict=True):
                self._advance(request, [token], report)
        if self._speculative_worker is not None and speculating:
            with self.observers.computing("speculative", speculating):
                accepted = self._speculative_worker.decode(speculating)
            for request, tokens in zip(speculating, accepted, strict=True):
                request.accept_lengths.append(len(tokens))
                report.accept_lengths[request.rid] = len(tokens)
                self._advance(request, tokens, report)
        finished = tuple(request.rid for request in (*plain, *speculating) if request.finished)
        return replace(report, finished=finished, retracted=tuple(request.rid for request in retracted))

    def _advance(self, request: Request, tokens: list[int], report: Stepped) -> None:
        """Every token but the newest has KV; what a verify committed beyond a stop token is not counted."""
        report.emitted[request.rid] = request.accept_tokens(tokens)
        request.kv_len = len(request.prompt_ids) + len(request.output_ids) - 1
        self._finish_if_done(request)

    def _finish_if_done(self, request: Request) -> None:
        if request.finish_reason is not None:
            self.observers.tell(Finishing, request)
            self._scheduler.drop(request, keep=True)


def usable_device(name: str) -> torch.device:
    """The device of that name. Raises InvalidOption when the machine has none."""
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            seen = f"torch sees {count} CUDA devices; use cpu, or see `specdebug doctor`"
            raise InvalidOption(f"{name} is not there: {seen}", ("device",))
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
    return device


def load_models(config: EngineConfig) -> Models:
    """The checkpoints that ``config`` names, the draft only if it speculates. Raises CheckpointError if one cannot be
    read, InvalidOption if the device does not exist or the draft is another algorithm's."""
    device, dtype, spec = usable_device(config.device), getattr(torch, config.dtype), config.speculative
    target = load_target(checkpoint_path(config.model), dtype=dtype, device=device, max_positions=config.reach)
    if spec is None or config.draft_model is None:
        return Models(target, None)
    path = checkpoint_path(config.draft_model)
    load_draft = part_of(spec.algorithm, "loader")
    return Models(target, load_draft(path, algorithm=spec.algorithm, target=target, max_positions=config.reach))


def _check_fit(config: EngineConfig, target: TargetModel, draft: DraftSizes | None) -> None:
    if config.reach > target.config.max_position_embeddings:
        most = f"exceeds the model's {target.config.max_position_embeddings} positions"
        raise InvalidOption(f"{config.context_length} plus a step's tokens {most}", ("context_length",))
    if config.reach > target.rotary.max_positions:  # a GPU would read on behind a table that is too short
        raise InvalidOption(f"the model's RoPE table ends at {target.rotary.max_positions}", ("context_length",))
    if config.speculative is not None and draft is not None and config.speculative.eagle_topk > draft.vocab_size:
        why = f"{config.speculative.eagle_topk} exceeds the draft vocabulary of {draft.vocab_size}"
        raise InvalidOption(why, ("speculative", "eagle_topk"))
