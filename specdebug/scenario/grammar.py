"""The grammar of scenario files, declared once: a workload, an engine, what must hold, and the arms to run.

Reading, defaults, writing, the JSON schema and ``docs/scenarios.md`` follow from each :class:`Key`
(``base/schema.py``); what needs more than one mapping to judge is in ``checks.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from specdebug.base import plugins
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError, Where
from specdebug.base.features import NONE, Features
from specdebug.base.schema import (
    ANY_TEXT,
    FLAG,
    TEXT,
    Gather,
    Item,
    Key,
    Part,
    Schema,
    checked,
    choice,
    form,
    keys_of,
    list_of,
    map_of,
    nested,
    nullable,
    one_of,
    one_or_many,
    overlay,
    real,
    simple,
    span,
    whole,
)
from specdebug.base.yamlio import Doc, as_json, parse_yaml
from specdebug.faults.model import Fault
from specdebug.scenario.elsewhere import ENGINE, FAULT
from specdebug.scenario.target_ranges import TARGET_RANGE, said_of
from specdebug.targets.registry import find_target
from specdebug.targets.relations import RELATIONS
from specdebug.targets.settings import TARGET, LaunchedServer, ReleasedEngine, TargetChoice, parse_target, ready_within
from specdebug.verdict.outcome import Verdict
from specdebug.verdict.signatures import SHAPE, complaint, stated

ProbeMode = Literal["assert", "record"]
Span = tuple[int, int]  # inclusive bounds of a number drawn per request; equal bounds are a plain number

DEFAULT_ARM = "base"  # name of the only arm of a scenario that declares none
MAX_GROUPS = 512

NAME = form(r"[a-z0-9]+(-[a-z0-9]+)*")
LABEL = r"[A-Za-z0-9_-]+"  # of an arm, a group or a shared prefix: no dots, because request ids are joined by them
CORPUS = choice("stdlib")  # texts that prompts can be cut from
SEED = whole(0, 2**63 - 1)
REQUESTS = (1, 4096)  # inclusive bounds, as those below; ``bundle/requests.py`` holds requests to them, too
TOKENS = (1, 2**20)
TOKEN_ID = (0, 2**31 - 1)
STEPS = (0, 10**6)
TEMPERATURE = (0, 100)
TOP_K = (0, 2**31 - 1)
STOP_CHARACTERS = 1024


def _stop_string(item: Item) -> str:
    text = item.text(empty=True)
    if not text:
        raise item.error("must not be empty; an output has that at once")
    if "\ufffd" in text:
        raise item.error("holds U+FFFD, which stands for bytes that are no text")
    if len(text) > STOP_CHARACTERS:
        raise item.error(f"has {len(text)} characters, more than {STOP_CHARACTERS}")
    return text


STOP_STRING = simple(
    _stop_string,
    {"type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS, "not": {"pattern": "\ufffd"}},
    "",
)
"""Any text, white space too."""
TEXTS = list_of(TEXT)
TOKEN_IDS = list_of(whole(*TOKEN_ID))
STOPS = one_or_many(STOP_STRING)
FAULTS = list_of(FAULT, at_most=1024, noun="faults")
NOT_ON = map_of(TEXT, "target", TARGET_RANGE, at_most=64)


@dataclass(frozen=True)
class TextPrompt(Part):
    """Literal text, encoded by the target's tokenizer."""

    text: Annotated[str, TEXT, "the text; no special tokens are added"]


@dataclass(frozen=True)
class TokenPrompt(Part):
    """Literal token ids."""

    token_ids: Annotated[tuple[int, ...], list_of(whole(*TOKEN_ID), at_least=1), "the very tokens"]


@dataclass(frozen=True)
class CorpusPrompt(Part):
    """A slice of a corpus. ``offset`` (in tokens) fixes where it starts, else a line is drawn."""

    written = ("corpus",)

    tokens: Annotated[Span, span(*TOKENS), "how many tokens; of a range, drawn per request"]
    corpus: Annotated[str, CORPUS, "held-out source of the standard library", Key(required=True)] = "stdlib"
    offset: Annotated[
        int | None,
        whole(*TOKEN_ID),
        "the token at which it starts: slices of one offset are prefixes of each other",
        Key(default="drawn"),
    ] = None


SimplePrompt = TextPrompt | TokenPrompt | CorpusPrompt
SIMPLE: dict[str, type[Part]] = {"text": TextPrompt, "token_ids": TokenPrompt, "corpus": CorpusPrompt}
PROMPT = "a prompt: text, token_ids or corpus with tokens"


@dataclass(frozen=True)
class SharedPrefixPrompt(Part):
    """One prefix for all requests (of all groups that use its ``name``), and a suffix for each."""

    prefix: Annotated[
        SimplePrompt,
        one_of(PROMPT, SIMPLE, also={"name": form(LABEL)}),
        "what all requests of the group begin with; all groups that give it one `name` share it, and must "
        "describe it alike",
        Key(name="shared_prefix"),
    ]
    suffix: Annotated[SimplePrompt, one_of(PROMPT, SIMPLE), "what follows it, for each request"]
    name: str | None = None

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        if "shared_prefix" in table and isinstance(table["shared_prefix"].value, dict):
            values["name"] = gather.read(table["shared_prefix"].entries(), "name", form(LABEL).read, None)

    def to_dict(self) -> dict[str, Any]:
        plain = super().to_dict()
        if self.name is not None:
            plain["shared_prefix"]["name"] = self.name
        return plain


Prompt = SimplePrompt | SharedPrefixPrompt


@dataclass(frozen=True)
class Turns(Part):
    """Conversations: a round's prompt is its client's whole history and ``input_tokens`` of corpus."""

    clients: Annotated[int, whole(1, 512), "how many conversations"]
    rounds: Annotated[int, whole(1, 512), "of each; one comes as soon as the one before has finished"]
    input_tokens: Annotated[Span, span(*TOKENS), "new tokens of each round"]
    corpus: Annotated[str, CORPUS, "where they are from"] = "stdlib"


@dataclass(frozen=True)
class Arrive(Part):
    """Request n (or client n) comes ``step + n * every`` steps after its group starts, and up to ``jitter`` more, drawn
    for each. A group starts at step 0, or once every request of every group named in ``after`` has finished."""

    step: Annotated[int, whole(*STEPS), "engine steps after the group starts at which its first request comes"] = 0
    every: Annotated[int, whole(*STEPS), "steps between a request and the next"] = 0
    after: Annotated[
        tuple[str, ...],
        one_or_many(TEXT),
        "ids of groups that must have finished, or been aborted, before this one starts",
    ] = ()
    jitter: Annotated[int, whole(*STEPS), "most steps that each request comes later, drawn for each"] = 0
    flush: Annotated[bool, FLAG, "flush the cache right before request 0 (client 0) comes"] = False


def _request_number(item: Item) -> int:
    group = Item(item.doc, item.path[:2], item.doc.data["workload"][item.path[1]])
    requests = Gather().read(group.entries(), "requests", whole(*REQUESTS).read, 1)
    return item.integer(low=0, high=requests - 1)


REQUEST_NUMBER = simple(_request_number, {"type": "integer", "minimum": 0, "maximum": REQUESTS[1] - 1}, 0)


@dataclass(frozen=True)
class Abort(Part):
    """Abort requests of the group (all, if none are named) that many steps after they arrived."""

    after_steps: Annotated[int, whole(*STEPS), "steps from a request's arrival to its end"]
    requests: Annotated[
        tuple[int, ...] | None,
        list_of(REQUEST_NUMBER, at_least=1),
        "numbers, from 0, of those aborted",
        Key(default="all"),
    ] = None


@dataclass(frozen=True)
class WorkloadGroup(Part):
    """Requests alike: ``requests`` of one ``prompt`` description, or the conversations of ``turns``."""

    written = ("id", "turns", "requests", "prompt")

    schema_beside: ClassVar[Schema] = {
        "oneOf": [
            {"required": ["prompt"]},
            {"required": ["turns"], "not": {"anyOf": [{"required": [key]} for key in ("prompt", "requests", "abort")]}},
        ]
    }

    id: Annotated[
        str, form(LABEL), "its requests are `<id>.<n>`, or `<id>.<client>.<round>`", Key(default="`g0`, `g1`, ...")
    ]
    prompt: Annotated[
        Prompt | None, one_of(PROMPT, {"shared_prefix": SharedPrefixPrompt, **SIMPLE}), "what each request sends"
    ] = None
    requests: Annotated[int, whole(*REQUESTS), "how many"] = 1
    turns: Annotated[Turns | None, nested(Turns), "conversations instead of single requests"] = None
    max_new_tokens: Annotated[Span, span(*TOKENS), "longest output; of a range, drawn per request"] = (32, 32)
    temperature: Annotated[float, real(*TEMPERATURE), "of sampling; 0 is greedy"] = 0.0
    top_k: Annotated[int, whole(*TOP_K), "sample among so many tokens; 0: no restriction"] = 0
    top_p: Annotated[float, real(0, 1, above=True), "sample among so much of the probability; 1: no restriction"] = 1.0
    stop_token_ids: Annotated[tuple[int, ...], TOKEN_IDS, "tokens that end a request"] = ()
    stop: Annotated[
        tuple[str, ...], STOPS, "strings that end a request with the token that completes one in its output's text"
    ] = ()
    speculative: Annotated[bool, FLAG, "false: these requests are decoded without drafts"] = True
    arrive: Annotated[Arrive, nested(Arrive), "when they come"] = Arrive()
    seed: Annotated[int | None, SEED, "request n samples with `seed + n`", Key(default="drawn")] = None
    abort: Annotated[Abort | None, nested(Abort), "which requests are aborted, and when", Key(default="never")] = None
    features: Annotated[Features, nested(Features), "what they ask for beside"] = NONE

    @property
    def num_requests(self) -> int:
        """The number of requests that the group makes, every round of a conversation counted."""
        return self.requests * self.features.n if self.turns is None else self.turns.clients * self.turns.rounds

    @property
    def rids(self) -> tuple[str, ...]:
        """Request ids, ``<id>.<n>``, ``<id>.<n>.<completion>`` or ``<id>.<client>.<round>``, client by client."""
        if self.features.n > 1:
            return tuple(f"{self.id}.{n}.{each}" for n in range(self.requests) for each in range(self.features.n))
        if self.turns is None:
            return tuple(f"{self.id}.{n}" for n in range(self.requests))
        rounds = range(self.turns.rounds)
        return tuple(f"{self.id}.{client}.{r}" for client in range(self.turns.clients) for r in rounds)

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        return {"id": f"g{item.path[-1]}"}

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        if ("prompt" in table) == ("turns" in table) and len(table) == len(item.entries()):
            both = ", not both" if "prompt" in table else ""
            gather.note(item.error(f"needs either 'prompt' or 'turns'{both}"), (*item.path, "prompt"))
        for key in ("requests", "abort"):
            if "turns" in table and key in table:
                gather.note(table[key].error("does not go with 'turns'"), table[key].path)
        features = values.get("features")
        if "turns" in table and features is not None and features.n > 1:
            gather.note(table["features"].error("has n, which does not go with 'turns'"), table["features"].path)

    def to_dict(self) -> dict[str, Any]:
        plain = super().to_dict()
        if self.turns is not None:
            del plain["requests"]
        return plain


@dataclass(frozen=True)
class AcceptOracle(Part):
    """How many tokens a verify must accept, the bonus token counted, in each group of speculative requests; at least
    one of the keys is given. Groups of fewer than 8 verifies are not judged, and that is said."""

    schema_beside: ClassVar[Schema] = {"minProperties": 1}

    min_ratio: Annotated[
        float | None,
        real(0, 10, above=True),
        "least part of its cold accept length that a hit of the cache must reach; hits are served again for it",
        Key(default="not compared"),
    ] = None
    least: Annotated[
        float | None, real(1, 1024), "least mean accept length of every group", Key(name="min", default="none")
    ] = None
    drop: Annotated[
        float | None,
        real(0, 1),
        "largest part of a baseline's accept length that may be lost (`docs/baselines.md`)",
        Key(default="the baseline's interval"),
    ] = None

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        if not item.entries():
            gather.note(item.error("needs at least one of 'min', 'drop' and 'min_ratio'"), item.path)


@dataclass(frozen=True)
class OracleSpec(Part):
    """Which oracles judge a run. ``each_step``: look at lossless and draft KV after every step, not only when a request
    is prefilled and when it ends. ``more``: options of oracles that plugins add, by name."""

    lossless: Annotated[bool, FLAG, "every greedy token is the target's argmax, near-ties aside"] = True
    draft_kv: Annotated[bool, FLAG, "draft KV equals that of a whole, cold prefill"] = True
    draft_state: Annotated[
        bool, FLAG, "what a request stores for its next draft, and the tree drafted from it, are the reference's"
    ] = True
    acceptance: Annotated[bool, FLAG, "what was accepted is what the tree and the target's logits say"] = True
    sampling: Annotated[
        bool, FLAG, "sampled tokens lie in the reference's top-k and top-p, and are drawn by its odds"
    ] = True
    ends: Annotated[bool, FLAG, "requests end where their length or a stop says, and stream what they keep"] = True
    turns: Annotated[bool, FLAG, "no request waits while others are served again and again"] = True
    work: Annotated[
        bool, FLAG, "nothing is computed twice, skipped or idle, and what is certain to be cached is found"
    ] = True
    graphs: Annotated[
        bool,
        FLAG,
        "forwards run as graphs of the smallest captured size that holds the batch, and eagerly if none does",
    ] = True
    server: Annotated[
        bool, FLAG, "of a server: it stays alive, what it counts adds up, and its log names no failure"
    ] = True
    ranks: Annotated[
        bool, FLAG, "ranks that do the same agree in batches, tokens, sites and the collectives that they enter"
    ] = True
    pools: Annotated[
        bool, FLAG, "slots and rows have one owner each; locks count holders; what is cached is used and kept"
    ] = True
    each_step: Annotated[
        bool, FLAG, "the first two look after every step, not only after a prefill and at a request's end; slow"
    ] = False
    accept: Annotated[AcceptOracle | None, nullable(nested(AcceptOracle)), "how many tokens verifies must accept"] = (
        None
    )
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def none(cls, **but: bool) -> OracleSpec:
        """No oracle looks, ``but`` those that are switched on by name."""
        off: dict[str, Any] = {each.name: False for each in fields(cls) if each.default is True}
        return cls(**off | but)

    @classmethod
    def read(cls, item: Item, base: OracleSpec | None = None, also: tuple[str, ...] = ()) -> OracleSpec:
        """As any part; a key that is none of ours may be the name of an installed oracle."""
        own = {key.name for key in keys_of(cls)}
        strange = {name: value.value for name, value in item.entries().items() if name not in own}
        added = plugins.names("oracles") if strange else ()
        spec = super().read(item, base, (*also, *added))
        found = {name: value for name, value in strange.items() if name in added}
        return replace(spec, more={**spec.more, **found}) if found else spec

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | self.more


@dataclass(frozen=True)
class Limits(Part):
    """The limits at which a run is stopped: wall seconds, engine steps, MiB of resident memory. A run whose requests
    still advance at a limit of time or steps is ``exceeded``: ``unknown``, or a ``hang`` where the limit is what is
    tested."""

    timeout_s: Annotated[float, real(0, 10**6, above=True), "wall seconds"] = 120.0
    max_steps: Annotated[int, whole(1, 10**9), "engine steps"] = 5000
    memory_mb: Annotated[int, whole(64, 2**24), "MiB of host memory"] = 4096
    exceeded: Annotated[
        Literal["unknown", "hang"],
        choice("unknown", "hang"),
        "what a run is that goes on beyond its seconds or steps; `hang`: it fails, for the limit is what is tested",
    ] = "unknown"


@dataclass(frozen=True)
class Arm(Part):
    """One way to run the scenario. ``None`` means as the scenario says (for ``mode``: as each pack says)."""

    name: str
    revert: Annotated[
        tuple[int, ...],
        list_of(whole(1, 10**9, unread=0), noun="PR", unique=True),
        "fixes to take out, by pull request",
    ] = ()
    engine: Annotated[dict[str, Any], ENGINE, "laid over the scenario's, mapping by mapping"] = field(
        default_factory=dict
    )
    faults: Annotated[tuple[Fault, ...] | None, FAULTS, "in place of the scenario's", Key(default="the same")] = None
    probes: Annotated[tuple[str, ...] | None, TEXTS, "in place of the scenario's", Key(default="the same")] = None
    mode: Annotated[
        ProbeMode | None,
        choice(*get_args(ProbeMode)),
        "of all probes: end at the first finding, or note it and go on",
        Key(default="as each pack says"),
    ] = None
    oracles: Annotated[
        OracleSpec | None,
        overlay(OracleSpec, base="oracles"),
        "single ones switched, the others as the scenario's",
        Key(default="the same"),
    ] = None
    target: Annotated[TargetChoice | None, TARGET, "in place of the scenario's", Key(default="the same")] = None
    not_on: Annotated[dict[str, str], NOT_ON, "targets on which it is not run, beside the scenario's, and why"] = field(
        default_factory=dict
    )

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        return {"name": str(item.path[-1])}


@dataclass(frozen=True)
class Expectation(Part):
    """The verdict an arm must come to; a failure's signature must match one of ``signatures``, if any."""

    verdict: Annotated[Verdict, choice(*get_args(Verdict)), "what the arm must come to", Key(required=True)] = "pass"
    signatures: Annotated[
        tuple[str, ...],
        one_or_many(checked(complaint, "signature", SHAPE), at_least=1),
        "of a failure: `kind@site`, with shell wildcards",
        Key(name="signature"),
    ] = ()

    def met_by(self, verdict: str, signature: str | None, seen: str | None = None) -> bool:
        """Return True if an outcome is the expected one. ``seen``: see ``stated``, which compares signatures."""
        return verdict == self.verdict and (not self.signatures or stated(self.signatures, signature, seen))


RELATION_NAMES = list_of(choice(*RELATIONS), noun="relation", unique=True)


@dataclass(frozen=True)
class TwinSpec(Part):
    """Ways to serve the same requests that must not matter, for `specdebug twins` (`docs/twins.md`)."""

    relations: Annotated[
        tuple[str, ...], RELATION_NAMES, "those that are tried", Key(default="all but `release` that have a meaning")
    ] = ()
    broken: Annotated[
        dict[str, tuple[str, ...]], map_of(RELATION_NAMES, "arm"), "by arm, those that must not hold, which are tried"
    ] = field(default_factory=dict)
    broken_on: Annotated[
        dict[str, dict[str, tuple[str, ...]]],
        map_of(map_of(RELATION_NAMES, "arm"), "target", TARGET_RANGE, at_most=64),
        "the same on other targets, in the place of `broken`",
    ] = field(default_factory=dict)
    logprobs: Annotated[bool, FLAG, "false: log probabilities are not asked for, where an engine has none"] = True


@dataclass(frozen=True)
class Scenario(Part):
    """A scenario file, checked. ``arms`` is never empty and keeps the file's order; ``expect`` has every arm.
    ``overrides`` are engine options from outside the file, laid over those of every arm."""

    written = ("name", "description", "seed", "target", "engine", "workload", "faults", "probes", "oracles", "limits")

    name: Annotated[str, NAME, "words joined by hyphens"]
    workload: Annotated[
        tuple[WorkloadGroup, ...],
        list_of(nested(WorkloadGroup), at_least=1, at_most=MAX_GROUPS, noun="groups"),
        "groups of requests alike",
    ]
    arms: Annotated[
        dict[str, Arm],
        map_of(nested(Arm, null_is_empty=True), "arm", LABEL, at_most=256, example="arms: {fixed: {}}"),
        "what is run, in this order, each in a process of its own",
        Key(default=f"`{DEFAULT_ARM}`"),
    ]
    expect: Annotated[
        dict[str, Expectation],
        map_of(nested(Expectation), "arm"),
        "what each arm must come to",
        Key(default="each must pass"),
    ]
    description: Annotated[str, ANY_TEXT, "what it is about"] = ""
    seed: Annotated[int, SEED, "of everything drawn: prompts, lengths, sampling, garbage"] = 0
    target: Annotated[TargetChoice, TARGET, "what serves the requests"] = DEFAULT
    engine: Annotated[dict[str, Any], ENGINE, "how it is set up"] = field(default_factory=dict)
    faults: Annotated[tuple[Fault, ...], FAULTS, "damage done on purpose"] = ()
    probes: Annotated[tuple[str, ...], TEXTS, "probe packs, later ones over earlier ones"] = ("default",)
    oracles: Annotated[OracleSpec, nested(OracleSpec), "which oracles judge it"] = OracleSpec()
    limits: Annotated[Limits, nested(Limits), "what a run may use before it is stopped"] = Limits()
    not_on: Annotated[
        dict[str, str], NOT_ON, "targets (`vllm`, `sglang==0.5.13`, `sglang<0.5.18`) on which it is not run, and why"
    ] = field(default_factory=dict)
    expect_on: Annotated[
        dict[str, dict[str, Expectation]],
        map_of(map_of(nested(Expectation), "arm"), "target", TARGET_RANGE, at_most=64),
        "of such targets, what an arm must come to there instead",
    ] = field(default_factory=dict)
    twins: Annotated[TwinSpec, nested(TwinSpec), "ways to serve it that must not matter"] = TwinSpec()
    path: Path = Path("<scenario>")
    overrides: dict[str, Any] = field(default_factory=dict)
    source: Doc | None = field(default=None, compare=False, repr=False)

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        arms = {DEFAULT_ARM: Arm(DEFAULT_ARM)}
        return {"arms": arms, "expect": {}, "path": Path(item.doc.path), "source": item.doc}

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        values["expect"] = {**dict.fromkeys(values["arms"], Expectation()), **values["expect"]}

    def where(self, *path: str | int) -> Where:
        """The place in the file of a value, or of the nearest value around it that the file has."""
        return Where(str(self.path)) if self.source is None else self.source.where(*path)

    def where_key(self, *path: str | int) -> Where:
        """Like :meth:`where`, of the key that holds the value."""
        return Where(str(self.path)) if self.source is None else self.source.where_key(*path)

    def target_of(self, arm: str) -> TargetChoice:
        """The target that serves an arm."""
        return self.arms[arm].target or self.target

    def engine_of(self, arm: str) -> dict[str, Any]:
        """Engine options of an arm: the scenario's, over them the arm's, key by key, and ``overrides`` over both."""
        return merge(merge(self.engine, self.arms[arm].engine), self.overrides)

    def laid_over(self, over: Mapping[str, Any]) -> Scenario:
        """The scenario with engine options from outside the file over those of every arm; ``target`` among them is in
        the place of every arm's, ``ready_timeout_s`` that of every server that is started. Raises SpecDebugError for a
        target that is none."""
        options = dict(over)
        target, ready_s = options.pop("target", None), options.pop("ready_timeout_s", None)
        scenario = replace(self, overrides=options)
        scenario = scenario if target is None else scenario.on(parse_target(target))
        return scenario if ready_s is None else scenario.ready_within(ready_s)

    def on(self, target: TargetChoice) -> Scenario:
        """The scenario with a target in the place of every arm's; a release alone takes what the scenario says of that
        engine's processes. Raises SpecDebugError for one that there is not."""
        find_target(target)
        own = self.target
        if isinstance(target, ReleasedEngine) and isinstance(own, ReleasedEngine) and own.kind == target.kind:
            alone = target == ReleasedEngine(release=target.release)
            target = replace(own, release=target.release) if alone else target
        return replace(self, target=target, arms={name: replace(arm, target=None) for name, arm in self.arms.items()})

    def ready_within(self, seconds: float) -> Scenario:
        """The scenario with so many seconds for each server that is started to be ready. Raises SpecDebugError where no
        arm has one."""
        if not any(isinstance(self.target_of(arm), LaunchedServer) for arm in self.arms):
            raise SpecDebugError(f"{self.path}: none of its arms starts a server, which --ready-timeout is for")
        arms = {name: replace(arm, target=ready_within(arm.target, seconds)) for name, arm in self.arms.items()}
        return replace(self, target=ready_within(self.target, seconds), arms=arms)

    def why_not(self, arm: str) -> str | None:
        """Why an arm is not run on its target, in the file's words; None where it is."""
        target = self.target_of(arm)
        return said_of(self.arms[arm].not_on, target) or said_of(self.not_on, target)

    def expectation_of(self, arm: str) -> Expectation | None:
        """What an arm must come to on its target; None where nothing was said of the arm."""
        there = {name: arms[arm] for name, arms in self.expect_on.items() if arm in arms}
        return said_of(there, self.target_of(arm)) or self.expect.get(arm)

    def broken_twins(self, arm: str) -> tuple[str, ...]:
        """The relations that must not hold of an arm on its target."""
        there = said_of(self.twins.broken_on, self.target_of(arm))
        return (self.twins.broken if there is None else there).get(arm, ())

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str | Path = "<scenario>") -> Scenario:
        """Inverse of :meth:`to_dict`, but for ``overrides``, for which the grammar has no place; also after a trip
        through JSON. References to toggles and packs are not looked up again. Raises ContentError as a file would."""
        return replace(read_scenario(parse_yaml(as_json(data), str(path))), source=None)


def read_scenario(doc: Doc) -> Scenario:
    """The scenario a document holds, its references not followed. Raises ContentErrors, ``partial`` with defaults."""
    return Scenario.read(doc.root)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``: mappings are merged key by key, anything else (lists, null too) replaces."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
