"""Which scenarios of a hunt run at the same time, and what every one of them has."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.apps.hunt.draw import ARM, drawn
from specdebug.apps.hunt.hunting import Hunt, HuntRunner, HuntSource, hunt_state, judged_in, result_with, side_by_side
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.state import differences
from specdebug.engine.config import EngineConfig
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.scenario.text import load_tokenizer
from specdebug.scenario.workload import expand
from specdebug.targets.options import SPACES, options_of
from specdebug.targets.settings import parse_target
from specdebug.targets.sglang.flags import reserved_tokens
from tests.campaign.trials.searches import Source


def test_scenarios_of_one_engine_run_one_after_another() -> None:
    assert side_by_side(range(10), 1) == [[number] for number in range(10)]
    assert side_by_side(range(10), 2) == [[0, 4], [1, 5], [2, 6], [3, 7], [8], [9]]
    assert side_by_side([2, 3, 5, 9, 12], 3) == [[2, 5, 9], [3], [12]]
    assert side_by_side([], 2) == []


def nodes(cut: int = 10**9) -> Source:
    """Stands in for a cluster of two workers. ``cut``: a signal comes after so many."""

    def behave(trial: Trial) -> TrialResult:
        verdict = "fail" if trial.number == 2 else "pass"
        return result_with(Judged(trial.number, verdict, "nan@x" if verdict == "fail" else ""))

    return Source(behave, 2, order=None, stop_after=cut)


def hunt(folder: Path, source: Source) -> Hunt:
    record = HuntRecord(folder, {"target": "embedded"}, {})
    runner: Any = HuntRunner(None, None, "embedded", 0)  # type: ignore[arg-type] - nothing is run here
    return Hunt(runner, record, cluster=lambda: source)


def test_every_scenario_that_is_left_is_run_and_kept(tmp_path: Path) -> None:
    source = nodes()
    made = hunt(tmp_path, source)
    made.record.add(Judged(1, "unknown"))
    assert made.run(range(5)) is False
    assert {number: one.verdict for number, one in sorted(made.record.judged.items())} == {
        0: "pass", 1: "unknown", 2: "fail", 3: "pass", 4: "pass",
    }  # fmt: skip
    assert (source.closed, (tmp_path / "00002.yaml").exists()) == (True, True)
    made.record.close()
    assert hunt(tmp_path, nodes(0)).run(range(5)) is False  # nothing is left, so no cluster is asked


def test_a_signal_keeps_what_has_ended_and_no_more_is_begun_in_time_that_is_up(tmp_path: Path) -> None:
    source = nodes(2)
    cut = hunt(tmp_path / "cut", source)
    assert cut.run(range(9)) is True
    assert (len(cut.record.judged), source.closed) == (2, True)
    late = hunt(tmp_path / "late", nodes())
    assert late.run(range(9), until=0.0) is False
    assert late.record.judged == {}


def test_a_node_makes_its_source_and_runs_a_scenario_as_this_machine_would() -> None:
    make = partial(HuntSource, "embedded", 0, (25015,), (), {"dtype": "bfloat16"})
    source = pickle.loads(pickle.dumps(make))()
    others = [HuntSource("embedded", 1, (25015,), (), {}), HuntSource("embedded", 0, (25015,), (), {})]
    assert source.identity == make().identity
    assert source.identity not in {other.identity for other in others}
    try:
        source.start(Trial(4, frozenset(), 0))
        trial, result = source.wait()
    finally:
        source.close()
    assert (trial.number, result.outcome, result.signature) == (4, "fail", "oob@draft.forward.positions")
    assert judged_in(result).number == 4


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(0, 2000), st.sampled_from(sorted(SPACES)))
def test_every_request_fits_its_engine(seed: int, number: int, kind: str) -> None:
    scenario = Scenario.from_dict(drawn(seed, number, options_of(kind)))
    config = EngineConfig.from_dict(scenario.engine_of(ARM))
    lengths: dict[str, int] = {}
    for request in expand(scenario, load_tokenizer("tiny"), scenario.seed).requests:
        before = lengths.get(request.continues or "", 0)
        lengths[request.rid] = before + len(request.new_ids) + request.sampling.max_new_tokens
    spare = 0 if kind == "embedded" else reserved_tokens(scenario.engine_of(ARM))
    assert max(lengths.values()) <= config.context_length - spare
    assert max(lengths.values()) + config.row_headroom <= config.usable_slots
    assert config.chunked_prefill_size is None or config.chunked_prefill_size % config.page_size == 0


def test_it_is_the_same_until_something_changes() -> None:
    library = Library()
    state = hunt_state("embedded", (), library)
    assert hunt_state("embedded", (), library) == state
    assert {"specdebug", "fixes", "probe packs"} <= state.keys()
    assert differences(state, hunt_state("embedded", (25015,), library)) == ["fixes changed"]
    with pytest.raises(SpecDebugError, match="990015"):
        hunt_state("embedded", (990015,), library)


def test_a_server_that_is_started_is_of_the_files_that_its_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "serve.sh"
    script.write_text("exec engine --port {port}")
    target = parse_target("{launch: 'sh serve.sh {port}'}")
    before = hunt_state(target, (), Library())
    script.write_text("exec engine --port {port} --new")
    assert "serve.sh changed" in differences(before, hunt_state(target, (), Library()))
