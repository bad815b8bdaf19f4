"""The floor of accept lengths: judged group by group, and never silently passed."""

from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.run.oracles.accept import AcceptFloor
from specdebug.run.oracles.base import Bench
from specdebug.scenario.grammar import AcceptOracle
from specdebug.verdict.accept import MIN_VERIFIES
from specdebug.verdict.outcome import Violation
from tests.run.fakes import oracle_settings


def judged(lengths: dict[str, list[int]], least: float, speculative: bool = True) -> tuple[list[Violation], list[str]]:
    """Violations and notes of requests ``<group>.<n>`` with these accept lengths."""
    found: list[Violation] = []
    notes: list[str] = []
    arrived = {rid: SimpleNamespace(group=rid.split(".")[0], speculative=speculative) for rid in lengths}
    run: Any = SimpleNamespace(
        arrived=arrived,
        session=SimpleNamespace(request=lambda rid: SimpleNamespace(accept_lengths=lengths[rid])),
        note=notes.append,
    )
    bench = Bench(oracle_settings(accept=AcceptOracle(least=least)), run.session, None, found.append, print, str)
    AcceptFloor(bench).after_run(run)
    return found, notes


def test_a_group_below_the_floor_is_named_with_what_it_accepts() -> None:
    found, notes = judged({"low.0": [1] * 5, "low.1": [2] * 5, "high.0": [3] * 10}, 2)
    (one,) = found
    assert (one.signature, one.step) == ("accept-drop@low", None)
    assert one.data == {"got": 1.5, "wanted": 2, "verifies": 10}
    assert one.detail == "requests of group low accept 1.50 tokens a verify over 10 verifies: less than 2"
    assert notes == []


@pytest.mark.parametrize("verifies", [0, 1, MIN_VERIFIES - 1])
def test_a_group_of_too_few_verifies_is_noted_as_not_judged(verifies: int) -> None:
    found, notes = judged({"a.0": [1] * verifies}, 2)
    assert found == []
    assert notes == [f"accept length of group a not judged: {verifies} verifies, fewer than 8"]


def test_each_key_of_accept_wants_its_own_oracle_only() -> None:
    from specdebug.run.oracles.accept import Accept

    for accept, wanted in (
        (AcceptOracle(min_ratio=0.5), [True, False]),
        (AcceptOracle(least=2.0), [False, True]),
        (AcceptOracle(drop=0.5), [False, False]),
        (None, [False, False]),
    ):
        assert [kind.wanted(oracle_settings(accept=accept)) for kind in (Accept, AcceptFloor)] == wanted
