"""What another distribution adds, each found by its entry point alone: an algorithm, an oracle, a target, a format."""

import json
from pathlib import Path

import pytest

from specdebug.base.errors import ContentErrors
from specdebug.cli.main import run
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import Scenario
from tests.seams.conftest import Install, Replay

PACKED = '''
import os
from pathlib import Path

from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.model.loader import load_draft
from specdebug.engine.workers.registry import Algorithm


class PackedPool(MHAPool):
    """Stores as the shipped pool does, and leaves a note that it was made."""

    def __init__(self, model, **options):
        sizes = {name: getattr(model, name) for name in ("num_layers", "num_kv_heads", "head_dim")}
        super().__init__(**sizes, **options)
        Path(os.environ["PACKED_POOLS"]).open("a").write("made;")


def load_head(path, *, algorithm, **options):
    head = load_draft(path, algorithm="EAGLE", **options)
    head.kv_layout = "packed"
    return head


PACKED = Algorithm("specdebug.engine.textbook.speculative.worker:EagleWorker", "packing:load_head")
'''

SPECULATING = """
name: outside
engine:
  context_length: 128
  max_running_requests: 2
  speculative: {{algorithm: {algorithm}, draft_model: tiny-eagle, num_steps: 3}}
  cuda_graph: {{max_bs: 2}}
  memory: {{num_slots: 512}}
workload:
  - {{requests: 2, prompt: {{corpus: stdlib, tokens: [8, 12]}}, max_new_tokens: 8}}
"""


def test_a_scenario_names_an_algorithm_whose_draft_model_has_a_pool_of_its_own(
    installing: Install, replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    monkeypatch.setenv("PACKED_POOLS", str(made))
    points = {"algorithms": {"PACKED": "packing:PACKED"}, "kv_pools": {"packed": "packing:PackedPool"}}
    installing("packing", PACKED, points)
    outcomes = {}
    for algorithm in ("PACKED", "EAGLE"):
        done = replay(SPECULATING.format(algorithm=algorithm), "--json")
        assert done.returncode == 0, done.stderr
        (outcomes[algorithm],) = json.loads(done.stdout)["arms"]
    packed, eagle = outcomes["PACKED"], outcomes["EAGLE"]
    assert packed["requests"] == eagle["requests"]
    assert packed["trace_hash"] == eagle["trace_hash"]
    assert made.read_text() == "made;", "by the one arm whose draft model asks for it"


ORACLE = '''
from specdebug.events import Finishing
from specdebug.run.oracles.base import Oracle
from specdebug.verdict.outcome import Violation


class AtMost(Oracle):
    """No request may emit more tokens than its option says."""

    name = "at-most"
    needs = frozenset({"steps"})
    hears = (Finishing,)

    def on(self, event):
        request = event.request
        if len(request.output_ids) > self.bench.settings.spec.more[self.name]:
            self.bench.report(Violation("too-long", request.rid, self.bench.step, "talks too much"))
'''

JUDGED = """
name: outside
workload: [{id: one, prompt: {token_ids: [5, 6]}, max_new_tokens: 4}]
oracles: {lossless: false, draft_kv: false, at-most: 3}
arms:
  few: {}
  many: {oracles: {at-most: 4}}
  off: {oracles: {at-most: false}}
"""


def test_an_oracle_of_another_distribution_judges_a_run(installing: Install, replay: Replay) -> None:
    installing("counting", ORACLE, {"oracles": {"at-most": "counting:AtMost"}})
    done = replay(JUDGED, "--json")
    few, many, off = json.loads(done.stdout)["arms"]
    assert (few["verdict"], few["signature"]) == ("fail", "too-long@one.0")
    assert [arm["verdict"] for arm in (many, off)] == ["pass", "pass"]
    assert done.returncode == 1


def test_its_options_survive_a_round_trip_and_without_it_the_name_is_unknown(
    installing: Install, tmp_path: Path
) -> None:
    file = tmp_path / "outside.yaml"
    file.write_text(JUDGED)
    with pytest.raises(ContentErrors, match="unknown key 'at-most' in oracles"):
        load_scenario(file, None)
    installing("counting", ORACLE, {"oracles": {"at-most": "counting:AtMost"}})
    scenario = load_scenario(file, None)
    assert scenario.oracles.more == {"at-most": 3}
    assert Scenario.from_dict(scenario.to_dict()).oracles_of("many").more == {"at-most": 4}


TARGET = '''
from types import SimpleNamespace

from specdebug.events import Stepped
from specdebug.targets.base import Asked, Traits
from specdebug.targets.base import Session as Base
from specdebug.targets.base import Target


class Echo(Target):
    """Answers every request with the prompt's last token, again and again, a whole request at a time."""

    traits = Traits("echo", frozenset({"cached_tokens"}))

    def asked(self, options):
        return Asked(options.get("model", "tiny"))

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

ECHOED = """
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


def test_a_target_of_another_distribution_runs_a_scenario(installing: Install, replay: Replay) -> None:
    installing("echoing", TARGET, {"targets": {"echo": "echoing:TARGET"}})
    done = replay(ECHOED, "--json")
    only, reverted = json.loads(done.stdout)["arms"]
    assert only["target"] == "echo"
    assert [request["output_ids"] for request in only["requests"]] == [[6, 6, 6], [6, 6, 6], [7, 7]]
    assert {line.split(":")[0] for line in only["cannot_show"]} == {"probes", "pools", "turns", "work"}
    assert (only["verdict"], only["reasons"]) == ("unknown", ["no oracle that was asked for could look"])
    assert (reverted["verdict"], reverted["reasons"][0]) == (
        "unknown",
        "target echo cannot show its own source with a fix reverted",
    )
    assert done.returncode == 125


STUB = (Path(__file__).parent / "stub_engine.py").read_text("utf-8")
STEPPED = """
name: outside
target: stub
workload:
  - {id: now, requests: 2, prompt: {token_ids: [4, 4]}, max_new_tokens: 6}
  - {id: later, prompt: {token_ids: [7]}, max_new_tokens: 2, arrive: {step: 3}}
oracles: {lossless: false, sampling: false, draft_kv: false, draft_state: false}
"""


@pytest.mark.parametrize(
    ("planted", "signature"),
    [
        ("", None),
        ("self.free += request.slots[1:]", "pools@conservation"),
        ("self.free += request.slots; request.tokens.pop()", "ends@stream"),
    ],
)
def test_an_engine_of_another_distribution_is_stepped_and_judged(
    planted: str, signature: str | None, installing: Install, replay: Replay
) -> None:
    right = "self.free += request.slots"
    source = STUB.replace(f"        {right}\n", f"        {planted or right}\n")
    installing("stub_engine", source, {"targets": {"stub": "stub_engine:TARGET"}})
    done = replay(STEPPED, "--json")
    (only,) = json.loads(done.stdout)["arms"]
    assert (only["verdict"], only["signature"]) == ("fail" if signature else "pass", signature), done.stdout
    if signature is None:
        first, _, later = only["requests"]
        assert (first["output_ids"], first["accept_lengths"]) == ([5, 6, 47, 48, 21, 24], [2, 2, 1, 1])
        assert (later["output_ids"], only["metrics"]["steps"]) == ([8, 9], 4)


FORMAT = """
from specdebug.report.formats import ReportFormat


def rows(report):
    assert report.trace()["traceEvents"]
    heads = [column.name for column in report.parts[0].columns]
    lines = [f"{row[0]}\\t{heads[0]}" for row in report.parts[0].rows[:2]]
    return "\\n".join([*lines, report.verdict, report.line]) + "\\n"


TSV = ReportFormat(rows, shows_steps=True)
"""

REPORTED = """
name: outside
target: reference
workload: [{id: one, prompt: {token_ids: [5, 6]}, max_new_tokens: 3}]
oracles: {lossless: false, draft_kv: false}
arms: {left: {}, right: {}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "outside.yaml"
    file.write_text(REPORTED)
    return str(file)


def test_a_format_of_another_distribution_is_written(installing: Install, replay: Replay, tmp_path: Path) -> None:
    installing("tabbed", FORMAT, {"reports": {"tsv": "tabbed:TSV"}})
    for command in ("replay", "compare"):
        table, page = tmp_path / f"{command}.tsv", tmp_path / f"{command}.html"
        done = replay(REPORTED, "--report", f"tsv={table}", "--report", f"html={page}", command=command)
        assert table.exists(), done.stderr
        first, second, *others = table.read_text().splitlines()
        told = [line.split("\t") for line in (first, second)]
        rows = [["left", "arm"], ["right", "arm"]] if command == "replay" else [["verdict", ""], ["signature", ""]]
        assert told == rows, done.stderr
        assert others[0] == "pass"
        assert others[1].startswith(f"specdebug {command} ")
        assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("tsv=x", "no report format 'tsv'; known: html, junit, md, perfetto"),
        ("htm=x", "no report format 'htm'; did you mean 'html'?"),
        ("html", "--report takes FORMAT=FILE, such as html=report.html; got 'html'"),
        ("html=", "--report takes FORMAT=FILE, such as html=report.html; got 'html='"),
        ("html=/nowhere/at/all.html", "/nowhere/at/all.html"),
    ],
)
def test_one_that_cannot_be_written_is_said_before_anything_runs(
    report: str, said: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", scenario, "--report", report]) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_format_is_named(installing: Install, scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    installing("tabbed", "TSV = 3\n", {"reports": {"tsv": "tabbed:TSV"}})
    assert run(["replay", scenario, "--report", "tsv=x.tsv"]) == 2
    assert "plugin 'tsv' of group specdebug.reports must be a ReportFormat, not int" in capsys.readouterr().err


def test_one_that_fails_is_named_and_the_other_files_are_written(
    installing: Install, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installing(
        "tabbed", FORMAT.replace('assert report.trace()["traceEvents"]', "1 / 0"), {"reports": {"tsv": "tabbed:TSV"}}
    )
    page = tmp_path / "page.html"
    assert run(["replay", scenario, "--report", f"tsv={tmp_path}/x.tsv", "--report", f"html={page}"]) == 2
    said = "the report format 'tsv' of an installed package failed: ZeroDivisionError: division by zero"
    assert said in capsys.readouterr().err
    assert page.read_text().startswith("<!DOCTYPE html>")
