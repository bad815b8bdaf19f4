"""Run an arm with faults in this process: a second where a worker would take several."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

from specdebug import async_probe
from specdebug.base import corpus
from specdebug.campaign.loops.replay import ArmRun
from specdebug.engine.workers.registry import LINEUP
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.minimal import minimal
from specdebug.faults.model import Fault
from specdebug.run.arm import run_arm
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.embedded import TARGET
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import WorkerEnd
from specdebug.workers.wire import encode
from tests.run.oracles.watched import SOURCE


class LedgerSink:
    """Folds events as a parent would, after the same trip through the wire's JSON."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append(json.loads(encode({"event": event, **fields})))
        self.ledger.fold(self.events[-1])


@contextmanager
def models_kept(options: Mapping[str, Any]) -> Iterator[None]:
    TARGET.warm(options)
    yield
    TARGET.cool()


@cache
def _packs() -> Any:
    return Library().packs(("default",))


def run_here(scenario: Scenario, *faults: Fault, seed: int = 0, arm: str = "base") -> Outcome:
    """The outcome of one arm, ``faults`` laid over its own."""
    if faults:
        scenario = replace(scenario, arms={**scenario.arms, arm: replace(scenario.arms[arm], faults=faults)})
    run = ArmRun(arm, scenario, arm, seed, _packs())
    sink = LedgerSink()
    try:
        run_arm(run.job(Library()).payload, sink)
    finally:
        async_probe.configure("off")
    assert sink.ledger.usage_error is None, sink.ledger.usage_error
    return sink.ledger.outcome(WorkerEnd("exited", 0, 0.0, 0.0, ""))


def minimal_run(name: str, seed: int = 0, worker: str = "EAGLE v2", **address: Any) -> Outcome:
    """With prompts from a text of the tests, which is the same with every Python."""
    plain, fault = minimal(CLASSES[name], worker=LINEUP[worker])
    with mock.patch.object(corpus, "heldout_text", return_value=SOURCE):
        return run_here(Scenario.from_dict(plain), replace(fault, **address), seed=seed)
