"""Ends of requests: each stops where its length, a stop token or a stop string says, and streams what it keeps.

Seen from outside only: after each token the whole output so far is decoded anew.
"""

from collections.abc import Mapping, Sequence

from specdebug.base.features import features_of
from specdebug.events import AllServed, Event, Stepped
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.targets.requests import RequestView
from specdebug.verdict.outcome import Violation, first_difference


class Ends(Oracle):
    """Adds up what was streamed of each request, and holds it against what the request keeps and how it ends."""

    name = "ends"
    needs = frozenset({"tokens"})
    hears = (Stepped, AllServed)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._streamed: dict[str, list[int]] = {}
        self._ended: dict[str, str] = {}  # by request reported finished, its reason
        self._read: dict[str, int] = {}  # by request, how many tokens of its output neither are nor complete a stop
        self._condemned: set[str] = set()
        """Requests of which something was said: what else is wrong with them follows from it."""

    def on(self, event: Event) -> None:
        match event:
            case Stepped():
                self._add(event)
            case AllServed(rids):
                self._close(rids)

    def _add(self, report: Stepped) -> None:
        session = self.bench.session
        for rid in {**report.emitted, **dict.fromkeys(report.finished)}:
            request, tokens = session.request(rid), list(report.emitted.get(rid, ()))
            self._streamed.setdefault(rid, []).extend(tokens)
            if rid in self._ended or request.finish_reason == "abort":
                after = f"{rid} ended ({self._ended.get(rid, 'abort')}) and then"
                got = f"was given {_named(tokens, request.output_ids)}" if tokens else "was reported finished again"
                self._report(rid, "stream", f"{after} {got}", len(self._streamed[rid]) - len(tokens))
                continue
            ours = session.own if session.server is None else session.server.own
            self._check_end(request, finished=rid in report.finished, ours=ours)
            self._check_stream(request)
            self._check_accepted(request, tokens, report.accept_lengths, finished=rid in report.finished)
            if rid in report.finished:
                self._ended[rid] = str(request.finish_reason)

    def _close(self, rids: Sequence[str]) -> None:
        for rid in rids:
            request = self.bench.session.request(rid)
            self._streamed.setdefault(rid, [])
            self._check_stream(request)
            if rid not in self._ended and request.finish_reason != "abort":
                count, most = len(request.output_ids), request.sampling.max_new_tokens
                self._report(
                    rid, "reason", f"{rid} was never reported finished; it has {count} of {most} tokens", count
                )

    def _check_end(self, request: RequestView, *, finished: bool, ours: bool) -> None:
        """The output is as long as it may be and has no stop but at its end, and the reason says so."""
        rid, output, most = request.rid, request.output_ids, request.sampling.max_new_tokens
        reason, last = request.finish_reason, len(output) - 1
        stop, stops = self._first_stop(request)
        due = "stop" if stops else "length" if len(output) >= most else None
        if finished and reason == "stop" and not stops and features_of(request.sampling).grammar:
            return  # its grammar was over
        if stops and (stop < last or not finished):
            goes_on = f"is followed by {_named(output[stop + 1 :], output)}" if stop < last else "does not end it"
            self._report(rid, _kind_of(stops[0]), f"{rid} output {stop}: {_stop(stops[0])} {goes_on}", stop)
        elif len(output) > most or (len(output) == most and not finished):
            held = f"{rid} has {len(output)} tokens, max_new_tokens is {most}"
            self._report(rid, "length", f"{held}{'' if finished else ', and goes on'}; {_last(output)}", most)
        elif finished and due is None:
            site = _claimed(request) if reason == "stop" else "length" if reason == "length" else "reason"
            held = f"{rid} ended ({reason}) after {len(output)} of {most} tokens and no stop"
            self._report(rid, site, f"{held}; {_last(output)}", last)
        elif not ours and stops and reason == "length" and len(output) == most:
            return
        elif reason != due:
            said = f"{rid} says finish reason {reason}, it is {due}"
            self._report(rid, "reason", f"{said}: {len(output)} of {most} tokens; {_last(output)}", last)
        elif request.matched_stop not in (stops or (None,)):
            matched = "nothing" if request.matched_stop is None else _stop(request.matched_stop)
            ended = " or ".join(map(_stop, stops)) or "nothing"
            self._report(rid, "reason", f"{rid} says that {matched} ended it, it is {ended}; {_last(output)}", last)

    def _first_stop(self, request: RequestView) -> tuple[int, list[int | str]]:
        """The first position of the output at which it has to end for a stop, and the stops that are complete there;
        -1 and none where there is no such position."""
        output, tokens, strings = request.output_ids, request.sampling.stop_token_ids, request.sampling.stop
        # Stop tokens are not to be given before min_new_tokens; strings that are complete by then are no stops.
        least = features_of(request.sampling).min_new_tokens
        begun = len(self.bench.decode(output[:least])) if least and strings else 0
        for position in range(max(self._read.get(request.rid, 0), least - 1), len(output)):
            stops: list[int | str] = [token for token in output[position : position + 1] if token in tokens]
            if strings and position >= least:
                text = self.bench.decode(output[: position + 1])
                stops += [string for string in strings if text.find(string, max(begun - len(string) + 1, 0)) >= 0]
            if stops:
                return position, stops
            self._read[request.rid] = position + 1
        return -1, []

    def _check_stream(self, request: RequestView) -> None:
        rid, kept = request.rid, request.output_ids
        streamed = self._streamed[rid]
        at = None if streamed == kept else first_difference(streamed, kept)
        if at is not None:
            sides = (f"{side[at] if at < len(side) else 'nothing'}" for side in (streamed, kept))
            self._report(rid, "stream", "{} output {}: streamed {}, kept {}".format(rid, at, *sides), at)

    def _check_accepted(
        self, request: RequestView, tokens: Sequence[int], lengths: Mapping[str, int], *, finished: bool
    ) -> None:
        """A verify emits what it accepted; of the last one's, an end may cut some off."""
        accepted = lengths.get(request.rid, len(tokens))
        if accepted < len(tokens) or (accepted > len(tokens) and not finished):
            position = len(self._streamed[request.rid]) - len(tokens)
            said = f"{request.rid} output {position}: a verify accepted {accepted} tokens and emitted {len(tokens)}"
            self._report(request.rid, "stream", said, position)

    def _report(self, rid: str, site: str, detail: str, position: int) -> None:
        if rid not in self._condemned:
            self._condemned.add(rid)
            data = {"rid": rid, "position": position}
            self.bench.report(Violation("ends", site, self.bench.step, detail, data=data))


def _named(tokens: Sequence[int], output: Sequence[int]) -> str:
    """So many tokens, with the first of them; ``output``: all that the request has."""
    return f"{len(tokens)} more tokens, the first {tokens[0]} ({len(output)} in all)"


def _last(output: Sequence[int]) -> str:
    return f"the last is {output[-1]}" if output else "there is none"


def _kind_of(stop: int | str) -> str:
    return "stop.token" if isinstance(stop, int) else "stop.string"


def _claimed(request: RequestView) -> str:
    """The kind of the stop that is said to have ended a request; where that is not said, of the stops that it has."""
    if request.matched_stop is not None:
        return _kind_of(request.matched_stop)
    return "stop.string" if request.sampling.stop else "stop.token"


def _stop(stop: int | str) -> str:
    return f"stop token {stop}" if isinstance(stop, int) else f"stop string {stop!r}"
