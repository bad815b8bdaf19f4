"""The embedded engine as a target: a fork server that has warmed it leaves its forks nothing to import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from specdebug.run.oracles.base import Bench, OracleSettings
from specdebug.run.oracles.registry import oracles_of
from specdebug.scenario.grammar import OracleSpec
from specdebug.targets.embedded import TARGET, EmbeddedSession, build_engine

PROGRAM = """
import json, sys
from specdebug.base.attention_plans import SHIPPED
from specdebug.engine.attention.backend import planner_class
from specdebug.targets.embedded import TARGET, build_engine
for plan in SHIPPED:  # as a fork server does
    for layout in ("mha", "mla"):
        planner_class(plan.name, layout)
speculative = {"algorithm": sys.argv[1], "worker": sys.argv[2], "num_steps": 2}
options = {"context_length": 64, "speculative": speculative, "memory": {"num_slots": 256}}
TARGET.warm(options)
before = set(sys.modules)
build_engine(options, 0)
print(json.dumps(sorted(name for name in set(sys.modules) - before if name.startswith("specdebug."))))
"""


@pytest.mark.parametrize(("algorithm", "worker"), [("EAGLE", "v2"), ("EAGLE", "v1"), ("FROZEN_KV_MTP", "v2")])
def test_an_engine_that_was_warmed_is_built_without_imports_of_ours(algorithm: str, worker: str) -> None:
    command = [sys.executable, "-c", PROGRAM, algorithm, worker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == []


def test_a_draft_without_kv_is_asked_for_and_nobody_wants_to_look_at_its_kv() -> None:
    options = {"context_length": 64, "memory": {"num_slots": 256}, "speculative": {"algorithm": "FROZEN_KV_MTP"}}
    asked = TARGET.asked(options)
    assert (asked.drafts, asked.draft_model, asked.algorithm) == (True, "tiny-assistant", "FROZEN_KV_MTP")
    session = EmbeddedSession(build_engine(options, 0), asked)
    settings = OracleSettings(OracleSpec(), asked)
    bench = Bench(settings, session, None, lambda violation: None, lambda rid, tie: None, str)
    looking, blind = oracles_of(bench)
    assert [each.oracle for each in blind if each.oracle.startswith("draft")] == []
    assert {"graphs", "acceptance", "lossless", "pools", "draft_state"} <= {each.name for each in looking}
    assert "draft_kv" not in {each.name for each in looking}
    assert settings.reference is not None
