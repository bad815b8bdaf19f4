"""Which oracles look at a run, and which are listed as unable to."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base.abilities import SHOWN
from specdebug.run.oracles.base import Bench, OracleSettings
from specdebug.run.oracles.registry import ORACLES, oracles_of
from specdebug.scenario.grammar import AcceptOracle
from tests.run.fakes import oracle_settings

ON_ENGINE = oracle_settings(
    each_step=True,
    guards=True,
    graphs=(1, 2),
    probes=True,
    accept=AcceptOracle(min_ratio=0.8, least=1.5),
    draft_state=True,
    acceptance=True,
    sampling=True,
)
ALL = replace(ON_ENGINE, target=replace(ON_ENGINE.target, server=True, ranks=2))


def bench(shows: Iterable[str], settings: OracleSettings = ALL) -> Bench:
    session: Any = SimpleNamespace(shows=frozenset(shows), cache=(0, 0))
    return Bench(settings, session, None, print, print, str)


def test_with_every_ability_all_that_is_asked_for_look_upstream_first() -> None:
    looking, blind = oracles_of(bench(SHOWN))
    assert [type(each) for each in looking] == list(ORACLES)
    assert blind == []


@pytest.mark.parametrize("missing", [kind for kind in ORACLES if kind.needs])
def test_one_whose_needs_are_not_met_is_listed_with_what_it_lacks(missing: type) -> None:
    shows = set(SHOWN) - missing.needs
    looking, blind = oracles_of(bench(shows))
    assert missing not in map(type, looking)
    (said,) = [str(each) for each in blind if each.oracle == missing.name]
    assert all(SHOWN[ability] in said for ability in missing.needs)
    assert {each.name for each in looking} | {each.oracle for each in blind} == {each.name for each in ORACLES}
