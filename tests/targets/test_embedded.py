"""The embedded engine as a target: a fork server that has warmed it leaves its forks nothing to import."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from specdebug.attention_plans import SHIPPED
from specdebug.engine.attention.select import planner_class
from specdebug.targets.embedded import TARGET, build_engine
for plan in SHIPPED:  # as a fork server does
    for layout in ("mha", "mla"):
        planner_class(plan.name, layout)
options = {"context_length": 64, "speculative": {"num_steps": 2}, "memory": {"num_slots": 256}}
TARGET.warm(options)
before = set(sys.modules)
build_engine(options, 0)
print(json.dumps(sorted(name for name in set(sys.modules) - before if name.startswith("specdebug."))))
"""


def test_an_engine_that_was_warmed_is_built_without_imports_of_ours() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == []
