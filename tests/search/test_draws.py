"""The test of draws: silent over many runs of a sound sampler, and quick with one that is not."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import numpy.typing as npt
import pytest

from specdebug.search.draws import BINS, FALSE_ALARM, NEEDED, DrawsTest

Floats = npt.NDArray[np.float64]


def distributions(rng: np.random.Generator, count: int) -> Floats:
    """Rows of twelve probabilities, the greatest first; some are all but decided."""
    probs: Floats = rng.dirichlet(np.full(12, 0.4), size=count)
    return -np.sort(-probs, axis=1)


def fair(rng: np.random.Generator, probs: Floats) -> Floats:
    return rng.random(len(probs))


def tilted(part: float) -> Callable[[np.random.Generator, Floats], Floats]:
    """Places of which ``part`` lie in the likelier half: a total variation of ``part`` - 1/2."""
    return lambda rng, probs: (rng.random(len(probs)) + (rng.random(len(probs)) >= part)) / 2


def draws_until_alarm(
    seed: int, places: Callable[[np.random.Generator, Floats], Floats], most: int, *, at_once: int = 50
) -> int | None:
    """After how many draws there is an alarm; None if there is none within ``most``."""
    rng, test = np.random.default_rng(seed), DrawsTest()
    while test.draws < most:
        probs = distributions(rng, at_once)
        where, upto, each = places(rng, probs), probs.cumsum(1), np.arange(at_once)
        ranks = np.minimum((upto <= where[:, None]).sum(1), probs.shape[1] - 1)
        coins = np.clip((upto[each, ranks] - where) / probs[each, ranks], 0, 1)
        test.add(probs, ranks, coins, temperature=0.9)
        if test.alarm:
            return test.draws
    return None


def test_a_sound_sampler_is_never_alarmed_about() -> None:
    assert [draws_until_alarm(seed, fair, 1200, at_once=200) for seed in range(200)] == [None] * 200


@pytest.mark.parametrize("part", [0.65, 0.35])
def test_with_the_draws_it_needs_an_effect_of_the_stated_size_is_seen_nine_times_in_ten(part: float) -> None:
    seen = [draws_until_alarm(1000 + seed, tilted(part), NEEDED) for seed in range(60)]
    assert sum(found is not None for found in seen) >= 0.8 * len(seen)  # 0.9, less what 60 runs may be off by


def test_the_e_value_is_at_most_one_on_average() -> None:
    """Over all outcomes of a draw, weighted by their chances, whatever was drawn before."""
    probs = np.array([[0.5, 0.3, 0.2]])
    grid = (np.arange(240) + 0.5) / 240
    before = DrawsTest()
    before.add(np.repeat(probs, 3, 0), np.array([0, 0, 2]), np.array([0.1, 0.7, 0.4]), 1.3)
    total = 0.0
    for rank, chance in enumerate(probs[0]):
        for coin in grid:
            test = DrawsTest()
            test.places, test.draws, test._logs = deepcopy(before.places), before.draws, before._logs.copy()
            test.add(probs, np.array([rank]), np.array([coin]), 1.3)
            total += chance / len(grid) * np.exp(test.log_evidence)
    assert total == pytest.approx(np.exp(before.log_evidence), rel=1e-2)


def test_what_speaks_against_it_is_said() -> None:
    test = DrawsTest()
    count = 400
    probs = np.full((count, 4), 0.25)
    test.add(probs, np.zeros(count, dtype=np.int64), np.linspace(0, 0.999, count), 1.0)
    assert test.alarm
    assert test.log_evidence > -np.log(FALSE_ALARM)
    assert "of the distribution function, likeliest first" in test.said()
    bins = test.places["any", "likeliest first"].bins
    assert (bins.sum(), len(bins)) == (count, BINS)


def test_an_order_of_ids_shows_what_an_order_of_odds_cannot() -> None:
    """Of three tokens as likely that of the highest id is drawn half the time: by odds they are one."""
    rng, test = np.random.default_rng(3), DrawsTest()
    for _ in range(30):
        weights = np.full((20, 9), 1.0)
        ids = np.minimum((np.sqrt(rng.random(20)) * 9).astype(np.int64), 8)
        test.add_by_id("correcting", weights, ids, rng.random(20))
    assert test.alarm
    assert "correcting draws" in test.said()


def test_kinds_of_a_sound_sampler_are_not_alarmed_about() -> None:
    """Given that a draft was accepted it was drawn from its siblings, and else from the others."""
    for seed in range(40):
        rng, test = np.random.default_rng(seed), DrawsTest()
        for _ in range(60):
            weights = rng.dirichlet(np.full(12, 0.4), size=20)
            ids = np.minimum((weights.cumsum(1) <= rng.random(20)[:, None]).sum(1), 11)
            coins = rng.random(20)
            test.add_by_id("any", weights, ids, coins)
            accepted = ids < 3
            drafts = np.arange(12) < 3
            test.add_by_id("accepted", (weights * drafts)[accepted], ids[accepted], coins[accepted])
            test.add_by_id("correcting", (weights * ~drafts)[~accepted], ids[~accepted], coins[~accepted])
        assert not test.alarm


def test_a_resample_by_the_coin_that_rejected_is_seen_by_ids_and_not_by_odds() -> None:
    """The draft is the likeliest token; what is in its place is drawn by a coin that is above the draft's mass."""
    for reused in (True, False):
        rng, test = np.random.default_rng(5), DrawsTest()
        for _ in range(30):
            weights = rng.dirichlet(np.full(12, 0.8), size=50)
            each, drafts, coins = np.arange(50), weights.argmax(1), rng.random(50)
            accepted = coins < weights[each, drafts]
            rest = np.where(np.arange(12) == drafts[:, None], 0.0, weights)
            upto = rest.cumsum(1) / rest.sum(1, keepdims=True)
            again = ((coins if reused else rng.random(50))[:, None] >= upto).sum(1)
            ids = np.where(accepted, drafts, np.minimum(again, 11))
            order = np.argsort(-weights, axis=1)
            where, ranks = rng.random(50), (order == ids[:, None]).argmax(1)
            test.add(np.take_along_axis(weights, order, 1), ranks, where, 1.0)
            test.add_by_id("any", weights, ids, where)
            test.add_by_id("correcting", rest[~accepted], ids[~accepted], where[~accepted])
        by_odds = max(test.places["any", "likeliest first"].log_evidence, float(test._logs.max()))
        assert by_odds < -np.log(FALSE_ALARM), "all that there was before"
        assert test.alarm is reused
