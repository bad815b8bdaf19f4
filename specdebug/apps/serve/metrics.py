"""``/metrics``: the sums of what was served, for Prometheus, by SGLang's names."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.state import ServerState

_LABEL = "model_name"
# fmt: off
_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100)
_INTER_TOKEN = (0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 1)
_WHOLE = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200)
# fmt: on


class ServerMetrics:
    """The metrics of one server; the totals of ``client`` tell it of latencies from now on."""

    def __init__(self, client: EngineClient, model_name: str, slots: int) -> None:
        self._client = client
        self._model = model_name
        self._slots = slots
        self.registry = CollectorRegistry()
        self._latencies = {
            name: Histogram(f"sglang:{title}_seconds", text, [_LABEL], buckets=buckets, registry=self.registry).labels(
                model_name
            )
            for name, title, text, buckets in (
                ("first_token", "time_to_first_token", "Time to the first token.", _FIRST_TOKEN),
                ("inter_token", "inter_token_latency", "Time between two tokens.", _INTER_TOKEN),
                ("e2e", "e2e_request_latency", "Time from a request to its end.", _WHOLE),
            )
        }
        self.registry.register(self)
        client.totals.heard = lambda what, value: self._latencies[what].observe(value)

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
