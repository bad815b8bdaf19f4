"""A target from outside the package: one that completes requests instead of making steps, found by its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.seams.installing import Install, installing

__all__ = ["installing"]

SOURCE = '''
from types import SimpleNamespace

from specdebug.events import Stepped
from specdebug.targets.base import Asked, Traits
from specdebug.targets.base import Session as Base


class Echo:
    """Answers every request with the prompt's last token, again and again, a whole request at a time."""

    traits = Traits("echo", frozenset({"cached_tokens"}))

    def asked(self, options):
        return Asked(options.get("model", "tiny"))

    def warm(self, options): ...

    def cool(self): ...

    def open(self, options, seed, opening):
        opening.say("stack", device="cpu", name="echo", executor="echo", backend="echo", dtype="float32")
        opening.before()
        return Session()


class Session(Base):
    shows = Echo.traits.shows
    vocab_size = 4096

    def __init__(self):
        self.requests, self.open, self.steps = {}, [], 0

    @property
    def has_work(self):
        return bool(self.open)

    def add(self, rid, prompt_ids, sampling, *, speculative):
        self.requests[rid] = SimpleNamespace(
            rid=rid, prompt_ids=prompt_ids, output_ids=[], all_ids=list(prompt_ids), sampling=sampling, kv_len=0,
            speculative=False, cached_tokens=0, accept_lengths=(), finish_reason=None,
        )
        self.open.append(rid)

    def abort(self, rid):
        self.open.remove(rid)
        self.requests[rid].finish_reason = "abort"

    def request(self, rid):
        return self.requests[rid]

    def advance(self):
        rid = self.open.pop(0)
        request = self.requests[rid]
        request.output_ids = [request.prompt_ids[-1]] * request.sampling.max_new_tokens
        request.finish_reason = "length"
        self.steps += 1
        return Stepped(self.steps, "served", (rid,), {rid: request.output_ids}, finished=(rid,))


TARGET = Echo()
'''

SCENARIO = """
name: outside
target: echo
workload:
  - {id: now, requests: 2, prompt: {token_ids: [5, 6]}, max_new_tokens: 3}
  - {id: later, prompt: {token_ids: [7]}, max_new_tokens: 2, arrive: {step: 9}}
oracles: {lossless: false, sampling: false, ends: false}
arms:
  only: {}
  reverted: {revert: [19897]}
"""


def replay(folder: Path, *argv: str, command: str = "replay") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])}
    words = [sys.executable, "-m", "specdebug", command, *argv]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_target_of_another_distribution_runs_a_scenario(installing: Install, tmp_path: Path) -> None:
    folder = installing("echoing", SOURCE, {"targets": {"echo": "echoing:TARGET"}})
    file = tmp_path / "outside.yaml"
    file.write_text(SCENARIO)
    done = replay(folder, str(file), "--json")
    only, reverted = json.loads(done.stdout)["arms"]
    assert only["target"] == "echo"
    assert [request["output_ids"] for request in only["requests"]] == [[6, 6, 6], [6, 6, 6], [7, 7]]
    assert {line.split(":")[0] for line in only["cannot_show"]} == {"probes", "pools", "turns"}
    assert (only["verdict"], only["reasons"]) == ("unknown", ["no oracle that was asked for could look"])
    assert (reverted["verdict"], reverted["reasons"][0]) == (
        "unknown",
        "target echo cannot show its own source with a fix reverted",
    )
    assert done.returncode == 125
