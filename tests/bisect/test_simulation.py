"""The simulation that the documented numbers come from: its baselines work, and it is seeded."""

from __future__ import annotations

import pytest

from benchmarks.bisect_simulation import TOGGLES, Bursts, Machine, Stratum, ddmin, halving, retried, run_part
from specdebug.bisect import Prior


@pytest.mark.parametrize("seed", range(6))
def test_baselines_are_right_about_a_perfect_oracle(seed: int) -> None:
    single = Machine(Stratum("single", 1.0, 0.0), (seed,))
    assert halving(retried(single, 1)) == single.culprits
    assert ddmin(retried(single, 1)) == single.culprits
    pair = Machine(Stratum("pair", 1.0, 0.0), (seed,))
    assert ddmin(retried(pair, 1)) == pair.culprits
    none = Machine(Stratum("none", 0.0, 0.0), (seed,))
    assert halving(retried(none, 3)) == ddmin(retried(none, 3)) == frozenset()
    assert none.trials == 6


def test_periods_change_what_trials_show() -> None:
    everything = frozenset(TOGGLES)
    bad = Machine(Stratum("none", 0.0, 0.0, Bursts("bad", 0.1, 10, 1.0)), (1,))
    assert 0.3 < sum(bad.fails(everything) for _ in range(2000)) / 2000 < 0.7
    quiet = Machine(Stratum("single", 1.0, 0.0, Bursts("quiet", 0.1, 10)), (1,))
    assert 0.3 < sum(quiet.fails(everything) for _ in range(2000)) / 2000 < 0.7


def test_a_case_is_its_number() -> None:
    stratum = Stratum("pair", 0.7, 0.02)
    assert run_part(stratum, 0, range(3, 5), Prior()) == run_part(stratum, 0, range(5), Prior())[3:]
