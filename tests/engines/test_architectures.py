"""Architectures on SGLang 0.5.23, by twins: what must hold holds, and what upstream has wrong is told by name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.engines.replays import ROOT

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.23"


def twins(name: str, *relations: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    """Exit code, and by arm and relation what the pair came to."""
    words = [word for each in relations for word in ("--relation", each)]
    path = str(ROOT / "scenarios" / "twins" / f"{name}.yaml")
    command = [sys.executable, "-m", "specdebug", "twins", path, "--target", RELEASE, "--no-locate", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    pairs = json.loads(done.stdout)["twins"]
    return done.returncode, {(each["arm"], each["relation"]): each for each in pairs}


@pytest.mark.parametrize(
    ("name", "relations"),
    [
        ("mla_ngram", ("plain", "cold", "reference")),
        ("mla_standalone", ("plain", "eager", "reference")),
        ("windows", ("cold", "order", "retracted", "page", "reference")),
        ("hybrid", ("plain", "reference")),
        ("mamba", ("plain", "cold", "retracted")),
        ("frozen", ("cold", "retracted", "reference")),
        ("quantised_kv", ("cold", "order", "retracted", "chunks", "page")),
    ],
)
def test_ways_that_must_not_matter_do_not(name: str, relations: tuple[str, ...]) -> None:
    code, pairs = twins(name, *relations)
    assert code == 0
    assert {relation: pairs["fixed", relation]["verdict"] for relation in relations} == dict.fromkeys(
        relations, "holds"
    )


def test_of_sliding_windows_plain_decode_is_wrong_and_speculation_right() -> None:
    code, pairs = twins("windows", "plain")
    assert code == 0  # as the scenario says
    told = [each["wrong"] for each in pairs["fixed", "plain"]["breaks"]]
    assert told
    assert set(told) == {"second"}


def test_on_triton_quantised_keys_are_read_as_computed_by_those_who_computed_them() -> None:
    code, pairs = twins("quantised_kv", "plain")
    assert code == 0
    assert pairs["fixed", "plain"]["verdict"] == "holds"
    assert pairs["triton", "plain"]["verdict"] == "broken"
