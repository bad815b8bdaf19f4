"""What a verify accepted, of what answers count, and what a server must have cached of the texts that it was given."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.request import HttpRequest, ServedTexts, accept_lengths_of


@pytest.mark.parametrize(
    ("meta", "lengths"),
    [
        ({}, ()),
        ({"spec_verify_ct": 0}, ()),
        ({"spec_verify_ct": 3, "spec_accept_histogram": [1, 0, 2]}, (3, 3, 1)),
        ({"spec_verify_ct": 3, "spec_correct_drafts_histogram": [0, 3]}, (2, 2, 2)),
        ({"spec_verify_ct": 3, "completion_tokens": 9}, (3, 3, 2)),
        ({"spec_verify_ct": 3, "completion_tokens": 2}, (1, 1, 1)),
    ],
)
def test_accept_lengths(meta: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert accept_lengths_of(meta, meta.get("completion_tokens", 0)) == lengths


PROMPT = tuple(range(100, 140))


def served(texts: ServedTexts, rid: str, prompt: tuple[int, ...] = PROMPT, **more: object) -> HttpRequest:
    answer = HttpRequest(rid, prompt, RequestSampling(4), speculative=bool(more.get("speculative", True)))
    texts.sent(answer)
    answer.output_ids = [1, 2, 3, 4]
    answer.finish_reason = str(more.get("reason", "length"))
    answer.accept_lengths = (3, 1)
    texts.ended(answer)
    return answer


@pytest.mark.parametrize(
    ("page", "prompt", "owed"),
    [
        (1, PROMPT, 38),  # all but the last token, and a pair less
        (4, PROMPT, 36),
        (1, (*PROMPT, 1, 2, 3, 9), 42),  # of the output all but the last token is cached
        (1, (*PROMPT[:20], 7, 7, 7), 19),
        (16, (*PROMPT[:20], 7, 7, 7), 16),
        (1, (7, *PROMPT), 0),
        (64, PROMPT, 0),
    ],
)
def test_whole_pages_of_what_two_texts_share(page: int, prompt: tuple[int, ...], owed: int) -> None:
    texts = ServedTexts(page, 1000)
    texts.flushed()
    served(texts, "a")
    served(texts, "b", prompt)
    assert (texts.owed("a"), texts.owed("b")) == (0, owed)


def test_nothing_is_owed_that_may_not_be_there() -> None:
    texts = ServedTexts(1, 1000)
    served(texts, "a")
    served(texts, "b")
    assert texts.owed("b") == 0  # what was in the cache before is not known
    texts.flushed()
    served(texts, "c", speculative=False)
    served(texts, "d", reason="abort")
    served(texts, "e")
    assert texts.owed("e") == 0  # there is no draft KV of one, and nothing is known of the other
    beside = HttpRequest("f", PROMPT, RequestSampling(4), speculative=True)
    texts.sent(beside)
    assert texts.owed("f") == 38
    texts.flushed()
    served(texts, "g")
    assert texts.owed("g") == texts.owed("e") == 0
    small = ServedTexts(1, 150)
    small.flushed()
    served(small, "a")
    served(small, "b")
    assert small.owed("b") == 0  # room may have been made
