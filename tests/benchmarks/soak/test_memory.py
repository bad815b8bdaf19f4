"""A leak is found among noise, noise is no leak, and a few looks are none."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak.memory import MAX_GROWTH_MB, MAX_SLOPE_MB, MIN_SAMPLES, Sample, at_share, trend


def at_rest(seed: int, steps: int, *, leak: float = 0.0, noise: float = 2.0, warm_up: float = 40.0) -> list[Sample]:
    """A process looked at every 200 steps: it fills up at first, stands a little higher or lower by chance, and
    loses ``leak`` MB in 100,000 steps."""
    rng = random.Random(seed)
    return [
        (at, 400 + warm_up * (1 - 0.5 ** (40 * at / steps)) + rng.gauss(0, noise) + leak * at / 100_000)
        for at in range(200, steps + 1, 200)
    ]


@pytest.mark.parametrize("steps", [10_000, 50_000, 500_000])
@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_leak(seed: int, steps: int) -> None:
    found = trend(at_rest(seed, steps))
    assert found is not None
    assert found.flat


@pytest.mark.parametrize("seed", range(20))
def test_a_record_kept_of_every_request_is_a_leak(seed: int) -> None:
    """2 KB at every fifth step."""
    found = trend(at_rest(seed, 100_000, leak=40))
    assert found is not None
    assert not found.flat
    assert found.slope_mb == pytest.approx(40, abs=4)
    assert found.slope_mb - 2 * found.error_mb > MAX_SLOPE_MB


def test_a_slow_leak_is_found_in_time() -> None:
    short, long = (trend(at_rest(1, steps, leak=15)) for steps in (20_000, 500_000))
    assert short is not None
    assert short.flat
    assert long is not None
    assert not long.flat


def test_a_jump_is_found_though_no_line_is_steep() -> None:
    samples = [(at, 400.0 + (MAX_GROWTH_MB + 10 if at == 60_000 else 0)) for at in range(1000, 100_001, 1000)]
    found = trend(samples)
    assert found is not None
    assert found.slope_mb < MAX_SLOPE_MB
    assert found.growth_mb == MAX_GROWTH_MB + 10
    assert not found.flat


def test_too_few_looks_tell_nothing() -> None:
    assert trend([]) is None
    samples = [(at, 400.0) for at in range(100, 100 * (MIN_SAMPLES + 3), 100)]
    assert trend(samples) is not None
    assert trend(samples[:MIN_SAMPLES]) is None, "the first quarter does not count"


def test_memory_at_a_share_of_the_steps() -> None:
    samples = [(100, 1.0), (500, 2.0), (1000, 3.0)]
    assert [at_share(samples, share) for share in (0.05, 0.1, 0.5, 0.99, 1.0)] == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert at_share([], 0.5) is None
