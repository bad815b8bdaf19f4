"""The shipped scenarios say what their headers promise, before anything is run.

Trigger conditions are worked out here from the numbers in the files, so that a scenario cannot be tuned
until its bug no longer shows.
"""

import fnmatch
import json
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

from specdebug.base.assets import tokenizer_path
from specdebug.base.content import content_files
from specdebug.cli.main import run
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.workload import expand
from specdebug.targets.settings import parse_target
from specdebug.targets.sglang.flags import KNOWN
from specdebug.targets.vllm.target import METHODS
from tests.scenario.engines import config_of

ROOT = Path(__file__).parents[2]
SHIPPED = {path.stem: load_scenario(path) for path in sorted((ROOT / "scenarios").glob("*.yaml"))}
REGISTERED = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "toggles").glob("*.yaml"))]
TOGGLES = [toggle for toggle in REGISTERED if "specdebug" in toggle["patches"]]

RETRACTED = ("v1_retraction", "mtp_retraction", "frozen_kv_retraction", "mla_retraction")
SURFACES = ("eagle3_trees", "fa3_chain", "requests_come_and_go", "sampled_chains")
WITHOUT_FIX = {"frozen_kv_cache_hit", "frozen_kv_topk", "request_ends", "sampled", *RETRACTED, *SURFACES}
"""They show what an oracle looks at, or an algorithm at work; no registered fix is about that."""
BESIDE = {"v1_against_v2"}  # their arms are ways of doing the same, and all must pass


@pytest.fixture(scope="module")
def prompts():
    """Prompt tokens of a scenario's requests by request id; of a continued one, the new ones."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path("tiny")))
    return lambda name: {plan.rid: plan.new_ids for plan in expand(SHIPPED[name], tokenizer).requests}


def base_config(name):
    return config_of(SHIPPED[name], next(iter(SHIPPED[name].arms)))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_scenario_is_presented_alike(name):
    scenario = SHIPPED[name]
    text = scenario.path.read_text()
    assert scenario.name == name.replace("_", "-")
    assert scenario.description
    assert text.startswith("# ")
    assert "# Look at: " in text
    first, last = next(iter(scenario.arms)), list(scenario.arms)[-1]
    assert scenario.arms[first].revert == ()
    assert scenario.expect[first].verdict == "pass"
    if name in WITHOUT_FIX:
        assert first == "fixed"
        assert not any(arm.revert for arm in scenario.arms.values())
    elif name in BESIDE:
        assert len(scenario.arms) > 1
        assert all(not arm.revert and scenario.expect[one].verdict == "pass" for one, arm in scenario.arms.items())
    else:
        assert last == "reverted"
        assert scenario.expect[last].verdict == "fail"
        assert scenario.expect[last].signatures
    assert f"| `{name}` |" in (ROOT / "scenarios" / "README.md").read_text()


@pytest.mark.parametrize("toggle", TOGGLES, ids=lambda toggle: toggle["pr"])
def test_a_toggle_and_its_scenario_promise_the_same(toggle):
    detections = toggle["detected_by"]
    for detection in detections if isinstance(detections, list) else [detections]:
        scenario = SHIPPED[detection["scenario"].replace("-", "_")]
        (reverted,) = (arm for arm in scenario.arms.values() if arm.revert == (toggle["pr"],))
        stated = detection["signature"]
        expected = scenario.expect[reverted.name].signatures
        for promised in [stated] if isinstance(stated, str) else stated:
            assert any(fnmatch.fnmatchcase(promised, one) or fnmatch.fnmatchcase(one, promised) for one in expected)


def is_not_on(name, engine):
    """Whether a scenario's file says that its first arm is not run on an engine."""
    there = SHIPPED[name].on(parse_target(f"{engine}==0.5.13"))
    return there.why_not(next(iter(there.arms))) is not None


@pytest.mark.parametrize("name", SHIPPED)
def test_what_an_engine_cannot_run_says_so_in_its_own_file(name):
    config = base_config(name)
    latent = config.model == "tiny-mla"  # whose attention has no stand-in there
    on_vllm = not latent and config.speculative.eagle_topk == 1 and config.speculative.algorithm in METHODS
    assert is_not_on(name, "vllm") != on_vllm, "vLLM drafts chains, by some algorithms"
    known = {*KNOWN} - {"FROZEN_KV_MTP"}  # those of other assistants
    on_sglang = not latent and config.page_size.bit_count() == 1 and config.speculative.algorithm in known
    on_sglang = on_sglang and name != "v1_row_headroom"  # which leaves drafts less room than SGLang asks for
    assert is_not_on(name, "sglang") != on_sglang, "SGLang's pages are powers of two, its assistants others"


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in WITHOUT_FIX | BESIDE])
def test_a_revert_that_another_engine_has_is_expected_there_as_its_toggle_says(name):
    scenario = SHIPPED[name].on(parse_target("sglang==0.5.13"))
    (toggle,) = (each for each in TOGGLES if each["pr"] in scenario.arms["reverted"].revert)
    if is_not_on(name, "sglang"):
        assert not scenario.expect_on
    elif name == "flaky_chunk_tail":
        assert "sglang" in scenario.arms["reverted"].not_on, "arrivals fall otherwise there"
    elif "sglang" in toggle.get("mends", ()):
        assert "sglang" in scenario.arms["reverted"].not_on, "its releases lack the fix"
    elif "sglang" in toggle["patches"] and "sglang" in scenario.arms["reverted"].not_on:
        assert toggle["detected_in"]["sglang"]["scenario"] in scenario.arms["reverted"].not_on["sglang"]
    elif "sglang" in toggle["patches"]:
        assert scenario.expectation_of("reverted").signatures == (toggle["detected_in"]["sglang"]["signature"],)
    else:
        assert not scenario.expect_on


def test_cache_hit_has_661_cached_and_9_new_tokens(prompts):
    """Keys are pairs of tokens, so 662 equal tokens make 661 equal keys."""
    sent = prompts("cache_hit")
    assert [len(ids) for ids in sent.values()] == [670] * 4
    assert not SHIPPED["cache_hit"].workload[1].speculative
    for rid in ("hit.0", "hit-again.0"):
        assert common(sent["warm.0"], sent[rid]) == 662
    assert common(sent["hit.0"], sent["hit-again.0"]) == 662
    assert common(sent["cold.0"], sent["warm.0"]) < 10


def test_bigram_key_shares_whole_pages_and_no_token_more(prompts):
    page = base_config("bigram_key").page_size
    first, second, third = prompts("bigram_key").values()
    assert common(first, second) == common(first, third) == common(second, third) == 160
    assert 160 % page == 0


def common(one, other):
    """Length of the longest common prefix."""
    return next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def test_topk_kv_indices_overruns_the_whole_buffer(prompts):
    """Rows 0 .. S-2 are written; the last of them must run over row S-1 too before a guard can tell."""
    config = base_config("topk_kv_indices")
    spec, batch = config.speculative, config.max_running_requests
    assert batch <= config.cuda_graph.max_bs
    lengths = sorted(len(ids) for ids in prompts("topk_kv_indices").values())
    width = config.cuda_graph.max_bs * config.context_length
    assert spec.eagle_topk * sum(lengths[:batch]) > 2 * width
    assert config.memory.guards


def test_topk_page_table_needs_more_pages_than_columns(prompts):
    config = base_config("topk_page_table")
    spec, page = config.speculative, config.page_size
    pages = -(-(page - 1 + spec.num_steps) // page)
    assert spec.eagle_topk > 1
    assert page > 1
    assert pages > 2, "the first forward's row has two columns"
    assert config.attention_backend == "fa3"


@pytest.mark.parametrize("name", ["tgt_cache_loc", "v1_tgt_cache_loc"])
def test_tgt_cache_loc_has_the_numbers_of_the_flaky_test(name):
    config = base_config(name)
    spec = config.speculative
    assert spec.worker == ("v1" if name.startswith("v1") else "v2")
    assert (config.page_size, spec.eagle_topk, spec.num_steps, spec.tree_size) == (256, 5, 8, 64)
    assert config.memory.fill == "garbage", "fresh buffers must not be kind"


@pytest.mark.parametrize("name", RETRACTED)
def test_retraction_scenarios_want_more_memory_than_there_is(name):
    """Every request fits by itself; those that come first, all that may run at once, do not fit together."""
    scenario = SHIPPED[name]
    tokenizer = Tokenizer.from_file(str(tokenizer_path("tiny")))
    sent = expand(scenario, tokenizer).requests
    needs = [len(one.new_ids) + one.sampling.max_new_tokens for one in sent]
    for arm in scenario.arms:
        config = config_of(scenario, arm)
        room = config.usable_slots - config.page_size - config.alloc_len_per_decode
        assert max(needs) < room
        assert max(sum(needs[at : at + config.max_running_requests]) for at in range(len(needs))) > config.usable_slots


FLAKY = {
    "cache_hit": lambda sent, config: sent["hit.0"].delay > sent["warm.0"].delay,
    "bigram_key": lambda sent, config: common(*(one.new_ids for one in sent.values())) % config.page_size == 0,
    "graph_padding": lambda sent, config: sent["second.0"].delay > 1,
    "padding_positions": lambda sent, config: sent["second.0"].delay > 1,
    "kv_indices": lambda sent, config: (
        config.speculative.eagle_topk * (1 + len(sent["g0.0"].new_ids)) > 2 * (config.context_length + 8)
    ),
    "page_table": lambda sent, config: pages(len(sent["g0.0"].new_ids), config) > 2,
    "draft_positions": lambda sent, config: sent["plain.0"].sampling.max_new_tokens < 3,
    "chunk_tail": lambda sent, config: sent["second.0"].delay == 0,
    "row_headroom": lambda sent, config: (
        len(sent["g0.0"].new_ids) + 2 * config.alloc_len_per_decode
        > config.context_length + 4 + config.speculative.tree_size
    ),
}
"""What shows each bug, worked out from the requests alone; of ``tgt_cache_loc`` only the engine can say."""


def pages(length, config):
    """How many pages a draft branch spans that begins at this length."""
    return -(-(length % config.page_size + config.speculative.num_steps) // config.page_size)


@pytest.mark.parametrize("name", FLAKY)
def test_a_flaky_scenario_meets_its_bug_on_some_of_the_seeds_and_on_its_own(name):
    scenario, config = SHIPPED[f"flaky_{name}"], base_config(f"flaky_{name}")
    tokenizer = Tokenizer.from_file(str(tokenizer_path("tiny")))
    met = []
    for seed in (*range(200), scenario.seed):
        sent = {plan.rid: plan for plan in expand(scenario, tokenizer, seed).requests}
        met.append(FLAKY[name](sent, config))
    assert 0.15 < sum(met) / len(met) < 0.5
    assert met[-1]


PACK = {name: path for name, path in content_files("scenarios").items() if name.startswith("server/")}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["embedded", "serve"])
@pytest.mark.parametrize("name", PACK)
def test_the_pack_passes(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["replay", name, "--target", target, "--json"]) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    assert arm["complete"]
    if name == "server/flush_between_rounds":
        cached = {request["rid"]: request["cached_tokens"] for request in arm["requests"]}
        assert min(cached[f"hit.{n}"] for n in range(3)) > 100
        assert cached["flushed.0"] == 0
