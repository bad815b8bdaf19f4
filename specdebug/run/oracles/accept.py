"""Accept length: of a cache hit at least that of the same prompt cold, and of every group at least a floor."""

from collections.abc import Sequence
from itertools import accumulate

from specdebug.run.oracles.base import Oracle, OracleSettings, ServedRun
from specdebug.verdict.accept import MIN_VERIFIES, accept_drop, not_judged
from specdebug.verdict.outcome import Violation, first_difference, mean


class Accept(Oracle):
    """Serves every request that hit the cache again, cold, and compares what was accepted, group by group.

    Where the dtype's rounding made a greedy request go on otherwise than its cold twin, what comes after is another
    text, whose drafts are as good as they are: only what they have in common is compared.
    """

    name = "accept"
    needs = frozenset({"accept_lengths", "cached_tokens", "cache_flush"})
    stage = "cold"

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.accept is not None and settings.spec.accept.min_ratio is not None

    def after_run(self, run: ServedRun) -> None:
        lengths: dict[str, tuple[list[int], list[int]]] = {}
        for rid, arrival in run.arrived.items():
            request = run.session.request(rid)
            if not request.cached_tokens or not request.accept_lengths or request.finish_reason == "abort":
                continue
            cold = run.serve_cold(rid)
            hit_lengths, cold_lengths = lengths.setdefault(arrival.group, ([], []))
            parted = None
            if arrival.sampling.temperature == 0:
                parted = first_difference(request.output_ids, cold.output_ids)
            if parted is not None and "steps" not in run.session.shows:
                continue  # the lengths are in no order, so those of what both have in common are not known
            hit_lengths.extend(over_before(parted, request.accept_lengths))
            cold_lengths.extend(over_before(parted, cold.accept_lengths))
        spec = self.bench.settings.spec.accept
        least = (spec and spec.min_ratio) or 0.0
        for group, both in lengths.items():
            of_hits, of_cold = (mean(side) or 0.0 for side in both)
            if of_hits < least * of_cold:
                means = (
                    f"{of_hits:.2f} tokens a verify after a cache hit, {of_cold:.2f} cold: less than {least:g} of it"
                )
                self.bench.report(Violation("accept-drop", group, None, f"requests of group {group} accept {means}"))


class AcceptFloor(Oracle):
    """Compares the mean accept length of each group of speculative requests with the least that the scenario wants."""

    name = "accept_min"
    needs = frozenset({"accept_lengths"})
    stage = "accept length"

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.accept is not None and settings.spec.accept.least is not None

    def after_run(self, run: ServedRun) -> None:
        spec = self.bench.settings.spec.accept
        least = (spec and spec.least) or 0.0
        groups: dict[str, list[int]] = {}
        for rid, arrival in run.arrived.items():
            if arrival.speculative:
                groups.setdefault(arrival.group, []).extend(run.session.request(rid).accept_lengths)
        for group, lengths in groups.items():
            verifies, got = len(lengths), mean(lengths) or 0.0
            if verifies < MIN_VERIFIES:
                run.note(not_judged(group, verifies))
                continue
            self.bench.looked(self.name)
            if got < least:
                means = f"{got:.2f} tokens a verify over {verifies} verifies: less than {least:g}"
                detail = f"requests of group {group} accept {means}"
                self.bench.report(accept_drop(group, got, least, verifies, detail))


def over_before(position: int | None, accept_lengths: Sequence[int]) -> list[int]:
    """Accept lengths of the verifies before an output position (None: of all); the first token is the prefill's."""
    ends = accumulate(accept_lengths, initial=1)
    next(ends)
    return [n for n, end in zip(accept_lengths, ends, strict=True) if position is None or end <= position]
