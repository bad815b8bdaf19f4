"""The routes that say how the server is, ``/metrics`` among them, and those that tell it to do something else."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from specdebug import __version__
from specdebug.apps.serve.answers import ASIDE_BYTES, body_of
from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.fields import BadField, Fields, Refusal, parse
from specdebug.apps.serve.state import ServerState
from specdebug.base.engine_flags import values_of

GENERATE_S = 20.0  # seconds that one token may take when /health_generate asks for it

_LABEL = "model_name"
# fmt: off
_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100)
_INTER_TOKEN = (0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 1)
_WHOLE = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200)
# fmt: on


async def health(state: ServerState, http: Request) -> Response:
    """200 while the engine serves, 503 before and after."""
    state.require_engine()
    return Response(status_code=200)


async def health_generate(state: ServerState, http: Request) -> Response:
    """200 once the engine has generated a token, for any request."""
    state.require_engine()
    try:
        await asyncio.wait_for(state.client.generates(), GENERATE_S)
    except TimeoutError:
        raise Refusal(503, f"the engine generated nothing in {GENERATE_S:g} s") from None
    state.require_engine()
    return Response(status_code=200)


async def flush_cache(state: ServerState, http: Request) -> Response:
    """Empty the prefix cache; 400, and nothing done, while anything is served."""
    state.require_engine()
    if not await state.client.flush():
        state.require_engine()
        raise Refusal(400, "the cache is flushed only while no request runs or waits")
    return PlainTextResponse("Cache flushed.\n")


async def abort_request(state: ServerState, http: Request) -> Response:
    """End a request by its ``rid`` (those whose rid begins with it, too, as SGLang does), or with ``abort_all`` all."""
    state.require_engine()
    fields = Fields(parse(await body_of(http, ASIDE_BYTES) or b"{}"))
    rid, everything = fields.text("rid"), fields.switch("abort_all", False)
    fields.close({"abort_message": ("",), "finished_reason": ()})
    if not everything and not rid:
        raise BadField("rid", "must name a request, or abort_all be true")
    for each in list(state.client.open):
        if everything or each.startswith(rid or ""):
            state.client.abort(each)
    return Response(status_code=200)


async def model_info(state: ServerState, http: Request) -> Response:
    """The model that is served."""
    path = state.config.model
    return JSONResponse(
        {
            "model_path": path,
            "tokenizer_path": path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": state.settings.weight_version,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": state.model.model_type,
            "architectures": state.model.architectures,
        }
    )


async def server_info(state: ServerState, http: Request) -> Response:
    """Every flag's value, the engine's state, and under ``specdebug`` what only this server has."""
    client, totals = state.client, state.client.totals
    coverage: Mapping[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        coverage = await asyncio.wait_for(client.coverage(), 2.0)
    internal: dict[str, Any] = {
        "last_gen_throughput": totals.throughput,
        "effective_max_running_requests_per_dp": state.config.max_running_requests,
        "memory_usage": {"token_capacity": state.config.usable_slots},
        "num_running_reqs": totals.running,
        "num_queue_reqs": client.waiting,
        "used_tokens": totals.used,
    }
    if state.tree_size is not None:
        internal["avg_spec_accept_length"] = totals.accept_length
    own = {
        "version": __version__,
        "speculative_switch": True,
        "engine": {"state": client.state, "pid": client.pid, "step": totals.steps},
        "failure": None if client.failure is None else asdict(client.failure),
        "violations": [
            {"signature": each.signature, "step": each.step, "detail": each.detail, "value": each.data.get("value")}
            for each in client.violations[:100]
        ],
        "reverts": state.reverts.with_engine(coverage.get("hits", {})),
        "reached_sites": coverage.get("reached", {}),
        "stack": client.stack,
        "up_s": time.time() - state.began,
    }
    return JSONResponse(
        {
            **state.settings.arguments,
            **values_of(state.config.to_dict()),
            "speculative_num_draft_tokens": state.tree_size,
            "speculative_draft_model_path": state.config.draft_model,
            "max_total_num_tokens": state.config.usable_slots,
            "max_req_input_len": state.config.context_length - 1,
            "status": client.state,
            "version": __version__,
            "internal_states": [internal],
            "specdebug": own,
        }
    )


async def models(state: ServerState, http: Request) -> Response:
    """The one model, in OpenAI's form: in a list, or by its name."""
    name = state.settings.served_model_name
    asked = http.path_params.get("name", name)
    if asked != name:
        raise Refusal(404, f"there is no model {asked!r}; this server has {name!r}", "model")
    card = {
        "id": name,
        "object": "model",
        "created": int(state.began),
        "owned_by": "specdebug",
        "root": name,
        "parent": None,
        "max_model_len": state.config.context_length,
    }
    return JSONResponse(card if "name" in http.path_params else {"object": "list", "data": [card]})


class ServerMetrics:
    """The metrics of one server; the totals of ``client`` tell it of latencies from now on."""

    def __init__(self, client: EngineClient, model_name: str, slots: int) -> None:
        self._client = client
        self._model = model_name
        self._slots = slots
        self.registry = CollectorRegistry()
        latencies = {}
        for name, title, text, buckets in (
            ("first_token", "time_to_first_token", "Time to the first token.", _FIRST_TOKEN),
            ("inter_token", "inter_token_latency", "Time between two tokens.", _INTER_TOKEN),
            ("e2e", "e2e_request_latency", "Time from a request to its end.", _WHOLE),
        ):
            found = Histogram(f"sglang:{title}_seconds", text, [_LABEL], buckets=buckets, registry=self.registry)
            latencies[name] = found.labels(model_name)
        self.registry.register(self)
        client.totals.heard = lambda what, value: latencies[what].observe(value)

    def collect(self) -> Iterable[Metric]:
        """Every sum and gauge as it is now; the registry calls this."""
        totals = self._client.totals
        table: tuple[tuple[type[Gauge | Counter], str, str, float], ...] = (
            (Gauge, "num_running_reqs", "Requests that run.", totals.running),
            (Gauge, "num_queue_reqs", "Requests that wait.", self._client.waiting),
            (Gauge, "num_used_tokens", "KV slots that requests hold.", totals.used),
            (Gauge, "max_total_num_tokens", "KV slots there are.", self._slots),
            (Gauge, "token_usage", "The part of the KV slots that requests hold.", totals.used / self._slots),
            (Gauge, "cache_hit_rate", "The part of prompt tokens that came out of the cache.", totals.hit_rate),
            (Gauge, "gen_throughput", "Tokens a second.", totals.throughput),
            (Gauge, "spec_accept_length", "Tokens a verify, the bonus included.", totals.accept_length),
            (Counter, "prompt_tokens", "Prompt tokens of requests with a first token.", totals.prompt_tokens),
            (Counter, "generation_tokens", "Tokens generated.", totals.generated_tokens),
            (Counter, "cached_tokens", "Prompt tokens out of the cache.", totals.cached_tokens),
            (Counter, "num_requests", "Requests that ended.", totals.requests),
            (Counter, "num_aborted_requests", "Those of them that were aborted.", totals.aborted),
        )
        for kind, name, text, value in table:
            metric = kind(f"sglang:{name}", text, labels=[_LABEL])
            metric.add_metric([self._model], value)
            yield metric

    async def answer(self, state: ServerState, http: Request) -> Response:
        """The route."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
