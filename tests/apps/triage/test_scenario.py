"""Launch flags in a log become a scenario that our engine takes."""

from __future__ import annotations

import pytest

from specdebug.apps.triage.scenario import scenario_text
from specdebug.base.yamlio import parse_yaml
from specdebug.logs.scan import scan_bytes
from specdebug.scenario.checks import scenario_of
from tests.scenario.engines import config_of

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
