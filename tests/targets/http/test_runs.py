"""A whole arm on a server, without its worker: what the oracles find of it, and what they cannot be shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from specdebug.campaign.loops.replay import Choices, plan
from specdebug.run.arm import run_arm
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import WorkerEnd
from tests.targets.http.fake import FakeServer, serving

SCENARIO = """
name: on-a-server
engine: {speculative: {algorithm: EAGLE, num_steps: 3, eagle_topk: 1, num_draft_tokens: 4}}
probes: []
workload:
  - {id: first, requests: 3, prompt: {token_ids: [5, 6]}, max_new_tokens: 6}
  - {id: talk, turns: {clients: 2, rounds: 2, input_tokens: 4}, max_new_tokens: 3}
  - {id: later, prompt: {token_ids: [7]}, max_new_tokens: 2, arrive: {after: talk, step: 1}}
arms:
  only: {oracles: {accept: {min_ratio: 0.5}}}
"""


class Events:
    def __init__(self) -> None:
        self.ledger = Ledger()

    def emit(self, event: str, **fields: Any) -> None:
        self.ledger.fold({"event": event, **fields})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def run_on(file: Path, fake: FakeServer, options: str = "") -> Outcome:
    library = Library()
    with serving(fake):
        target = parse_target(f"{{http: '{fake.url}', request_timeout_s: 20 {options}}}")
        (run,) = plan(library.scenario(file), Choices(arms=("only",), target=target), library)
        events = Events()
        run_arm(pickle.loads(pickle.dumps(run.job(library).payload)), events)
    return events.ledger.outcome(WorkerEnd("done", 0, 1.0, 1.0, ""))


def test_a_sound_server_passes_and_what_it_cannot_show_is_listed(file: Path) -> None:
    outcome = run_on(file, FakeServer())
    assert (outcome.verdict, outcome.detail) == ("pass", "")
    assert outcome.complete
    assert outcome.target == "http"
    assert len(outcome.requests) == 3 + 4 + 1
    assert outcome.metrics.cached_tokens > 0
    assert outcome.metrics.accept_mean is not None
    assert outcome.metrics.accept_mean > 1
    assert {"lossless", "server_alive", "server_answers", "server_counts", "server_findings"} <= set(outcome.looks)
    blind = {line.partition(":")[0] for line in outcome.cannot_show}
    assert blind == {"pools", "target_kv", "draft_kv", "draft_state", "acceptance", "sampling", "turns", "work"}


@pytest.mark.parametrize(
    ("switches", "signature"),
    [
        ({"wrong_from": 1}, "mismatch@request"),
        ({"meta": {"completion_tokens": 99}}, "ends@counts"),
        ({"meta": {"cached_tokens": 99}}, "ends@counts"),
        ({"meta": {"spec_verify_ct": 99}}, "ends@counts"),
        ({"meta": {"spec_accept_length": 99.0}}, "ends@counts"),
        ({"meta": {"finish_reason": {"type": "stop", "matched": 3}}}, "ends@reason"),
        ({"meta": {"spec_accept_histogram": [10**8]}}, "error@http.answer"),
        ({"meta": {"reasoning_tokens": 99}}, "ends@counts"),
        ({"meta": {"spec_accept_rate": 0.9, "spec_accept_token_num": 1, "spec_draft_token_num": 3}}, "ends@counts"),
        ({"mean": 1.5}, "ends@counts"),
        ({"chance": 0.0}, "mismatch@logprobs"),
        ({"stammers": True}, "ends@stream"),
        ({"told": {"page_size": 1, "max_total_num_tokens": 10**6}, "meta": {"cached_tokens": 0}}, "ends@counts"),
        ({"status": {"/health_generate": 503}}, "error@server.health"),
        ({"die_after": 4}, "error@http.connection"),
    ],
)
def test_what_is_wrong_with_a_server_is_found(file: Path, switches: dict[str, Any], signature: str) -> None:
    outcome = run_on(file, FakeServer(**switches))
    assert (outcome.verdict, outcome.signature) == ("fail", signature)


def test_a_server_of_which_nothing_says_what_is_right_is_not_called_lossless(file: Path) -> None:
    outcome = run_on(file, FakeServer(switch=False, wrong_from=1))
    assert outcome.verdict == "pass"
    assert "lossless: this target cannot show what its model says without drafts" in outcome.cannot_show
    assert "server_findings: this target cannot show what it or its log says of failures" in outcome.cannot_show


@pytest.mark.parametrize(
    ("switches", "told"),
    [
        ({"event": {"text": None}}, "/generate: text is null"),
        ({"event": {"output_ids": ["5"]}}, "/generate: output_ids.0 is '5', not a valid integer"),
        ({"meta": {"spec_accept_histogram": [1, 10**12]}}, "/generate: meta_info.spec_accept_histogram.1 is 100000"),
    ],
)
def test_a_server_of_another_interface_is_named_before_the_run(file: Path, switches: dict[str, Any], told: str) -> None:
    outcome = run_on(file, FakeServer(**switches))
    assert outcome.verdict == "unknown"
    assert "is no server of SGLang's interface: " in outcome.detail
    assert told in outcome.detail
