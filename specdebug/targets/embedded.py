"""The embedded EAGLE engine as a target: every ability, step by step, in the worker's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from specdebug import kernel_memory
from specdebug.base.abilities import DEFAULT, OF_SERVERS, SHOWN, Ability
from specdebug.base.features import WITHOUT_GRAMMAR, features_of
from specdebug.events import Stepped
from specdebug.targets.base import Asked, Opening, Session, Target, Traits
from specdebug.targets.relations import NoTwin, Relation, Twin, option_twin, said
from specdebug.targets.requests import RequestView, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine import Engine
    from specdebug.engine.memory.arena import GuardViolation
    from specdebug.engine.textbook.request import Request
    from specdebug.targets.base import StoredDrafts
    from specdebug.targets.logprobs import LogprobRecorder

NONE_HERE = {
    "dp": "our engine has one rank",
    "pd": "our engine has one rank",
    "ranks": "our engine has one rank",
    "release": "this package has one release of its engine",
    "runner": "it has one model runner",
}
"""Relations that have no meaning for it, and why."""
EVERYTHING: frozenset[Ability] = frozenset(SHOWN) - OF_SERVERS

_models: dict[tuple[Any, ...], Any] = {}


def build_engine(options: Mapping[str, Any], seed: int) -> Engine:
    """An engine of these options, imported here: reverts must be in place. Raises SpecDebugError."""
    from specdebug.engine import Engine
    from specdebug.targets.options import OURS

    config = OURS.read({"seed": seed, **options})
    return Engine(config, _models.get(config.loaded))


class EmbeddedTarget(Target):
    """Builds the engine in the worker itself."""

    traits = Traits(DEFAULT, EVERYTHING, records=True, features=WITHOUT_GRAMMAR)

    def asked(self, options: Mapping[str, Any]) -> Asked:
        from specdebug.targets.options import OURS

        return OURS.asked(options)

    def twin(self, relation: Relation, options: Mapping[str, Any], prompt: int) -> Twin:
        from specdebug.targets.options import OURS

        if relation.name in NONE_HERE:
            raise NoTwin(NONE_HERE[relation.name])
        # A request's coins are drawn from a generator of its own, named by its id and the run's seed.
        coins = relation.name not in ("again", "plain", "reference", "retracted")
        whole = OURS.completed(options)
        over = option_twin(relation.name, whole, prompt, OURS.space)
        if relation.name == "overlap":
            spec = whole["speculative"]
            if spec is None or spec["worker"] == "v1":
                raise NoTwin("nothing of it runs ahead: it has no drafts, or drafts by the worker v1")
            over = {"speculative": {"worker": "v1"}}
        if relation.name == "reference":
            return Twin("the dense model of this package")
        made = Twin(said(whole, over), over) if over is not None else super().twin(relation, options, prompt)
        # What is cached decides how well a hit drafts whose draft KV is left at zeros.
        zeros = (whole["speculative"] or {}).get("draft_kv_on_hit") == "zero_fill"
        return replace(made, coins=coins, unlike=("accept lengths",) if zeros else ())

    def warm(self, options: Mapping[str, Any]) -> None:
        from specdebug.engine.textbook.engine import load_models
        from specdebug.engine.workers.registry import part_of
        from specdebug.targets.options import OURS

        config = OURS.read(options)
        spec = config.speculative
        if spec is not None:  # imports what serves it, or every fork would
            part_of(spec.algorithm, "v1" if spec.worker == "v1" else "worker")
            part_of(spec.algorithm, "drafter")
        if config.device == "cpu" and config.loaded not in _models:  # a GPU's memory does not survive a fork
            _models[config.loaded] = load_models(config)

    def cool(self) -> None:
        _models.clear()

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> EmbeddedSession:
        from specdebug import async_probe
        from specdebug.engine import progress
        from specdebug.workers.device import claim, watch_triton

        asked = self.asked(options)
        if asked.device != "cpu":
            opening.say("claiming", device=asked.device)
        opening.say("stack", **claim(asked.device, str(asked.attention_backend), asked.dtype, opening.label))
        forget = progress.listen(opening.busy.said)
        try:
            if asked.device != "cpu":
                watch_triton(opening.busy.compiling, opening.busy.compiled)
            opening.before()
            if (rules := opening.over_there.kernels) and asked.device != "cpu":
                where = f"where they run interpreted, not on {asked.device}"
                opening.say("note", text=f"the memory of kernels is looked at {where}")
            elif rules:
                from specdebug.engine.kernels.twin import interpret_on_cpu

                interpret_on_cpu()
                kernel_memory.begin(rules)
            engine = build_engine(options, seed)
            opening.busy.said("")  # what the engine said last, such as what it captured, is done
            if asked.device != "cpu":
                async_probe.drain()  # what warm-ups before a capture said of their dummy inputs is no failure
        except BaseException:
            forget()
            raise
        return EmbeddedSession(engine, asked, forget)


def _booked(request: Request) -> list[Any]:
    """What is booked of a request."""
    kv = [request.kv_len, request.kv_allocated, request.protected_len, request.cached_tokens, request.node is not None]
    end = [request.finish_reason, request.retractions, request.output_ids, request.accept_lengths, bool(request.row)]
    return [request.rid, request.status.value, *kv, *end]


class EmbeddedSession(Session):
    """The engine, serving."""

    shows: frozenset[Ability] = EVERYTHING
    _logprobs: LogprobRecorder | None = None

    def __init__(self, engine: Engine, asked: Asked, forget: Callable[[], None] = lambda: None) -> None:
        """``forget`` ends what was begun to listen to."""
        from specdebug.base.assets import checkpoint_path
        from specdebug.engine.textbook.speculative.worker import StagedWorker
        from specdebug.reference.config import read_config

        self.inside: Engine = engine
        self.observers = engine.observers
        self._forget = forget
        self.vocab_size = read_config(checkpoint_path(asked.model)).vocab_size
        self._on_gpu = asked.device != "cpu"
        config = engine.config
        if config.radix_cache:
            self.cache = config.page_size, config.usable_slots
        worker = engine.view.worker
        if worker is not None and not isinstance(worker, StagedWorker):
            self.shows = EVERYTHING - {"drafts", "decisions", "graphs"}
        elif worker is not None and engine.view.memory.draft is None:
            self.shows = EVERYTHING - {"draft_kv"}

    @property
    def has_work(self) -> bool:
        return self.inside.has_work

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        from specdebug.engine import SamplingParams

        given = {each.name: getattr(sampling, each.name) for each in fields(SamplingParams) if each.name != "features"}
        own = SamplingParams(**given, features=features_of(sampling))
        self.inside.add_request(rid, list(prompt_ids), own, speculative=speculative)
        if self._logprobs is None and own.features.logprobs is not None:
            self.want_logprobs()
        if self._logprobs is not None:
            self._logprobs.want(rid, {"top": features_of(sampling).logprobs or 0, "ids": [], "start": None})

    def abort(self, rid: str) -> None:
        self.inside.abort(rid)

    def advance(self) -> Stepped:
        report = self.inside.step()
        if self._logprobs is not None:
            for rid, told in self._logprobs.take(report.emitted).items():
                self._told.setdefault(rid, []).extend(told["output"])
        return report

    def request(self, rid: str) -> RequestView:
        return self.inside.requests[rid]

    def clock(self) -> float:
        return time.perf_counter() if self._on_gpu else time.process_time()

    def books(self) -> Mapping[str, Any]:
        view = self.inside.view
        scheduler, memory, radix = view.scheduler, view.memory, view.cache.radix
        queues = (scheduler.waiting, scheduler.running, [*filter(None, [scheduler.chunked])])
        nodes = list(radix.nodes())
        ages = sorted({node.last_access for node in nodes})
        return {
            "queues": [[each.rid for each in queue] for queue in queues],
            "requests": [_booked(each) for each in view.engine.requests.values()],
            "radix tree": [
                [radix.evictable_size, radix.protected_size],
                *(
                    [node.key.array.tolist(), node.draft_written, node.lock_ref, ages.index(node.last_access)]
                    for node in nodes
                ),
            ],
            "free slots and rows": [memory.allocator.num_free, view.req_to_token.num_free_rows],
        }

    def record(self, *, beside_ours: bool = False) -> None:
        """It shows all that passes anyway."""

    def settle(self) -> bool:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
        return self._on_gpu

    def close(self, sound: bool) -> None:
        """Tell no more what the engine is busy with; it ends with its worker."""
        self._forget()

    def flush_cache(self) -> None:
        self.inside.flush_cache()

    def want_logprobs(self) -> None:
        from specdebug.targets.logprobs import LogprobRecorder

        self._logprobs, self._told = LogprobRecorder(self.inside), dict[str, list[Any]]()

    def logprobs(self, rid: str) -> Sequence[float]:
        return [own for own, _, _ in self._told.get(rid, ())]

    def top_logprobs(self, rid: str) -> Sequence[Mapping[int, float]]:
        return [{token: value for value, token in top} for _, top, _ in self._told.get(rid, ())]

    def set_back(self) -> Sequence[str]:
        running = [each.rid for each in self.inside.view.scheduler.running if each.output_ids]
        return running[-1:] if len(running) > 1 and self.inside.put_back(running[-1]) else ()

    def check_pools(self) -> Sequence[str]:
        from specdebug.targets.laws import broken_laws

        return broken_laws(self.inside)

    def check_guards(self) -> Sequence[GuardViolation]:
        return self.inside.check_guards()

    def damage_seen(self) -> Sequence[GuardViolation]:
        return self.inside.damage_seen()

    def draft_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self.inside.draft_kv(cast("Request", request), start, stop)

    def target_kv(self, request: RequestView, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self.inside.target_kv(cast("Request", request), start, stop)

    def draft_state(self, requests: Sequence[RequestView]) -> StoredDrafts:
        stored: StoredDrafts = self.inside.draft_state([cast("Request", each) for each in requests])
        return stored


TARGET = EmbeddedTarget()
