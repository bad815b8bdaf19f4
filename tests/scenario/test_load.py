"""Loading scenarios: what a good one means, and where and how a bad one is told off."""

import json
import pickle
import subprocess
import sys

import pytest

from specdebug.base.errors import ContentError
from specdebug.base.yamlio import parse_yaml
from specdebug.scenario.checks import KnownNames, Scenario, load_scenario, scenario_of
from specdebug.scenario.grammar import (
    AcceptOracle,
    OracleSpec,
    read_scenario,
)

KNOWN = KnownNames(toggles=(27338, 27360, 26329), packs=("default", "attention"))

SAMPLE = """\
name: topk-kv-indices
engine: {model: tiny, attention_backend: flashinfer, page_size: 1,
         speculative: {algorithm: EAGLE, num_steps: 3, eagle_topk: 4, num_draft_tokens: 8},
         cuda_graph: {max_bs: 4}, memory: {fill: garbage, guards: true}}
workload:
  - {requests: 6, prompt: {corpus: stdlib, tokens: [200, 600]}, max_new_tokens: 48}
faults: []
probes: [default]
arms:
  fixed: {}
  reverted: {revert: [27338]}
expect:
  fixed: {verdict: pass}
  reverted: {verdict: fail, signature: "guard@draft.kv_indices*"}
"""


def parse(text: str) -> Scenario:
    return scenario_of(parse_yaml(text, "s.yaml"), KNOWN)


def complaint(text: str) -> str:
    with pytest.raises(ContentError) as caught:
        parse(text)
    return str(caught.value)


def with_group(group: str) -> str:
    return f"name: x\nworkload:\n  - {group}\n"


def test_arms_are_laid_over_the_scenario():
    scenario = parse(
        "name: x\n"
        "engine: {page_size: 4, speculative: {num_steps: 2, eagle_topk: 2, num_draft_tokens: 4}}\n"
        "oracles: {lossless: false, accept: {min_ratio: 0.9}}\n"
        "workload: [{prompt: {text: x}}]\n"
        "arms:\n"
        "  a: {engine: {speculative: {num_steps: 3}}, probes: [attention], oracles: {draft_kv: false}}\n"
        "  b: {engine: {speculative: null}, mode: record, oracles: {accept: null}}\n"
        "  c:\n"
    )
    assert scenario.engine_of("a")["speculative"] == {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 4}
    assert scenario.engine_of("b") == {"page_size": 4, "speculative": None}
    assert scenario.engine_of("c") == scenario.engine
    assert scenario.probes_of("a") == ("attention",)
    assert scenario.probes_of("c") == ("default",)
    assert scenario.arms["b"].mode == "record"
    accept = AcceptOracle(0.9)
    assert scenario.oracles_of("a") == OracleSpec(lossless=False, draft_kv=False, pools=True, accept=accept)
    assert scenario.oracles_of("b") == OracleSpec(lossless=False, draft_kv=True, pools=True, accept=None)
    assert scenario.oracles_of("c").accept == accept


RICH = """\
name: rich
description: "ünïcode: \\U0001F600, a \\"quote\\",
  a back\\\\slash\\u2028 and no: yes"
seed: 7
engine: {page_size: 4}
workload:
  - {id: a, requests: 3, prompt: {text: "héllo \\u2029 wörld"}, temperature: 0.5, top_p: 0.9, seed: 3}
  - {prompt: {token_ids: [1, 2, 3]}, stop_token_ids: [7], stop: "☃", speculative: false, arrive: {step: 3, after: a}}
  - prompt:
      shared_prefix: {name: doc, corpus: stdlib, tokens: 100}
      suffix: {corpus: stdlib, tokens: [3, 9], offset: 4}
    abort: {after_steps: 2}
  - {turns: {clients: 2, rounds: 2, input_tokens: [5, 9]}, arrive: {every: 2, jitter: 4, after: [a, g1]}}
oracles: {accept: {min_ratio: 0.5}}
limits: {timeout_s: 2.5}
arms: {x: {revert: [27360], engine: {radix_cache: false}, mode: assert, oracles: {pools: false}}, y: }
expect: {x: {verdict: fail, signature: [oom, "nan@*"]}, y: {verdict: unknown}}
"""


@pytest.mark.parametrize("text", [SAMPLE, RICH])
def test_a_scenario_survives_the_trip_to_a_worker(text):
    scenario = parse(text)
    shipped = json.loads(json.dumps(scenario.to_dict()))
    assert Scenario.from_dict(shipped, scenario.path) == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


ARMS = "arms: {fixed: {}, reverted: {revert: [27338]}}\n"
PROMPT = with_group("prompt: {text: x}")
FROZEN_KV = PROMPT + "engine: {speculative: {algorithm: FROZEN_KV_MTP}}\n"

BAD = {
    # keys
    "- name\n": "s.yaml:1:1: the file must be a mapping, not a list",
    # workload
    "name: x\nworkload: []\n": "s.yaml:2:11: workload needs at least 1 item",
    with_group("{}"): "s.yaml:3:5: workload[0] needs either 'prompt' or 'turns'",
    with_group("{prompt: {}}"): "s.yaml:3:14: workload[0].prompt must be a prompt: text, token_ids or corpus",
    with_group("{prompt: {corpus: stdlib, tokens: [1, 2, 3]}}"): "a whole number or a range [low, high]",
    with_group("{prompt: {shared_prefix: {text: x}}}"): "workload[0].prompt lacks the key 'suffix'",
    with_group("{requests: 2, turns: {clients: 1, rounds: 1, input_tokens: 1}}"): (
        "s.yaml:3:16: workload[0].requests does not go with 'turns'"
    ),
    with_group("{prompt: {text: x}, id: a.b}"): "workload[0].id 'a.b' does not fit the form",
    with_group("{prompt: {text: x}, requests: 2, abort: {after_steps: 1, requests: [2]}}"): (
        "workload[0].abort.requests[0] must be a whole number from 0 to 1, not 2"
    ),
    with_group("{prompt: {text: x}, arrive: {after: g0}}"): "groups wait for each other: g0 after g0",
    (
        "name: x\nworkload:\n"
        "  - {id: a, prompt: {text: x}}\n"
        "  - {id: b, prompt: {text: x}, arrive: {after: [a, d]}}\n"
        "  - {id: c, prompt: {text: x}, arrive: {after: b}}\n"
        "  - {id: d, prompt: {text: x}, arrive: {after: c}}\n"
    ): "s.yaml:4:48: groups wait for each other: b after d after c after b",
    (
        "name: x\nworkload:\n"
        "  - prompt: {shared_prefix: {name: p, corpus: stdlib, tokens: 5}, suffix: {text: x}}\n"
        "  - prompt: {shared_prefix: {name: p, corpus: stdlib, tokens: 6}, suffix: {text: x}}\n"
    ): "s.yaml:4:29: shared prefix 'p' is described differently in workload[0]",
    "name: x\nengine: {context_length: 100}\nworkload:\n  - prompt: {corpus: stdlib, tokens: [9, 100]}\n": (
        "s.yaml:4:5: a prompt of group 'g0' can reach 100 tokens, but the context_length of arm 'base' is 100"
    ),
    (
        "name: x\nengine: {context_length: 100}\nworkload:\n"
        "  - {turns: {clients: 1, rounds: 3, input_tokens: 20}, max_new_tokens: 20}\n"
    ): "can reach 100 tokens",
    (
        "name: x\nengine: {context_length: 100}\nworkload:\n"
        "  - {id: a, prompt: {token_ids: [1, 2]}, max_new_tokens: 99}\n"
    ): (
        "s.yaml:4:42: a request of group 'a' needs at least 101 positions, but the context_length of arm 'base' is "
        "100; shorten it or raise engine.context_length"
    ),
    (
        "name: x\nengine: {memory: {num_slots: 256}}\nworkload:\n"
        "  - {prompt: {corpus: stdlib, tokens: [200, 300]}, max_new_tokens: [56, 60]}\n"
    ): "KV slots with its decode reservation, but memory.num_slots of arm 'base' gives 256; shorten it or raise",
    "name: x\nworkload:\n" + "  - {requests: 4096, prompt: {text: x}}\n" * 3: (
        "s.yaml:2:1: asks for 12288 requests, more than 10000"
    ),
    # faults, probes, oracles, limits
    PROMPT + "faults: [{fault: nan_kv_unused, row: 3}]\n": "s.yaml:4:33: nan_kv_unused cannot be addressed by 'row'",
    PROMPT + "faults: [{fault: nan_kv_in_use, request: g0.1}]\n": (
        "s.yaml:4:10: fault nan_kv_in_use: no request 'g0.1'; did you mean 'g0.0'?"
    ),
    PROMPT + "faults: [{fault: draft_kv_not_written}]\n": (
        "s.yaml:4:10: fault draft_kv_not_written: it needs speculation, which arm 'base' does not have"
    ),
    FROZEN_KV + "faults: [{fault: nan_draft_kv_in_use}]\n": (
        "s.yaml:5:10: fault nan_draft_kv_in_use: it needs a draft with KV of its own, which arm 'base' does not have"
    ),
    FROZEN_KV + "faults: [{fault: topk_index_next_lane}]\n": (
        "s.yaml:5:10: fault topk_index_next_lane: it acts at draft_extend.topk_index, which arm 'base' never "
        "passes: something else drafts there"
    ),
    PROMPT
    + "engine: {speculative: {}}\nfaults: [{fault: positions_off_by_one, site: draft_graph.replay.positions}]\n": (
        "it acts at draft_graph.replay.positions, which arm 'base' never passes: something else drafts there"
    ),
    PROMPT + "arms: {a: {probes: [default, atention]}}\n": (
        "s.yaml:4:30: no probe pack 'atention'; did you mean 'attention'?"
    ),
    PROMPT + "oracles: {accept: {}}\n": "oracles.accept needs at least one of 'min', 'drop' and 'min_ratio'",
    # arms and expectations
    PROMPT + "arms:\n" + "".join(f"  a{n}:\n" for n in range(257)): "s.yaml:5:3: arms has 257 arms",
    PROMPT + ARMS + "expect: {fixed: {verdict: pass, signature: hang}}\n": (
        "s.yaml:5:44: only a failure has a signature; the verdict expected of 'fixed' is pass"
    ),
    PROMPT + ARMS + "expect: {fixed: {verdict: fail, signature: gaurd@x}}\n": (
        "s.yaml:5:44: signature 'gaurd' is no kind of failure; did you mean 'guard'?"
    ),
    PROMPT + ARMS + "expect: {fixed: {verdict: fail, signature: accept-drop@g1}}\n": (
        "s.yaml:5:44: signature accept-drop@ has no group 'g1'; known: g0"
    ),
    # engine options, where they stand: in the arm that sets them, else in the scenario
    PROMPT + "arms:\n  a: {}\n  b: {engine: {speculative: {eagle_topk: 0}}}\n": (
        "s.yaml:6:30: engine.speculative.eagle_topk: must be a whole number from 1 to 64, not 0"
    ),
    (
        "name: x\nengine:\n  speculative: {num_steps: 3, num_draft_tokens: 4}\n"
        "workload: [{prompt: {text: x}}]\narms: {a: {}, b: {engine: {speculative: {num_steps: 4}}}}\n"
    ): (
        "s.yaml:3:31: engine.speculative.num_draft_tokens: must be num_steps + 1 = 5 when eagle_topk is 1, "
        "got 4 (in arm 'b')"
    ),
    (
        "name: x\nworkload: [{prompt: {text: x}}]\narms: {a: {engine: {page_size: 256, memory: {num_slots: 8}}}}\n"
    ).replace("8", "256"): "s.yaml:3:46: engine.memory.num_slots: 256 slots cannot hold",
    "name: x\nengine: [1]\nworkload: [{prompt: {text: x}}]\n": "s.yaml:2:9: engine must be a mapping",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_in_one_line_with_its_place(text):
    said = complaint(text)
    assert BAD[text] in said
    assert "\n" not in said
    assert said.startswith("s.yaml:")
    assert said.endswith("(in arm 'b')") == ("arm 'b'" in BAD[text])


def test_without_a_registry_outside_names_are_taken_on_trust(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SAMPLE.replace("27338", "1").replace("probes: [default]", "probes: [mine]"))
    assert load_scenario(path).arms["reverted"].revert == (1,)
    with pytest.raises(ContentError, match="no probe pack 'mine'"):
        load_scenario(path, KNOWN)


def test_validation_needs_no_torch_and_little_time():
    code = (
        "import sys, time\n"
        "from specdebug.scenario.checks import KnownNames, scenario_of\n"
        "from specdebug.base.yamlio import parse_yaml\n"
        f"scenario_of(parse_yaml({SAMPLE!r}, 's'), KnownNames((27338,), ('default',)))\n"
        "print('torch' in sys.modules, time.process_time())"
    )
    env = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    loaded_torch, seconds = run.stdout.split()
    assert loaded_torch == "False"
    assert float(seconds) < 1.0


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ('""', "must not be empty"),
        ('"a\\ufffd"', r"holds U\+FFFD"),
        ("[" + "x" * 1025 + "]", "has 1025 characters, more than 1024"),
        ("3", "must be text, not"),
    ],
)
def test_what_can_be_no_stop_string_is_refused_with_its_line(stop, said):
    text = f"name: a\nworkload:\n- prompt: {{token_ids: [1]}}\n  stop: {stop}\n"
    with pytest.raises(ContentError, match=rf"s\.yaml:4:.*{said}"):
        read_scenario(parse_yaml(text, "s.yaml"))
