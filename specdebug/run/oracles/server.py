"""What a server says of itself: that it is well, that what it counts adds up, and the failures that its log names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdebug.events import AfterStep, AllServed, Event, Prefilled, Stepped
from specdebug.run.oracles.base import Oracle
from specdebug.targets.http.checked import DRAFTS, HISTOGRAMS
from specdebug.verdict.outcome import Violation

if TYPE_CHECKING:
    from specdebug.targets.http.server import HttpServerView

_ROUNDING = 1e-6  # by how much two tellings of one mean or rate may differ
ASK_EVERY = 8  # requests that end between two questions whether the server is well, where it is never idle


class OfServer(Oracle):
    """Looks at a server only; one switch of the scenario's has all of these."""

    asks = "server"
    of = ("server",)


class ServerFindings(OfServer):
    """Reports the failures that the server tells of, or its log, though it may go on."""

    name = "server_findings"
    needs = frozenset({"failures"})
    hears = (Prefilled, AfterStep, AllServed)

    def on(self, event: Event) -> None:
        """What an engine told its log of a request comes before what is seen of that in the engine itself."""
        step = event.step if isinstance(event, AfterStep) else self.bench.step
        server = self.bench.session.server
        if server is None:
            return
        self.bench.looked(self.name)
        for signature, text in server.findings():
            kind, _, site = signature.partition("@")
            self.bench.report(Violation(kind, site, step, f"the server says: {text}"))


class ServerAlive(OfServer):
    """Asks the server whether it is well whenever it is idle, and once by a request when all is served."""

    name = "server_alive"
    needs = frozenset({"alive"})
    hears = (Stepped, AllServed)

    _ended, _sick = 0, False

    def on(self, event: Event) -> None:
        match event:
            case Stepped(finished=finished):
                before, self._ended = self._ended, self._ended + len(finished)
                if not self.bench.session.has_work or before // ASK_EVERY != self._ended // ASK_EVERY:
                    self._ask(generates=False)
            case AllServed():
                self._ask(generates=True)

    def _ask(self, *, generates: bool) -> None:
        server = self.bench.session.server
        if server is None or self._sick:
            return
        self.bench.looked(self.name)
        wrong = server.check_alive(generates=generates)
        if wrong is not None:
            self._sick = True
            self.bench.report(Violation(wrong.kind, wrong.site, self.bench.step, f"the server is not well: {wrong}"))


class ServerCounts(OfServer):
    """Adds up what ``meta_info`` counts of each request, and holds the server's mean accept length against it."""

    name = "server_counts"
    needs = frozenset({"counts"})
    hears = (Stepped, AllServed)

    def on(self, event: Event) -> None:
        server = self.bench.session.server
        match event:
            case Stepped(finished=finished) if server is not None:
                self._count(server, finished)
            case AllServed(rids) if server is not None:
                self._hold_mean(server, rids)

    def _count(self, server: HttpServerView, finished: Sequence[str]) -> None:
        for rid in finished:
            request, meta = self.bench.session.request(rid), server.counted(rid)
            if not meta:
                continue
            self.bench.looked(self.name)
            revised, owed = server.revised(rid), server.owed(rid)
            wrong = [*wrong_counts(request, meta), *([revised] if revised else [])]
            # Of another's engine no more is known than that it has a cache.
            if request.cached_tokens < (owed if server.own else min(owed, 1)):
                wrong.append(f"cached_tokens is {request.cached_tokens} of a prompt of which {owed} are cached")
            if wrong:
                site = "stream" if revised and len(wrong) == 1 else "counts"
                self._report(site, f"{rid}: {'; '.join(wrong)}", rid=rid)

    def _hold_mean(self, server: HttpServerView, rids: Sequence[str]) -> None:
        lengths = [n for rid in rids for n in self.bench.session.request(rid).accept_lengths]
        told, mean = server.totals().get("avg_spec_accept_length"), server.mean_accepted()
        said = f"/server_info has avg_spec_accept_length {told}"
        if told is not None and mean is not None and abs(told - mean) > _ROUNDING:
            self._report("counts", f"{said}, requests accepted {mean:g} a verify")
        elif told is not None and lengths and not 1 <= told <= max(lengths) + 1:
            self._report("counts", f"{said}, requests accepted {min(lengths)} to {max(lengths)}")

    def _report(self, site: str, detail: str, **data: str) -> None:
        self.bench.report(Violation("ends", site, self.bench.step, detail, data=data))


def wrong_counts(request: Any, meta: Mapping[str, Any]) -> Iterator[str]:
    """What of a request's counts contradicts the request, or another count."""
    prompt, output = len(request.prompt_ids), len(request.output_ids)
    for count, there in (("prompt_tokens", prompt), ("completion_tokens", output)):
        if meta.get(count) != there:
            yield f"{count} is {meta.get(count)}, there are {there}"
    cached = meta.get("cached_tokens", 0)
    if not isinstance(cached, int) or not 0 <= cached < max(prompt, 1):
        yield f"cached_tokens is {cached} of a prompt of {prompt}"
    reasoning = meta.get("reasoning_tokens", 0)
    if reasoning > output:
        yield f"reasoning_tokens is {reasoning}, there are {output}"
    verifies = meta.get("spec_verify_ct", 0)
    if not verifies:
        return
    lengths = request.accept_lengths
    name = next((each for each in HISTOGRAMS if meta.get(each)), "")
    histogram = meta.get(name)
    # A request that was put back is prefilled again, and that prefill emits a token as the first does.
    again = meta.get("num_retractions") or 0
    if histogram:
        if sum(histogram) != verifies:
            yield f"spec_verify_ct is {verifies}, {name} counts {sum(histogram)}"
        # The first token is the prefill's; of what the last verify accepted, an end may cut some off.
        elif not -again <= sum(lengths) - (output - 1) < max(lengths):
            yield f"{name} accepts {sum(lengths)} tokens, of which {output - 1} are there"
    yield from _wrong_rate(meta, histogram)
    mean = meta.get("spec_accept_length")
    most = max(output, sum(lengths)) / verifies
    if mean is not None and not (output - 1 - again) / verifies - 1e-6 <= mean <= most + 1e-6:
        yield f"spec_accept_length is {mean:g} of {output} tokens by {verifies} verifies"


def _wrong_rate(meta: Mapping[str, Any], histogram: Sequence[int] | None) -> Iterator[str]:
    right, made = next((pair for pair in DRAFTS if pair[0] in meta and pair[1] in meta), ("", ""))
    if not right:
        return
    accepted, proposed, rate = meta[right], meta[made], meta.get("spec_accept_rate")
    if histogram and accepted != (counted := sum(drafts * times for drafts, times in enumerate(histogram))):
        yield f"{right} is {accepted}, the histogram counts {counted}"
    if rate is not None and proposed and abs(rate - accepted / proposed) > _ROUNDING:
        yield f"spec_accept_rate is {rate:g}, {accepted} of {proposed} drafts were right"
