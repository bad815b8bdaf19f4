"""The file that what is left is written to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.shrink import scenario_text
from specdebug.scenario.checks import scenario_of
from tests.campaign.shrink.spaces import FAULTY, space
from tests.scenario.engines import config_of


@settings(max_examples=30)
@given(st.data())
def test_whatever_is_left_is_a_scenario_and_its_file_reads_the_same(data):
    found = space(FAULTY)
    current = found.start
    while (stage := found.next_stage()) is not None:
        every = range(len(stage.labels))
        gone = data.draw(st.frozensets(st.sampled_from(every)))
        if (left := stage.without(gone)) is None:
            gone, left = frozenset(), stage.without(frozenset())
        found.took(gone, frozenset())
        current = left
    text = scenario_text(current, "many-minimal", 11, "nan@x", ["About: this # and that", "", "x" * 300])
    read = scenario_of(parse_yaml(text))
    assert read.workload == current.workload
    assert (read.seed, read.name) == (11, "many-minimal")
    assert config_of(read, "broken") == config_of(current, "broken")
    assert (read.probes, read.oracles, read.limits) == (current.probes, current.oracles, current.limits)
    assert [str(fault) for fault in read.faults_of("broken")] == [
        "nan_kv_in_use:step=3..9,request=warm-2.0", "nan_kv_in_use:request=talk-1.0.0",
    ]  # fmt: skip
    assert read.arms == current.arms
    assert read.expect["broken"].signatures == ("nan@x",)
