"""This adds up the outcomes of configurations: a row for each worker, plan and dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.lossless.draw import Ask, Configuration, Prompt
from benchmarks.lossless.judge import Judged
from benchmarks.lossless.play import Played
from specdebug.verdict.outcome import Tie

OPTIONS = ("page_size", "eagle_topk", "num_steps")


@dataclass(frozen=True)
class NearTie:
    """A near-tie of a request, named as ``CONFIGURATION.rREQUEST``, behind ``prefix``: prompt and what precedes it."""

    request: str
    tie: Tie
    prefix: Prompt

    @property
    def place(self) -> tuple[Prompt, int, int]:
        """Two that are the same have this in common."""
        return (self.prefix, self.tie.token, self.tie.preferred)


@dataclass
class Row:
    """One worker under one plan in one dtype. ``requests`` are those compared; ``met`` and ``options`` count
    configurations, ``accepted`` tokens by verifies."""

    worker: str
    plan: str
    executor: str
    dtype: str
    configurations: int = 0
    requests: int = 0
    same: int = 0
    tokens: int = 0
    verifies: int = 0
    accepted: int = 0
    seconds: float = 0.0
    met: Counter[str] = field(default_factory=Counter)
    options: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in OPTIONS})
    ties: list[NearTie] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def accept_mean(self) -> float:
        """Tokens that a verify accepts, the bonus included; 0 where nothing was verified."""
        return self.accepted / self.verifies if self.verifies else 0.0

    def add(self, number: int, configuration: Configuration, played: Played, judged: dict[int, Judged]) -> None:
        """Take configuration ``number``, with what was judged of its requests, by their numbers there."""
        spec = configuration.engine["speculative"] or {}
        values = {**configuration.engine, **spec}
        for name in OPTIONS:
            if name in values:
                self.options[name][values[name]] += 1
        self.configurations += 1
        self.met.update(name for name, count in played.met.items() if count)
        self.verifies += len(played.accept_lengths)
        self.accepted += sum(played.accept_lengths)
        self.wrong += [f"{number}: {problem}" for problem in dict.fromkeys(played.problems)]
        for which, found in judged.items():
            self._add_request(f"{number}.r{which}", configuration.asks[which], played.requests[which].output_ids, found)

    def _add_request(self, name: str, ask: Ask, output: Sequence[int], found: Judged) -> None:
        self.requests += 1
        self.same += found.same
        self.tokens += len(output)
        self.ties += [NearTie(name, tie, (*ask.prompt, *output[: tie.position])) for tie in found.ties]
        self.wrong += [f"{name}: {line}" for line in found.wrong]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""
        ties = [{"request": each.request, **asdict(each.tie)} for each in self.ties]
        plain = {**vars(self), "met": dict(self.met), "ties": ties, "accept_mean": self.accept_mean}
        return plain | {"options": {name: dict(sorted(counts.items())) for name, counts in self.options.items()}}


def together(rows: Sequence[Row]) -> Row:
    """The rows of a worker and dtype under all plans as one."""
    total = Row(rows[0].worker, "all", "", rows[0].dtype)
    for row in rows:
        for name in ("configurations", "requests", "same", "tokens", "verifies", "accepted", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.met += row.met
        for name, counts in row.options.items():
            total.options[name] += counts
        total.ties += row.ties
        total.wrong += row.wrong
    return total
