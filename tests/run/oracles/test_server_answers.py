"""Texts and log probabilities that are not of the tokens beside them."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.events import AllServed, Stepped
from specdebug.run.oracles.base import Bench, OracleSettings
from specdebug.run.oracles.server_answers import ServerAnswers, wrong_logprobs
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.base import Asked
from specdebug.targets.requests import ToldToken
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeRequest

WORDS = {1: "one ", 2: "two ", 3: "\ufffd", 4: "four", 9: "<end>"}
LOGITS = torch.tensor([8.0, 7.0, 2.0, 0.0, 0.0])


class Reference:
    def logits(self, ids: Sequence[int], start: int) -> torch.Tensor:
        return LOGITS.repeat(len(ids) - start, 1)


class Server:
    """A server with one answer; ``served`` counts how often that was asked for again."""

    def __init__(self, text: str = "", *, own: bool = True) -> None:
        self.said = text
        self.own = own
        self.likely: list[ToldToken] = []
        self.again: Any = None
        self.in_pieces: list[tuple[str, str]] = []
        self.asked: list[str] = []

    def text(self, rid: str) -> str:
        return self.said

    def told(self, rid: str) -> Sequence[ToldToken]:
        return self.likely

    def logprobs(self, request: Any) -> Any:
        self.asked.append(request.rid)
        return self.again

    def pieces(self, request: Any) -> tuple[str, str] | None:
        return self.in_pieces.pop(0) if self.in_pieces else None


def request(
    output: list[int],
    reason: str | None = "length",
    matched: int | str | None = None,
    *,
    rid: str = "a.0",
    temperature: float = 0.0,
    stop: tuple[str, ...] = (),
) -> FakeRequest:
    sampling = RequestSampling(8, temperature=temperature, stop=stop)
    made = FakeRequest(rid, [0, 0], sampling, output_ids=output, finish_reason=reason)
    made.matched_stop = matched
    return made


def look(server: Server, *requests: FakeRequest, served: bool = False, dense: bool = True) -> list[Violation]:
    found: list[Violation] = []
    settings = OracleSettings(OracleSpec(), Asked("tiny", server=True, dense=dense))
    by_rid = {each.rid: each for each in requests}
    session: Any = SimpleNamespace(server=server, request=by_rid.__getitem__)
    reference: Any = Reference()
    bench = Bench(settings, session, reference, found.append, print, lambda ids: "".join(WORDS[each] for each in ids))
    rids = tuple(by_rid)
    ServerAnswers(bench).on(AllServed(rids) if served else Stepped(1, "served", rids, finished=rids))
    return found


@pytest.mark.parametrize(
    ("text", "asked", "own"),
    [
        ("one two four", request([1, 2, 4]), True),
        ("one two ", request([1, 2, 9], "stop", 9), True),  # the token that stopped it is cut off
        ("one t", request([1, 2, 4], "stop", "wo f", stop=("wo f",)), True),
        ("one \ufffdfour", request([1, 3, 3, 4]), True),  # half characters, however many they count as
        ("one", request([1, 2, 4], "stop"), True),  # it does not say what stopped it
        ("anything", request([1, 2], "abort"), True),
        ("one four", request([3, 1, 4, 3], "length"), False),  # half characters at the borders
    ],
)
def test_a_text_that_is_of_its_tokens(text: str, asked: FakeRequest, own: bool) -> None:
    assert look(Server(text, own=own), asked) == []


@pytest.mark.parametrize(
    ("text", "asked", "at"),
    [
        ("one twoo four", request([1, 2, 4]), 7),  # streamed twice
        ("one two fou", request([1, 2, 4]), 11),  # the end is missing
        ("one two <end>", request([1, 2, 9], "stop", 9), 8),
        ("one two four", request([1, 2, 4], "stop", "wo f", stop=("wo f",)), 5),
        ("one", request([1, 2]), 3),
    ],
)
def test_a_text_that_is_not_of_its_tokens(text: str, asked: FakeRequest, at: int) -> None:
    (found,) = look(Server(text), asked)
    assert found.signature == "ends@stream"
    assert f"a.0: its text has {text[max(at - 16, 0) :]!r} at character {at}, where" in found.detail
    assert look(Server(text), asked, dense=False) == []  # its tokenizer is not known


@pytest.mark.parametrize(
    ("asked", "signatures"),
    [
        ([], []),  # no such route
        ([("one two", "one two")], []),
        ([("one twoo", "one two"), ("one two", "one two")], []),  # once is chance
        ([("one twoo", "one two"), ("one four", "one four")], []),  # the whole text differs, too: a near-tie
        ([("one twoo", "one two"), ("oone two", "one two")], ["ends@stream"]),
    ],
)
def test_pieces_make_up_the_whole_text(asked: list[tuple[str, str]], signatures: list[str]) -> None:
    server = Server()
    server.in_pieces = list(asked)
    assert [each.signature for each in look(server, request([1, 2]), served=True)] == signatures


def chances(*tokens: int) -> list[ToldToken]:
    """The log probabilities that the reference has for tokens, with its two likeliest."""
    table = LOGITS.log_softmax(-1).tolist()
    return [(token, table[token], {0: table[0], 1: table[1]}) for token in tokens]


@pytest.mark.parametrize(
    ("output", "told", "greedy", "words"),
    [
        ([0, 0], chances(0, 0), True, None),
        ([2], chances(2), False, None),  # sampled, and none of the likeliest
        ([0], [(0, -0.1 + 2e-5, {0: -0.1})], True, None),  # rounding
        ([0, 0], chances(0), True, "there are those of 1 tokens, 2 are there"),
        ([1, 0], chances(0, 1), False, "output 0 has token 0 at -0.315562, token 1 is there"),
        ([1], chances(1), True, "the likeliest of its position are 0 at -0.315562"),
        ([5], [(5, -0.1, {6: -0.1, 7: -3.0})], True, "the likeliest of its position are 6 at -0.1"),
        ([5], [(5, -2.0, {5: -0.1, 7: -3.0})], False, "the likeliest of its position are 5 at -0.1"),
        ([5], [(5, 0.0, {5: 0.0, 6: 0.0})], True, "which is no log probability"),
        ([5], [(5, 0.5, {5: 0.5})], True, "which is no log probability"),
        ([5], [(5, -math.inf, {})], False, "which is no log probability"),
    ],
)
def test_log_probabilities_that_contradict_each_other(
    output: list[int], told: list[ToldToken], greedy: bool, words: str | None
) -> None:
    found = next(wrong_logprobs(output, told, greedy=greedy, slack=1e-4), None)
    assert (found is None) == (words is None)
    assert words is None or words in str(found)


@pytest.mark.parametrize(("by", "signatures"), [(0.0, []), (1e-4, []), (0.1, ["mismatch@logprobs"])])
@pytest.mark.parametrize("temperature", [0.0, 1.7])
def test_log_probabilities_are_the_reference_s(by: float, signatures: list[str], temperature: float) -> None:
    server = Server()
    moved = [(token, own - by, {each: at - by for each, at in best.items()}) for token, own, best in chances(0, 0)]
    server.again = ([0, 0], moved)
    found = look(server, request([0, 0], temperature=temperature), served=True)
    assert [each.signature for each in found] == signatures


def test_a_likely_token_that_the_model_does_not_have_is_wrong() -> None:
    server = Server()
    ((token, own, best),) = chances(0)
    server.again = ([0], [(token, own, {0: own, 77: best[1]})])
    (found,) = look(server, request([0]), served=True)
    assert "output 0 has token 77 at -1.31556, the reference at nan" in found.detail


def test_another_s_server_is_held_to_the_reference_only_where_nothing_is_sampled() -> None:
    server = Server("one ", own=False)
    server.likely = [(1, -5.0, {})]
    assert look(server, request([1], temperature=1.7)) == []
    assert [each.signature for each in look(server, request([1]))] == ["mismatch@logprobs"]


def test_the_longest_request_of_each_kind_is_served_again() -> None:
    server = Server()
    look(
        server,
        request([1], rid="short"),
        request([1, 2], rid="long"),
        request([1, 2, 4], "abort", rid="aborted"),
        request([1], rid="stops", stop=("x",)),
        request([1], rid="sampled", temperature=1.0),
        served=True,
    )
    assert sorted(server.asked) == ["long", "sampled", "stops"]
