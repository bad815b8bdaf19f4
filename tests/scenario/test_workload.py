"""Expanding a scenario: exact counts, streams that stay put, rules copied to each request."""

import random
import re
import zlib
from types import SimpleNamespace

import pytest

from specdebug.base import corpus
from specdebug.base.errors import ContentError
from specdebug.base.yamlio import parse_yaml
from specdebug.scenario.checks import KnownNames, Scenario, scenario_of
from specdebug.scenario.workload import CorpusTooShort, Slicer, expand


class WordTokenizer:
    """As much of ``tokenizers.Tokenizer`` as ``expand`` uses: one id per word, in any process the same."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True):
        assert not add_special_tokens, "counts must be exact"
        words = re.findall(r"\w+|[^\w\s]", sequence)
        return SimpleNamespace(ids=[zlib.crc32(word.encode()) for word in words])


def scenario(workload: str, seed: int = 0, extra: str = "") -> Scenario:
    text = f"name: test\nseed: {seed}\nengine: {{context_length: 8192}}\n{extra}workload:\n{workload}"
    return scenario_of(parse_yaml(text, "test.yaml"), KnownNames((), ("default",)))


def plan(workload: str, seed: int = 0):
    return expand(scenario(workload, seed), WordTokenizer()).requests


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    lines = [f"line {n} of {n * n} with words w{n} x{n} y{n}" for n in range(500)]
    monkeypatch.setattr(corpus, "heldout_text", lambda: "\n".join(lines) + "\n")


def test_shared_prefix_is_exact_and_suffixes_differ():
    requests = plan(
        "  - requests: 3\n"
        "    prompt:\n"
        "      shared_prefix: {corpus: stdlib, tokens: 661}\n"
        "      suffix: {corpus: stdlib, tokens: 9}\n"
    )
    assert [len(request.new_ids) for request in requests] == [670] * 3
    assert len({request.new_ids[:661] for request in requests}) == 1
    assert len({request.new_ids[661:] for request in requests}) == 3


def test_groups_share_a_prefix_by_its_name_only():
    named = "prompt: {shared_prefix: {name: doc, corpus: stdlib, tokens: 30}, suffix: {token_ids: [1]}}"
    private = "prompt: {shared_prefix: {corpus: stdlib, tokens: 30}, suffix: {token_ids: [1]}}"
    requests = plan("".join(f"  - {prompt}\n" for prompt in (named, named, private, private)))
    assert requests[0].new_ids == requests[1].new_ids
    assert len({request.new_ids for request in requests}) == 3


def test_conversations_have_a_request_per_client_and_round():
    requests = plan(
        "  - id: chat\n    turns: {clients: 2, rounds: 3, input_tokens: 25}\n    arrive: {step: 4, every: 10}\n"
    )
    assert [request.rid for request in requests] == [
        "chat.0.0", "chat.0.1", "chat.0.2", "chat.1.0", "chat.1.1", "chat.1.2",
    ]  # fmt: skip
    assert [request.continues for request in requests[:3]] == [None, "chat.0.0", "chat.0.1"]
    assert [request.delay for request in requests] == [4, 4, 4, 14, 14, 14]
    assert {len(request.new_ids) for request in requests} == {25}
    assert len({request.new_ids for request in requests}) == 6


def test_arrivals_and_aborts():
    workload = expand(
        scenario(
            "  - {id: a, requests: 3, prompt: {text: x}, arrive: {step: 2, every: 5},"
            " abort: {after_steps: 4, requests: [1]}}\n"
            "  - {id: b, prompt: {text: x}, arrive: {after: a}, abort: {after_steps: 0},"
            " speculative: false}\n"
        ),
        WordTokenizer(),
    )
    assert [request.delay for request in workload.requests] == [2, 7, 12, 0]
    assert [request.abort_after for request in workload.requests] == [None, 4, None, 0]
    assert [request.speculative for request in workload.requests] == [True, True, True, False]
    assert workload.after == {"a": (), "b": ("a",)}


def test_sampling_is_copied_and_each_request_has_a_seed_of_its_own():
    first, second = plan(
        "  - {requests: 2, prompt: {text: x}, temperature: 0.7, top_k: 5, top_p: 0.9, stop_token_ids: [2], stop: ab}\n"
    )
    assert (first.sampling.temperature, first.sampling.top_k, first.sampling.top_p) == (0.7, 5, 0.9)
    assert (first.sampling.stop_token_ids, first.sampling.stop) == ((2,), ("ab",))
    assert first.sampling.seed != second.sampling.seed
    assert [r.sampling.seed for r in plan("  - {requests: 2, prompt: {text: x}, seed: 40}\n")] == [40, 41]


WORKLOAD = "  - {id: a, requests: 3, prompt: {corpus: stdlib, tokens: [20, 60]}, max_new_tokens: [3, 90]}\n"


def test_completions_of_a_request_share_its_prompt_and_have_seeds_in_a_row():
    group = "- {{id: c, requests: 2, prompt: {{corpus: stdlib, tokens: 9}}, features: {{n: 3}}{}}}\n"
    requests = plan(group.format(""))
    assert [each.rid for each in requests] == [f"c.{n}.{k}" for n in range(2) for k in range(3)]
    assert len({each.new_ids for each in requests[:3]}) == 1 < len({each.new_ids for each in requests})
    first = requests[3].sampling.seed
    assert [each.sampling.seed for each in requests[3:]] == [first, first + 1, first + 2]
    assert [each.sampling.seed for each in plan(group.format(", seed: 7"))] == [7, 8, 9, 8, 9, 10]
    with pytest.raises(ContentError, match="has n, which does not go with 'turns'"):
        scenario("- {turns: {clients: 1, rounds: 1, input_tokens: 4}, features: {n: 2}}\n")


def test_same_seed_same_plan_and_another_seed_another():
    assert plan(WORKLOAD, seed=5) == plan(WORKLOAD, seed=5)
    assert plan(WORKLOAD, seed=5) != plan(WORKLOAD, seed=6)
    assert expand(scenario(WORKLOAD, seed=6), WordTokenizer(), seed=5).requests == plan(WORKLOAD, seed=5)


def test_adding_requests_and_groups_leaves_the_others_as_they_were():
    longer = WORKLOAD.replace("requests: 3", "requests: 5")
    longer = "  - {id: new, prompt: {corpus: stdlib, tokens: 40}}\n" + longer
    before = {request.rid: request for request in plan(WORKLOAD)}
    after = {request.rid: request for request in plan(longer)}
    assert {rid: after[rid] for rid in before} == before


def test_a_corpus_too_short_is_an_error_at_the_group():
    too_short = r"^test\.yaml:6:5: the corpus 'stdlib' has \d+ tokens, too few for 8000"
    with pytest.raises(ContentError, match=too_short):
        plan("  - prompt: {text: x}\n  - prompt: {corpus: stdlib, tokens: 8000}\n")


def encode(text):
    """A tokenizer that splits words into pairs of letters, so that a cut word changes its last tokens."""
    ids = []
    for word in re.findall(r"\s+|\w+|[^\s\w]+", text):
        ids += [hash_of(word[i : i + 2]) for i in range(0, len(word), 2)]
    return ids


def hash_of(text):
    return sum(ord(char) * 131**place for place, char in enumerate(text)) % 50_000


LINES = [f"def function_{n}(argument, other={n * n}):\n    return argument + {n} * other" for n in range(400)]
TEXT = "\n".join(LINES)
WHOLE = encode(TEXT)


def slicer(text=TEXT):
    return Slicer("test", text, encode)


def test_draw_starts_at_a_line_and_has_the_exact_count():
    starts = {tuple(encode(line)[:6]) for line in TEXT.split("\n")}
    for seed in range(50):
        drawn = slicer().draw(random.Random(seed), 90)
        assert len(drawn) == 90
        assert drawn[:6] in starts


def test_a_longer_slice_than_the_corpus_is_refused():
    with pytest.raises(CorpusTooShort):
        slicer().draw(random.Random(0), len(WHOLE) + 1)
    with pytest.raises(CorpusTooShort):
        slicer("").draw(random.Random(0), 1)
