"""What a scenario says, as frozen values: a workload, an engine, what must hold, and the arms to run.

These classes hold facts only. ``scenario.py`` reads them from YAML and checks them, ``workload.py`` turns the
groups into requests. ``to_dict`` gives the file's own grammar back, so a scenario can be shipped to a worker
or saved.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specdebug.errors import Where
from specdebug.faults.model import Fault
from specdebug.verdict.outcome import Verdict
from specdebug.yamlio import Doc, parse_yaml

ProbeMode = Literal["assert", "record"]
Span = tuple[int, int]
"""Inclusive bounds of a number drawn per request; equal bounds are a plain number."""


@dataclass(frozen=True)
class TextPrompt:
    """Literal text, encoded by the target's tokenizer."""

    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text}


@dataclass(frozen=True)
class TokenPrompt:
    """Literal token ids."""

    token_ids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"token_ids": list(self.token_ids)}


@dataclass(frozen=True)
class CorpusPrompt:
    """A slice of a corpus. ``offset`` (in tokens) fixes where it starts, else a line is drawn."""

    tokens: Span
    corpus: str = "stdlib"
    offset: int | None = None

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"corpus": self.corpus, "tokens": _span_to_plain(self.tokens)}
        if self.offset is not None:
            plain["offset"] = self.offset
        return plain


SimplePrompt = TextPrompt | TokenPrompt | CorpusPrompt


@dataclass(frozen=True)
class SharedPrefixPrompt:
    """One prefix for all requests (of all groups that use its ``name``), and a suffix for each."""

    prefix: SimplePrompt
    suffix: SimplePrompt
    name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        prefix = self.prefix.to_dict()
        if self.name is not None:
            prefix["name"] = self.name
        return {"shared_prefix": prefix, "suffix": self.suffix.to_dict()}


Prompt = SimplePrompt | SharedPrefixPrompt


@dataclass(frozen=True)
class Turns:
    """Conversations: a round's prompt is its client's whole history and ``input_tokens`` of corpus."""

    clients: int
    rounds: int
    input_tokens: Span
    corpus: str = "stdlib"

    def to_dict(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "rounds": self.rounds,
            "input_tokens": _span_to_plain(self.input_tokens),
            "corpus": self.corpus,
        }


@dataclass(frozen=True)
class Arrive:
    """Request n (or client n) comes ``step + n * every`` steps after its group starts, and up to ``jitter`` more, drawn
    for each.

    A group starts at step 0, or once every request of every group named in ``after`` has finished.
    """

    step: int = 0
    every: int = 0
    after: tuple[str, ...] = ()
    jitter: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "every": self.every, "after": list(self.after), "jitter": self.jitter}


@dataclass(frozen=True)
class Abort:
    """Abort these requests of the group (None: all) that many steps after they arrived."""

    after_steps: int
    requests: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"after_steps": self.after_steps}
        if self.requests is not None:
            plain["requests"] = list(self.requests)
        return plain


@dataclass(frozen=True)
class WorkloadGroup:
    """Requests alike: ``requests`` of one ``prompt`` description, or the conversations of ``turns``."""

    id: str
    prompt: Prompt | None = None
    requests: int = 1
    turns: Turns | None = None
    max_new_tokens: Span = (32, 32)
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    speculative: bool = True
    arrive: Arrive = Arrive()
    abort: Abort | None = None

    @property
    def num_requests(self) -> int:
        """How many requests the group makes, every round of a conversation counted."""
        return self.requests if self.turns is None else self.turns.clients * self.turns.rounds

    @property
    def rids(self) -> tuple[str, ...]:
        """Request ids, ``<id>.<n>`` or ``<id>.<client>.<round>``, client by client."""
        if self.turns is None:
            return tuple(f"{self.id}.{n}" for n in range(self.requests))
        rounds = range(self.turns.rounds)
        return tuple(f"{self.id}.{client}.{r}" for client in range(self.turns.clients) for r in rounds)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"id": self.id}
        if self.turns is not None:
            plain["turns"] = self.turns.to_dict()
        elif self.prompt is not None:
            plain |= {"requests": self.requests, "prompt": self.prompt.to_dict()}
        plain |= {
            "max_new_tokens": _span_to_plain(self.max_new_tokens),
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "stop_token_ids": list(self.stop_token_ids),
            "speculative": self.speculative,
            "arrive": self.arrive.to_dict(),
        }
        if self.seed is not None:
            plain["seed"] = self.seed
        if self.abort is not None:
            plain["abort"] = self.abort.to_dict()
        return plain


@dataclass(frozen=True)
class AcceptOracle:
    """Accept length of requests that hit the cache, at least ``min_ratio`` times that of the cold ones."""

    min_ratio: float


@dataclass(frozen=True)
class OracleSpec:
    """Which oracles judge a run. ``each_step``: look at lossless and draft KV after every step, not only when a request
    is prefilled and when it ends."""

    lossless: bool = True
    draft_kv: bool = True
    pools: bool = True
    each_step: bool = False
    accept: AcceptOracle | None = None

    def to_dict(self) -> dict[str, Any]:
        accept = None if self.accept is None else {"min_ratio": self.accept.min_ratio}
        return {
            "lossless": self.lossless,
            "draft_kv": self.draft_kv,
            "pools": self.pools,
            "each_step": self.each_step,
            "accept": accept,
        }


@dataclass(frozen=True)
class Limits:
    """What a run may use before it is stopped: wall seconds, engine steps, MiB of resident memory."""

    timeout_s: float = 120.0
    max_steps: int = 5000
    memory_mb: int = 4096

    def to_dict(self) -> dict[str, Any]:
        return {"timeout_s": self.timeout_s, "max_steps": self.max_steps, "memory_mb": self.memory_mb}


@dataclass(frozen=True)
class Arm:
    """One way to run the scenario. ``None`` means as the scenario says (for ``mode``: as each pack says)."""

    name: str
    revert: tuple[int, ...] = ()
    target: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] | None = None
    probes: tuple[str, ...] | None = None
    mode: ProbeMode | None = None
    oracles: OracleSpec | None = None

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"revert": list(self.revert), "engine": self.engine}
        if self.faults is not None:
            plain["faults"] = [fault.to_dict() for fault in self.faults]
        if self.probes is not None:
            plain["probes"] = list(self.probes)
        if self.mode is not None:
            plain["mode"] = self.mode
        if self.oracles is not None:
            plain["oracles"] = self.oracles.to_dict()
        return plain


@dataclass(frozen=True)
class Expectation:
    """The verdict an arm must come to; a failure's signature must match one of ``signatures``, if any."""

    verdict: Verdict = "pass"
    signatures: tuple[str, ...] = ()

    def met_by(self, verdict: str, signature: str | None) -> bool:
        """Whether an outcome is the expected one; signatures are compared with shell patterns."""
        if verdict != self.verdict:
            return False
        if not self.signatures:
            return True
        return any(fnmatch.fnmatchcase(signature or "", pattern) for pattern in self.signatures)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"verdict": self.verdict}
        if self.signatures:
            plain["signature"] = list(self.signatures)
        return plain


@dataclass(frozen=True)
class Scenario:
    """A checked scenario. ``arms`` is never empty and keeps the file's order; ``expect`` has every arm.

    ``overrides`` are engine options from outside the file, laid over those of every arm.
    """

    name: str
    workload: tuple[WorkloadGroup, ...]
    arms: dict[str, Arm]
    expect: dict[str, Expectation]
    description: str = ""
    seed: int = 0
    target: str = "embedded"
    engine: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    probes: tuple[str, ...] = ("default",)
    oracles: OracleSpec = OracleSpec()
    limits: Limits = Limits()
    path: Path = Path("<scenario>")
    overrides: dict[str, Any] = field(default_factory=dict)
    source: Doc | None = field(default=None, compare=False, repr=False)

    def where(self, *path: str | int) -> Where:
        """The place in the file of a value, or of the nearest value around it that the file has."""
        return Where(str(self.path)) if self.source is None else self.source.where(*path)

    def where_key(self, *path: str | int) -> Where:
        """Like :meth:`where`, of the key that holds the value."""
        return Where(str(self.path)) if self.source is None else self.source.where_key(*path)

    def target_of(self, arm: str) -> str:
        """Name of the target that an arm runs on."""
        return self.arms[arm].target or self.target

    def engine_of(self, arm: str) -> dict[str, Any]:
        """Engine options of an arm: the scenario's with the arm's laid over them, mapping by mapping, and whatever
        overrides both."""
        return merge(merge(self.engine, self.arms[arm].engine), self.overrides)

    def faults_of(self, arm: str) -> tuple[Fault, ...]:
        """The faults injected in an arm, in the order in which they are numbered."""
        own = self.arms[arm].faults
        return self.faults if own is None else own

    def probes_of(self, arm: str) -> tuple[str, ...]:
        """Names of the probe packs live in an arm."""
        own = self.arms[arm].probes
        return self.probes if own is None else own

    def oracles_of(self, arm: str) -> OracleSpec:
        """The oracles that judge an arm."""
        return self.arms[arm].oracles or self.oracles

    def to_dict(self) -> dict[str, Any]:
        """The scenario in the file's grammar, every default written out; ``from_dict`` gives an equal one, but for
        ``overrides``, for which the grammar has no place."""
        return {
            "name": self.name,
            "description": self.description,
            "seed": self.seed,
            "engine": self.engine,
            "workload": [group.to_dict() for group in self.workload],
            "faults": [fault.to_dict() for fault in self.faults],
            "probes": list(self.probes),
            "oracles": self.oracles.to_dict(),
            "limits": self.limits.to_dict(),
            "arms": {name: arm.to_dict() for name, arm in self.arms.items()},
            "expect": {name: expectation.to_dict() for name, expectation in self.expect.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str | Path = "<scenario>") -> Scenario:
        """Inverse of :meth:`to_dict`, also after a trip through JSON. Raises ContentError as a file would.

        References to toggles and packs are not looked up again.
        """
        from specdebug.scenario.reader import read_scenario  # which imports this module

        # JSON is YAML but for non-ASCII characters, some of which YAML takes for line breaks or refuses.
        text = re.sub(r"[^\x20-\x7e]", lambda odd: f"\\U{ord(odd[0]):08x}", json.dumps(data, ensure_ascii=False))
        return replace(read_scenario(parse_yaml(text, str(path))), source=None)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``: mappings are merged key by key, anything else (lists, null too) replaces."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _span_to_plain(span: Span) -> int | list[int]:
    return span[0] if span[0] == span[1] else list(span)
