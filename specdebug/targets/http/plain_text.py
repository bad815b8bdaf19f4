"""What a model says without drafts, asked of a server: the right text of a greedy request, token by token.

The text goes on as it was emitted: where a token is not the one that plain decoding takes, how much worse it is stands
in the log probabilities, and the next question begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from specdebug.targets.http.checked import BadAnswer
from specdebug.targets.http.client import ServerClient

NOMINAL_LOGIT = 16.0
"""In place of the largest logit at a position, which log probabilities do not tell: near-ties are allowed as a part of
it (``lossless.py``), and those of language models have 10 to 30."""
TOP = 5
"""Log probabilities asked for at each position. A token that is not among them is no near-tie."""
MAX_QUESTIONS = 16
"""Requests about one text; what follows the last difference by then is taken as it is."""


class PlainText:
    """A reference for ``lossless`` alone. ``same_server``: the server that is judged, asked to leave out drafts."""

    def __init__(self, client: ServerClient, *, same_server: bool) -> None:
        self._client = client
        self.same_server = same_server
        self.run: Callable[[Coroutine[Any, Any, Any]], Any]

    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        """As of the dense reference: the choices from ``start`` on, how far each stands above the token given, and the
        size that a near-tie is measured by. Raises SessionFailed."""
        choices: list[int] = []
        gaps: list[float] = []
        for _ in range(MAX_QUESTIONS):
            at = start + len(choices)
            if at == len(ids):
                break
            said = self.run(self._ask(ids[:at], len(ids) - at))
            for given, (choice, top) in zip(ids[at:], said, strict=False):
                choices.append(choice)
                gaps.append(0.0 if choice == given else _gap(given, top))
                if choice != given:
                    break
        rest = list(ids[start + len(choices) :])
        return choices + rest, gaps + [0.0] * len(rest), [NOMINAL_LOGIT] * (len(ids) - start)

    async def close(self) -> None:
        if not self.same_server:
            await self._client.close()

    async def _ask(self, ids: Sequence[int], count: int) -> list[tuple[int, Mapping[int, float]]]:
        """By position the token of plain decoding, and the log probabilities of the best."""
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": TOP,
        }
        if self.same_server:
            body["speculative"] = False
        answer = await self._client.post("/generate", body)
        own, best = (answer["meta_info"].get(f"output_{what}_logprobs") for what in ("token", "top"))
        if not own or not best or len(own) != len(best) or not all(best):
            raise BadAnswer(f"/generate: {self._client.url} answers without the log probabilities that were asked for")
        pairs = zip(own, best, strict=True)
        return [(token, {other: chance for chance, other, _ in top}) for (_, token, _), top in pairs]


def _gap(given: int, top: Mapping[int, float]) -> float:
    """How far a token's logit lies below the best."""
    best = max(top.values())
    return best - top[given] if given in top else best - min(top.values()) + NOMINAL_LOGIT
