"""Which fixes a log makes one think of, and which it rules out."""

import io
from pathlib import Path
from typing import Any

import pytest

from specdebug.apps.triage import CandidateFix, Tried, candidates, commands, scenario_named, scenario_text, try_out
from specdebug.base.yamlio import parse_yaml
from specdebug.logs.scan import Scan, scan, scan_bytes
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import scenario_of
from specdebug.scenario.library import Library
from specdebug.workers.job import WorkerEnd
from tests.run.fakes import FakePool, good_run
from tests.scenario.engines import config_of

LIBRARY = Library()
LOGS = Path(__file__).parents[1] / "logs" / "quoted"


def triaged(log: str) -> tuple[Scan, tuple[CandidateFix, ...]]:
    found = scan(io.BytesIO(log.encode()))
    return found, candidates(found, LIBRARY)


def numbers(log: str) -> list[int]:
    return [candidate.toggle.pr for candidate in triaged(log)[1]]


@pytest.mark.parametrize("toggle", LIBRARY.all_toggles(), ids=lambda toggle: str(toggle.pr))
def test_logs_of_our_own_scenarios_lead_back_to_the_fix(toggle: Toggle) -> None:
    """Logs of ``specdebug replay SCENARIO --arm reverted``, as they were printed."""
    log = (LOGS / f"own-{toggle.detected_by.scenario}.txt").read_text()
    found, best = triaged(log)
    assert found.main is not None
    assert toggle.detected_by.recognises(found.main.signature)
    assert best[0].toggle == toggle
    told = commands(found, best, LIBRARY)
    assert told[0] == f"specdebug replay {toggle.detected_by.scenario} --arm reverted"


def test_a_fix_is_recognised_by_how_it_shows_on_the_engine_of_the_log() -> None:
    found, best = triaged("sglang==0.5.23\noob@draft.expand_page_table: value not below 3\n")
    assert best[0].toggle.pr == 27360
    assert best[0].exact
    frame = '  File "/x/sglang/srt/speculative/eagle_utils.py", line 894, in eagle_prepare_for_decode\n'
    failed = "AssertionError: spec v2 page>1 topk>1 draft over-allocation (480) exceeds req_to_token row width (276)\n"
    found, best = triaged(frame + failed)  # as the engine itself prints it
    assert (found.facts.engine, best[0].toggle.pr) == ("sglang", 26972)


def test_a_failure_in_a_cached_prefix_points_at_cache_hits() -> None:
    assert (
        numbers("mismatch@draft_kv: draft key of b is off at position 159 of 162, the last of the cached prefix\n")[0]
        == 10846
    )


def test_a_failure_that_names_a_fix_by_its_number_is_evidence() -> None:
    frame = '  File "/x/sglang/srt/a.py", line 8, in f\n'
    _, best = triaged(f"{frame}AssertionError: the row is too narrow (PR #26972)\n")
    assert (best[0].toggle.pr, best[0].reasons[0]) == (26972, "line 2 names it")


@pytest.mark.parametrize(
    ("log", "named"),
    [
        ("topk-kv-indices: fixed - 27338 fail guard@x (4.0 s)\n", ("topk_kv_indices", "fixed")),
        ("topk-kv-indices: 1 of 2 arms as expected (4.0 s)\n", ("topk_kv_indices", None)),
        (
            '<testcase classname="specdebug.cache-hit" name="zero_fill" time="1">\n  <failure message="nan@x">\n',
            ("cache_hit", "zero_fill"),
        ),
        ("FAILED ci/draft_positions.yaml::fixed - fail oob@x\n", ("draft_positions", "fixed")),
        ('{\n  "scenario": "padding-positions",\n', ("padding_positions", None)),
        ("mine: base fail nan@x (1.0 s)\n", (None, "base")),
    ],
)
def test_the_scenario_that_failed_is_read_from_all_our_forms(log: str, named: tuple[str | None, str | None]) -> None:
    facts = scan_bytes(log.encode()).facts
    assert (scenario_named(facts, LIBRARY), facts.arm) == named


def test_a_cache_hit_before_nan_points_at_draft_kv() -> None:
    log = "Prefill batch. #new-token: 12, #cached-token: 640\nDetected errors during sampling! NaN in the logits.\n"
    assert numbers(log)[0] == 19897


def test_a_traceback_through_changed_code_counts() -> None:
    crash = "CUDA error: device-side assert triggered\n"
    frame = '  File "/x/flashinfer_backend.py", line 12, in common_template\n'
    _found, best = triaged(frame + crash)
    assert best[0].toggle.pr == 27338
    assert "a traceback passes through common_template, which it changes" in best[0].reasons


FAULT = "CUDA error: an illegal memory access was encountered\n"
FRAMES = {
    "sglang": '  File "/app/sglang/srt/managers/scheduler.py", line 9, in run_batch\n',
    "sglang-jax": '  File "/app/sgl_jax/srt/managers/scheduler.py", line 9, in run_batch\n',
    "vllm": '(EngineCore pid=9)   File "/app/vllm/v1/engine/core.py", line 9, in step\n',
    "vllm-ascend": '  File "/app/vllm/v1/core.py", line 9, in step\n  File "/x/vllm_ascend/a.py", line 1, in b\n',
    "tensorrt-llm": '  File "/app/tensorrt_llm/_torch/pyexecutor/py_executor.py", line 9, in _executor_loop\n',
    "tgi": '  File "/opt/text_generation_server/server.py", line 9, in Decode\n',
    "openvino": "Exception from src/plugins/intel_gpu/src/graph/network.cpp:9:\n",
    "llama.cpp": "/app/build/bin/libggml-base.so.0(+0x1588b)[0x7f1]\n",
}


@pytest.mark.parametrize("engine", FRAMES)
def test_only_the_fixes_of_the_engine_that_wrote_a_log_are_suspects(engine: str) -> None:
    found, best = triaged(FRAMES[engine] + FAULT)
    assert found.facts.engine == engine
    assert bool(best) == (engine == "sglang")
    told = commands(found, best, LIBRARY)
    assert all(("replay" not in line and "bisect --over commits" in line) or "flake" in line for line in told) != bool(
        best
    )


@pytest.mark.parametrize(
    "log",
    [
        "AssertionError: expected 3 got 4\n",
        "FAILED tests/x.py::test_y - assert 1 == 2\n1 failed, 3 passed in 2.0s\n",
        "httpx.ReadTimeout: The read operation timed out\n",
        "Segmentation fault (core dumped)\n",
        "Process completed with exit code 137.\n",
        "Watchdog timeout (self.watchdog_timeout=300)\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB.\n",
        "Triton Error [CUDA]: invalid argument\n",
        "prog: src/tree.c:12: build: Assertion `n > 0' failed.\n",
        'File "/x/worker.py", line 3, in replay\nValueError: x\n',
    ],
)
def test_without_damage_that_a_symptom_speaks_of_nothing_is_ranked(log: str) -> None:
    setting = "--attention-backend fa3 --speculative-eagle-topk 4 --page-size 16\nPrefill batch. #cached-token: 640\n"
    found, best = triaged(setting + log)
    assert found.main is not None
    assert best == ()
    assert all("replay" not in line for line in commands(found, best, LIBRARY))


LOG = b"base: fail nan@draft_prefill.hidden_states, 1.0 s\n"


def failing(kind: str, site: str) -> Any:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = good_run(job)
        found = {"event": "violation", "kind": kind, "site": site, "step": 1, "detail": "found"}
        return [*events[:-1], found, events[-1]], end

    return script


def tried(script: Any) -> tuple[Tried, ...]:
    library, found = Library(), scan(io.BytesIO(LOG))
    assert found.main is not None
    best = candidates(found, library)
    pool = FakePool(script)
    answers, interrupted = try_out(pool, library, best, found.main)  # type: ignore[arg-type]
    assert not interrupted
    assert [job.name for job in pool.jobs] == [str(candidate.toggle.pr) for candidate in best]
    return answers


@pytest.mark.parametrize(
    ("kind", "site", "verdict"),
    [
        ("nan", "draft_prefill.hidden_states", "fails with the same signature"),
        ("nan", "verify.logits", "fails alike"),
        ("pools", "allocator", "fails otherwise"),
    ],
)
def test_a_candidate_is_compared_with_the_log(kind: str, site: str, verdict: str) -> None:
    (first, *_) = tried(failing(kind, site))
    assert first.candidate.toggle.pr == 19897
    assert first.verdict == verdict
    assert first.to_dict()["alike"] == (kind == "nan")


def test_a_candidate_that_passes_is_not_it() -> None:
    (first, *_) = tried(good_run)
    assert first.verdict in ("pass", "unknown")
    assert not first.alike


SGLANG = (
    "python3 -m sglang.launch_server --model-path org/m --speculative-algorithm EAGLE --speculative-num-steps 3 "
    "--speculative-eagle-topk 2 --speculative-num-draft-tokens=6 --page-size 16 --attention-backend fa3 --tp-size 8 "
    "--api-key SECRET --context-length 131072 --disable-cuda-graph"
)
SERVER_ARGS = (
    "server_args=ServerArgs(model_path='org/m', page_size=16, attention_backend='fa3', speculative_algorithm='EAGLE', "
    "speculative_num_steps=3, speculative_eagle_topk=2, speculative_num_draft_tokens=6, disable_cuda_graph=True, "
    "disable_radix_cache=False, tp_size=8, api_key='SECRET', context_length=131072)"
)
VLLM = (
    "(APIServer pid=1) INFO [utils.py:233] non-default args: {'model': 'org/m', 'max_model_len': 131072, 'block_size': "
    "16, 'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3, 'model': 'org/d'}}"
)


@pytest.mark.parametrize("log", [SGLANG, SERVER_ARGS])
def test_flags_of_sglang_are_read_from_its_command_line_or_what_it_prints(log: str) -> None:
    text = scenario_text(scan_bytes(log.encode()).facts, "server.log")
    config = config_of(scenario_of(parse_yaml(text)), "as_logged")
    speculative = config.speculative
    assert speculative is not None
    assert (speculative.algorithm, speculative.num_steps, speculative.eagle_topk) == ("EAGLE", 3, 2)
    assert (config.page_size, config.attention_backend, config.cuda_graph.enabled) == (16, "fa3", False)
    assert config.context_length == 512
    assert config.radix_cache
    assert "# left out: --tp-size 8: the engine runs in one process on one device" in text
    assert "SECRET" not in text


def test_flags_of_vllm_become_ours_of_the_same_meaning() -> None:
    text = scenario_text(scan_bytes(VLLM.encode()).facts, "server.log")
    speculative = config_of(scenario_of(parse_yaml(text)), "as_logged").speculative
    assert speculative is not None
    assert (speculative.algorithm, speculative.num_steps, speculative.num_draft_tokens) == ("EAGLE3", 3, 4)
    assert text.startswith("# The launch flags of vllm as server.log shows them")


def test_no_secret_is_kept_of_a_log() -> None:
    assert "SECRET" not in str(scan_bytes(f"{SGLANG}\n{SERVER_ARGS}".encode()).facts.to_dict())
