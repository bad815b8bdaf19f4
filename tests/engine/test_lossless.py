"""Greedy output is the target's own, whatever drafts, batches, pages, chunks, caches and memory do.

The configurations are those of ``benchmarks/lossless``, here on random checkpoints: MTP of two to four layers, chained
or not, and a DeepSeek target with experts. Hypothesis chooses, and makes small what fails.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from benchmarks.lossless.draw import MOST_NEW, Configuration, Decks, Draft, Served, configuration, families
from benchmarks.lossless.judge import judge
from benchmarks.lossless.play import play
from benchmarks.lossless.reference import HuggingFace
from specdebug.base.attention_plans import SHIPPED
from specdebug.base.trial import stream
from tests.engine.conftest import Lab

BACKENDS = tuple(plan.name for plan in SHIPPED)


def heads(lab: Lab, worker: str) -> tuple[Draft, ...]:
    return tuple(Draft(algorithm, str(lab.draft(algorithm)), worker) for algorithm in ("EAGLE", "EAGLE3"))


def next_n(lab: Lab) -> tuple[Draft, ...]:
    kinds = product((2, 3, 4), (False, True))
    return tuple(Draft("MTP", str(lab.next_n(layers, chained=chained)), steps=layers) for layers, chained in kinds)


@dataclass(frozen=True)
class Kind:
    """A worker: its drafts, whether its target has latent attention, and configurations under each plan."""

    drafts: Callable[[Lab], tuple[Draft, ...]]
    count: int = 50
    latent: bool = False


KINDS = {
    "v2": Kind(lambda lab: heads(lab, "v2"), 60),
    "v1": Kind(lambda lab: heads(lab, "v1"), 60),
    "mtp": Kind(next_n),
    "frozen-kv": Kind(lambda lab: (Draft("FROZEN_KV_MTP", str(lab.assistant)),)),
    "mla": Kind(lambda lab: tuple(Draft("EAGLE", str(lab.eagle), worker) for worker in ("v2", "v1")), latent=True),
    "none": Kind(lambda _: (), 15),
}


@dataclass
class Tally:
    """What a series ran into: a test that never gets there proves nothing."""

    configurations: int = 0
    compared: int = 0
    ties: int = 0
    longest_accept: int = 0
    met: Counter[str] = field(default_factory=Counter)

    def hold(self, made: Configuration, exact: HuggingFace) -> None:
        """Play a configuration; nothing may be out of order, and every greedy request has the reference's text."""
        played = play(made)
        assert played.problems == []
        for ask, request in zip(made.asks, played.requests, strict=True):
            if ask.temperature == 0 and request.output_ids:
                found = judge(ask, request, "float32", exact, exact)
                assert found.wrong == (), request.rid
                self.compared += 1
                self.ties += len(found.ties)
        self.configurations += 1
        self.longest_accept = max(self.longest_accept, *played.accept_lengths, 0)
        self.met += played.met


@pytest.fixture(scope="session")
def references(lab: Lab, latent_lab: Lab) -> dict[bool, HuggingFace]:
    return {latent: HuggingFace(each.model) for latent, each in ((False, lab), (True, latent_lab))}


@pytest.fixture(scope="session")
def serve(lab: Lab, latent_lab: Lab, references: dict[bool, HuggingFace]) -> Callable[[Kind], Served]:
    pools: dict[bool, Any] = {}

    def made(kind: Kind) -> Served:
        each, exact = latent_lab if kind.latent else lab, references[kind.latent]
        if kind.latent not in pools:
            text = [(17 * n * n + 5 * n + n // 7) % each.vocab for n in range(1500)]
            pools[kind.latent] = families(text, exact.continuation)
        return Served(str(each.target), kind.drafts(each), pools[kind.latent], exact.continuation, each.vocab - 1)

    return made


@st.composite
def configurations(draw: st.DrawFn, served: Served, plan: str) -> Configuration:
    def choose(what: str, options: Sequence[Any]) -> Any:
        return draw(st.sampled_from(options), label=what)

    return configuration(choose, served, plan)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("name", KINDS)
def test_output_is_plain_greedy_decoding_in_a_few_configurations(
    references: dict[bool, HuggingFace], serve: Callable[[Kind], Served], name: str
) -> None:
    kind, tally = KINDS[name], Tally()
    served, choose = serve(kind), Decks(stream(0, "tests", name))
    for plan in BACKENDS:
        tally.hold(configuration(choose, served, plan), references[kind.latent])
    assert tally.compared >= 6
    assert (tally.longest_accept > 1) == (name != "none")


@pytest.mark.slow
@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KINDS)
def test_output_is_plain_greedy_decoding(
    references: dict[bool, HuggingFace], serve: Callable[[Kind], Served], name: str, backend: str
) -> None:
    """The same ones in every run."""
    kind, tally = KINDS[name], Tally()

    @seed(10 * list(KINDS).index(name) + BACKENDS.index(backend))
    @settings(max_examples=kind.count, database=None, suppress_health_check=list(HealthCheck), print_blob=False)
    @given(configurations(serve(kind), backend))
    def run(made: Configuration) -> None:
        note(f"engine: {made.engine}")
        tally.hold(made, references[kind.latent])

    run()
    print(tally)
    assert tally.configurations >= kind.count
    assert tally.compared >= 2 * kind.count
    met = tally.met
    assert min(met["hit"], met["chunked"], met["stopped"], met["aborted"]) > 0, tally
    if name != "none":
        assert tally.longest_accept >= 3
        assert min(met["graph"], met["padded"]) > 0, tally


TIGHT = {
    "memory": 0,
    "page_size": 4,
    "max_running_requests": 4,
    "max_new_tokens": MOST_NEW,
    "family": 2,
    "another family": None,
    "wave": 0,
    "arrive": 0,
    "stop": None,
    "abort_after": None,
    "temperature": 0.0,
}
"""Choices that leave so little room that requests which run together are retracted, whatever a step reserves."""


@pytest.mark.slow
@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("name", KINDS)
def test_requests_that_are_retracted_come_to_the_same_text(
    references: dict[bool, HuggingFace], serve: Callable[[Kind], Served], name: str
) -> None:
    kind, tally, deal = KINDS[name], Tally(), Decks(stream(1, "tests", name))

    def choose(what: str, options: Sequence[Any]) -> Any:
        return TIGHT[what] if what in TIGHT else deal(what, options)

    for number in range(6):
        tally.hold(configuration(choose, serve(kind), BACKENDS[number % 3]), references[kind.latent])
    assert tally.met["retracted"] > 0, tally
    assert tally.compared >= 18
