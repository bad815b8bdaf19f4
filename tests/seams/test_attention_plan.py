"""An attention plan from outside: a package in a folder of its own, which specdebug finds by its entry point alone."""

import json
from collections.abc import Callable

import pytest

from specdebug.base import plugins
from specdebug.base.attention_plans import PLANS, SHIPPED
from specdebug.base.errors import InvalidOption
from specdebug.engine.config import EngineConfig
from tests.seams.conftest import Install, Replay

RECORD = """
from specdebug.base.attention_plans import AttentionPlan

PLAN = AttentionPlan(
    name="flat",
    planner="flat_planner:FlatPlanner",
    modules=("flat_planner", "specdebug.engine.textbook.attention.flashinfer"),
    metadata=frozenset({"ragged"}),
)
"""

PLANNER = """
import torch

from specdebug.engine import progress
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner


class FlatPlanner(FlashInferPlanner):
    index_dtype = torch.int64

    def __init__(self, config, req_to_token):
        super().__init__(config, req_to_token)
        progress.report("the flat plan is used")
"""

SCENARIO = """
name: flat
engine:
  attention_backend: {plan}
  context_length: 128
  max_running_requests: 2
  speculative: {{num_steps: 3, eagle_topk: 2, num_draft_tokens: 6}}
  cuda_graph: {{max_bs: 2}}
  memory: {{num_slots: 512}}
workload:
  - {{requests: 2, prompt: {{corpus: stdlib, tokens: [8, 12]}}, max_new_tokens: 8}}
expect:
  base: {{verdict: pass}}
"""


@pytest.fixture
def bring(installing: Install) -> Callable[..., None]:
    def bring(record: str = RECORD, entry: str = "flat") -> None:
        installing("flat_planner", PLANNER, {})
        installing("flat_plan", record, {"attention_plans": {entry: "flat_plan:PLAN"}})

    return bring


def test_a_scenario_is_served_under_a_plan_of_another_package(bring: Callable[..., None], replay: Replay) -> None:
    """It differs from FlashInfer's in index width only, so everything else that happens is the same."""
    bring()
    outcomes = {}
    for plan in ("flat", "flashinfer"):
        ended = replay(SCENARIO.format(plan=plan), "--json")
        assert ended.returncode == 0, ended.stderr
        (outcomes[plan],) = json.loads(ended.stdout)["arms"]
    assert outcomes["flat"]["stack"]["backend"] == "flat"
    assert outcomes["flat"]["trace_hash"] == outcomes["flashinfer"]["trace_hash"]


def test_every_list_of_plans_has_it(bring: Callable[..., None]) -> None:
    from specdebug.campaign.loops.verify import exists_in
    from specdebug.cli.options import plan_named
    from specdebug.faults.catalogue import HAS
    from specdebug.patching.toggles import load_registry
    from specdebug.scenario.grammar import Scenario
    from specdebug.workers.stack import executor_of

    bring()
    config = EngineConfig.from_dict({"attention_backend": "flat"})
    assert (config.attention_backend, plan_named("flat")) == ("flat", "flat")
    assert list(PLANS) == [*(plan.name for plan in SHIPPED), "flat"]
    engine = Scenario.json_schema()["$defs"]["Engine"]["properties"]
    assert engine["attention_backend"]["enum"] == list(PLANS)
    assert executor_of("flat", "cuda", "float16", {}) == "Triton kernels"
    assert HAS["ragged"](config)
    toggles = load_registry().toggles
    assert [exists_in(toggles[pr], "flat") for pr in (27338, 27360)] == [True, False], "of flashinfer, of fa3"
    with pytest.raises(InvalidOption, match=r"cannot be 'flatt'; did you mean 'flat'"):
        EngineConfig.from_dict({"attention_backend": "flatt"})


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (
            {"record": "import nowhere"},
            r"plugin 'flat' of .* from flat_plan:PLAN \(group specdebug\.attention_plans\): ModuleNotFoundError",
        ),
        ({"record": "PLAN = 3"}, "must be an AttentionPlan, not int"),
        ({"entry": "other"}, "names itself 'flat'; the entry point and the part must have one name"),
    ],
)
def test_a_package_whose_plan_cannot_be_used_is_named(
    contents: dict[str, str], said: str, bring: Callable[..., None]
) -> None:
    bring(**contents)
    name = "other" if "entry" in contents else "flat"
    with pytest.raises(InvalidOption, match=rf"engine\.attention_backend: .*{said}"):
        EngineConfig.from_dict({"attention_backend": name})


def test_a_planner_that_is_not_there_is_named(bring: Callable[..., None]) -> None:
    from specdebug.engine.attention.backend import planner_class

    bring(record=RECORD.replace(":FlatPlanner", ":RoundPlanner"))
    said = r"the planner of attention plan 'flat' cannot be loaded from flat_planner:RoundPlanner"
    with pytest.raises(plugins.PluginError, match=said):
        planner_class("flat")
