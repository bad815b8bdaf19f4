"""A server's answers beside tokens: the text of them, whole and in pieces, and their log probabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import exp
from typing import TYPE_CHECKING, Any

from specdebug.events import AllServed, Event, Stepped
from specdebug.run.oracles.lossless import TIE_MARGIN
from specdebug.run.oracles.server import OfServer
from specdebug.targets.requests import NOMINAL_LOGIT, RequestView, ToldToken
from specdebug.verdict.outcome import Violation

if TYPE_CHECKING:
    from specdebug.targets.http.server import HttpServerView

_ROUNDING = 1e-4
"""By how much our own server's log probabilities of one position, of one float32 table, may contradict each other."""
AT_ONCE = 64  # positions whose log probabilities are worked out together; bounds what a large vocabulary needs
_AROUND = 16  # characters of a text that are shown before and behind the first that is wrong


class ServerAnswers(OfServer):
    """Decodes each output again, and has one request of each kind served again in pieces and with log probabilities."""

    name = "server_answers"
    needs = frozenset({"tokens"})
    hears = (Stepped, AllServed)

    def on(self, event: Event) -> None:
        server = self.bench.session.server
        match event:
            case Stepped(finished=finished) if server is not None:
                self._check_answers(server, finished)
            case AllServed(rids) if server is not None:
                self._ask_again(server, rids)

    def _check_answers(self, server: HttpServerView, finished: Sequence[str]) -> None:
        for request in map(self.bench.session.request, finished):
            if request.finish_reason == "abort":
                continue
            if self.bench.settings.target.dense:
                self._check_text(request, server.text(request.rid), exact=server.own)
            if told := server.told(request.rid):
                self._check_logprobs(request, request.output_ids, told, server)

    def _ask_again(self, server: HttpServerView, rids: Sequence[str]) -> None:
        for request in _one_of_each_kind(list(map(self.bench.session.request, rids))):
            again = server.logprobs(request)
            if again is not None:
                output, told = again
                self._check_logprobs(request, output, told, server)
            if request.sampling.temperature == 0:
                self._check_pieces(request, server)

    def _check_text(self, request: RequestView, text: str, *, exact: bool) -> None:
        """The text is that of the tokens without what stopped it."""
        self.bench.looked(self.name)
        due, matched = self._due(request), request.matched_stop
        said, held = (re.sub("\ufffd+", "\ufffd", each) for each in (text, due))
        if not exact:
            said, held = (each.rstrip("\ufffd").lstrip(" \ufffd") for each in (said, held))
        if request.finish_reason == "stop" and matched is None and held.startswith(said):
            return  # it does not say what stopped it, and so what it cut off
        if said != held:
            self._report_text(request.rid, f"its text {_parting(said, held)} of its tokens")

    def _due(self, request: RequestView) -> str:
        output, matched = list(request.output_ids), request.matched_stop
        if isinstance(matched, int) and output[-1:] == [matched]:
            output.pop()
        text = self.bench.decode(output)
        return text.partition(matched)[0] if isinstance(matched, str) else text

    def _check_pieces(self, request: RequestView, server: HttpServerView) -> None:
        """A server that answers a request alone gives one text. Its cache may be warmer the second time, whose rounding
        may decide a near-tie, so only what is wrong twice of one whole text is."""
        first = server.pieces(request)
        if first is None:
            return
        self.bench.looked(self.name)
        if first[0] == first[1]:
            return
        streamed, whole = server.pieces(request) or first
        if streamed != whole == first[1]:
            said = f"its pieces, asked for again, {_parting(streamed, whole)} of the whole text"
            self._report_text(request.rid, said)

    def _check_logprobs(
        self, request: RequestView, output: Sequence[int], told: Sequence[ToldToken], server: HttpServerView
    ) -> None:
        self.bench.looked(self.name)
        dtype = self.bench.settings.target.dtype
        slack = _ROUNDING if server.own else TIE_MARGIN[dtype] * NOMINAL_LOGIT
        greedy = request.sampling.temperature == 0
        wrong = next(wrong_logprobs(output, told, greedy=greedy, slack=slack), None)
        # Another's server may tell those of the distribution that it samples from.
        if wrong is None and (greedy or server.own):
            wrong = next(self._unlike_reference([*request.prompt_ids, *output], told), None)
        if wrong is not None:
            detail = f"{request.rid}, log probabilities: {wrong}"
            self.bench.report(Violation("mismatch", "logprobs", self.bench.step, detail, data={"rid": request.rid}))

    def _unlike_reference(self, ids: Sequence[int], told: Sequence[ToldToken]) -> Iterator[str]:
        """Log probabilities that are not the dense reference's. Rounding moves logits in proportion to the largest."""
        target, reference = self.bench.settings.target, self.bench.reference
        if reference is None or not target.dense:
            return
        start = len(ids) - len(told)
        for first in range(0, len(told), AT_ONCE):
            part = told[first : first + AT_ONCE]
            logits = reference.logits(ids[: start + first + len(part)], start + first)
            margins = (TIE_MARGIN[target.dtype] * logits.abs().amax(-1)).tolist()
            table = logits.log_softmax(-1)
            for row, ((token, own, best), margin) in enumerate(zip(part, margins, strict=True)):
                for each, chance in {token: own, **best}.items():
                    due = float(table[row, each]) if each < table.shape[1] else float("nan")
                    if not abs(chance - due) <= margin:
                        yield f"output {first + row} has token {each} at {chance:g}, the reference at {due:g}"

    def _report_text(self, rid: str, said: str) -> None:
        self.bench.report(Violation("ends", "stream", self.bench.step, f"{rid}: {said}", data={"rid": rid}))


def wrong_logprobs(output: Sequence[int], told: Sequence[ToldToken], *, greedy: bool, slack: float) -> Iterator[str]:
    """Yield the contradictions of log probabilities to their tokens, or to each other."""
    if len(told) != len(output):
        yield f"there are those of {len(told)} tokens, {len(output)} are there"
    for position, ((token, own, best), there) in enumerate(zip(told, output, strict=False)):
        said = f"output {position} has token {token} at {own:g}"
        if token != there:
            yield f"{said}, token {there} is there"
        elif not -float("inf") < own <= slack or sum(map(exp, best.values())) > 1 + slack:
            yield f"{said}, which is no log probability, or those of its position are none"
        elif best and not _fits(token, own, list(best.items()), greedy=greedy, slack=slack):
            yield f"{said}, the likeliest of its position are {', '.join(f'{t} at {p:g}' for t, p in best.items())}"


def _fits(token: int, own: float, best: Sequence[tuple[int, float]], *, greedy: bool, slack: float) -> bool:
    """A token is as likely as it is among the likeliest, or less likely than all of them; a greedy one is the first."""
    chances = dict(best)
    if greedy and own < max(chances.values()) - slack:
        return False
    return abs(chances[token] - own) <= slack if token in chances else own <= min(chances.values()) + slack


def _one_of_each_kind(requests: Sequence[RequestView]) -> list[RequestView]:
    """Of requests that sample and stop alike, the one with the longest output."""
    kinds: dict[tuple[Any, ...], RequestView] = {}
    for each in sorted(requests, key=lambda request: len(request.output_ids)):
        sampling = each.sampling
        if each.finish_reason != "abort" and each.output_ids:
            kinds[sampling.temperature, bool(sampling.stop), bool(sampling.stop_token_ids)] = each
    return list(kinds.values())


def _parting(said: str, due: str) -> str:
    """Where two texts part, in words that go on with what the second one is of."""
    pairs = enumerate(zip(said, due, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(said), len(due)))
    got, wanted = (each[max(at - _AROUND, 0) : at + _AROUND] for each in (said, due))
    return f"has {got!r} at character {at}, where {wanted!r} is that"
