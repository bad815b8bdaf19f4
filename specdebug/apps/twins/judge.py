"""What a pair's two outcomes come to, once a reference was asked where they part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from specdebug.apps.twins.plan import TwinPair
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import SpecDebugError, one_line
from specdebug.bundle import partings
from specdebug.run import weighing
from specdebug.scenario.reworked import AGAIN, NEIGHBOUR
from specdebug.scenario.workload import Workload
from specdebug.targets.registry import find_target
from specdebug.targets.requests import NOMINAL_LOGIT
from specdebug.verdict.outcome import Outcome, RequestResult
from specdebug.verdict.twins import Compared, Rules, TokenWord, TwinBreak, beside_reference, compare
from specdebug.workers.home import Home
from specdebug.workers.job import Job
from specdebug.workers.pool import WorkerPool, run_one

Text = tuple[tuple[int, ...], int]
"""Ids, and the position from which a reference is asked about them."""
Words = dict[Text, list[TokenWord]]
_WEIGH_S, _WEIGH_MB = 300.0, 8192.0


class Inquiry(NamedTuple):
    """A reference, as a worker makes it: its model, by which kinds in turn, in which home, for which dtype."""

    model: str
    by: tuple[str, ...]
    home: Home | None
    dtype: str


@dataclass
class JudgedPair:
    """A pair, and what its two servings came to.

    Attributes:
        outcomes: of the arm as it is and of its twin, as far as they were run.
        why: why it was not compared; empty where it was.
        reference: what said which side is wrong; empty where it was not asked, or cannot be had.
    """

    pair: TwinPair
    workload: Workload
    outcomes: tuple[Outcome, ...] = ()
    why: str = ""
    compared: Compared = field(default_factory=Compared)
    reference: str = ""

    @property
    def breaks(self) -> list[TwinBreak]:
        """The breaks that nothing excuses."""
        return [each for each in self.compared.breaks if not each.excused]

    @property
    def excused(self) -> list[TwinBreak]:
        return [each for each in self.compared.breaks if each.excused]

    @property
    def served(self) -> tuple[dict[str, RequestResult], dict[str, RequestResult]]:
        """The requests of both servings, by their ids in the workload."""
        sides = [{each.rid: each for each in outcome.requests} for outcome in self.outcomes]
        first = sides[0]
        other = sides[1] if len(sides) > 1 else {}
        if self.pair.other is not None and self.pair.other.rework == "again":
            other = {rid.removeprefix(AGAIN): each for rid, each in other.items() if rid.startswith(AGAIN)}
        return first, {rid: each for rid, each in other.items() if not rid.startswith(NEIGHBOUR)}

    def prompts(self) -> dict[str, tuple[int, ...]]:
        """The whole prompt of each request, as its first serving had it."""
        first, prompts = self.served[0], dict[str, tuple[int, ...]]()
        for each in self.workload.requests:
            before = each.continues
            history = () if before is None else (*prompts.get(before, ()), *first[before].output_ids)
            prompts[each.rid] = (*history, *each.new_ids)
            if each.rid not in first:
                break
        return prompts


def judged(pairs: Sequence[JudgedPair], pool: WorkerPool) -> None:
    """Compare what each pair served, and have references say of what differs which side is wrong. Raises
    WorkerStartError, and KeyboardInterrupt once this process was asked to end."""
    for each in pairs:
        each.why = each.why or _unbuilt(each)
        failures = [outcome.signature if outcome.verdict == "fail" else None for outcome in each.outcomes]
        if not each.why and len(failures) == 2 and (failures[0] is None) != (failures[1] is None):
            each.compared = Compared([TwinBreak("", "runs", 0, failures[0], failures[1])])
        elif not each.why:
            each.why = _trouble(each) or _unchanged(each)
    open_pairs = [each for each in pairs if not (each.why or each.compared.breaks)]
    for each in open_pairs:
        if each.pair.other is not None:
            each.compared = compare(*each.served, rules_of(each))
    asked: dict[Inquiry, dict[Text, None]] = {}
    about = [(each, question_of(each)) for each in open_pairs if list(_texts(each))]
    for each, question in about:
        asked.setdefault(question, {}).update(dict.fromkeys(_texts(each)))
    words = {question: ask(pool, question, list(texts)) for question, texts in asked.items()}
    for each, question in about:
        each.reference, told = words[question]
        _weigh(each, told)
    _weigh_drafts(open_pairs, pool)
    for each in open_pairs:
        if not each.compared.requests:
            each.why = each.why or "none of its requests can be compared"


def rules_of(each: JudgedPair) -> Rules:
    """What must stay of a pair."""
    from specdebug.run.oracles.lossless import TIE_MARGIN

    pair, dtype = each.pair, each.pair.base.asked.dtype
    requests = each.workload.requests
    # of top_k 1 every draw is the likeliest token
    sampled = {request.rid for request in requests if request.sampling.temperature and request.sampling.top_k != 1}
    return Rules(
        keeps=[what for what in pair.relation.keeps if what not in pair.twin.unlike],
        continues={request.rid: request.continues for request in requests},
        drawn=sampled,
        steered={request.rid for request in requests if request.sampling.features.steers},
        coins=pair.twin.coins and dtype == "float32",  # how often rounding tips one is not known in half precision
        allowed=TIE_MARGIN[dtype] * NOMINAL_LOGIT,
    )


def _unbuilt(each: JudgedPair) -> str:
    """Why there is no twin, if its engine cannot be built so."""
    twin = each.outcomes[1] if len(each.outcomes) > 1 else None
    if twin is None or twin.verdict != "fail" or twin.requests or each.outcomes[0].verdict == "fail":
        return ""
    return f"its twin's engine cannot be built: {one_line(twin.detail, 300)}"


def _trouble(each: JudgedPair) -> str:
    """Why an outcome cannot be compared with another; empty where all can."""
    for name, outcome in zip(("the arm", "its twin"), each.outcomes, strict=False):
        if outcome.verdict == "fail":
            both = "both fail by themselves" if each.pair.other is not None else f"{name} fails by itself"
            return f"{both}: {outcome.signature}: {outcome.detail}"
        if outcome.unavailable or not outcome.complete:
            return f"{name} was not served to its end: {outcome.detail or 'not every request ended'}"
        if outcome.verdict == "unknown" and not each.pair.base.toggles:
            return f"{name} cannot be judged: {outcome.detail}"
    return ""


def _unchanged(each: JudgedPair) -> str:
    """Why two servings were none that differ; empty where they did."""
    name = each.pair.relation.name
    if name == "cold" and not each.outcomes[0].metrics.cached_tokens:
        return "no request found anything in the cache"
    if name == "retracted" and not any(request.retractions for request in each.outcomes[1].requests):
        return "no request was set back, for none ran beside another for long enough"
    neighbours = [request for request in each.outcomes[-1].requests if request.rid.startswith(NEIGHBOUR)]
    if name == "interrupted" and not any(request.finish_reason == "abort" for request in neighbours):
        return "every neighbour had ended before it was to be aborted"
    return ""


def question_of(each: JudgedPair) -> Inquiry:
    """What is asked about a pair: the dense model of ours where it can read the checkpoint, else transformers'; the
    relation ``reference`` of another engine asks transformers' alone."""
    run = each.pair.base
    asked, home = run.asked, find_target(run.target).home()
    by: tuple[str, ...] = (weighing.DENSE,) if asked.dense else ()
    if home is not None and not asked.quantised:
        alone = each.pair.relation.of == "model"
        by = (weighing.HUGGING_FACE,) if alone else (*by, weighing.HUGGING_FACE)
    return Inquiry(asked.model, by, home, asked.dtype)


def _texts(each: JudgedPair) -> Iterator[Text]:
    """All that a reference is asked about a pair."""
    prompts, (first, _) = each.prompts(), each.served
    if each.pair.relation.of == "model":
        rules = rules_of(each)
        skipped = {*rules.drawn, *rules.steered}
        for rid, one in first.items():
            if rid in prompts and rid not in skipped and one.output_ids:
                yield (*prompts[rid], *one.output_ids), len(prompts[rid])
    for broken in each.compared.breaks:
        if broken.weighs and broken.rid in prompts:
            yield from _sides(each, broken, prompts)


def _sides(each: JudgedPair, broken: TwinBreak, prompts: Mapping[str, tuple[int, ...]]) -> tuple[Text, Text]:
    """The texts that end with each side's token at a break."""
    output = each.served[0][broken.rid].output_ids
    before = (*prompts[broken.rid], *output[: broken.position])
    tokens = (broken.left, broken.right) if broken.what == "tokens" else (output[broken.position],) * 2
    one, other = (((*before, token), len(before)) for token in tokens)
    return one, other


def ask(pool: WorkerPool, question: Inquiry, texts: Sequence[Text]) -> tuple[str, Words]:
    """The reference that could be made, and its words on texts; nothing where none could."""
    from specdebug.run.oracles.lossless import TIE_MARGIN

    if not question.by:
        return "", {}
    try:
        folder = str(checkpoint_path(question.model).resolve())
    except SpecDebugError:
        return "", {}
    payload = {"model": question.model, "folder": folder, "by": question.by, "texts": list(texts)}
    job = Job("asking the reference", weighing.TARGET, payload, _WEIGH_S, _WEIGH_MB, home=question.home)
    events, _ = run_one(pool, job)
    name, found, margin = "", Words(), TIE_MARGIN[question.dtype]
    for event in events:
        if event["event"] == "asked":
            name = event["reference"]
        elif event["event"] == "weighed":
            rows = [TokenWord(best, gap, margin * size, own) for best, gap, size, own in event["rows"]]
            found[texts[event["number"]]] = rows
    return name, found


def _weigh(each: JudgedPair, told: Words) -> None:
    """Take in what the reference said."""
    prompts, rules = each.prompts(), rules_of(each)
    if each.pair.relation.of == "model":
        if not told:
            each.why = "there is no reference that can read the checkpoint"
            return
        first = each.served[0]
        whole = {rid: (*prompts[rid], *one.output_ids) for rid, one in first.items() if rid in prompts}
        texts = {rid: (ids, len(prompts[rid])) for rid, ids in whole.items()}
        every = {rid: told[text] for rid, text in texts.items() if text in told}
        each.compared = beside_reference(first, every, rules)
        return
    breaks = []
    for broken in each.compared.breaks:
        if broken.weighs and broken.rid in prompts:
            sides = [told.get(text) for text in _sides(each, broken, prompts)]
            if sides[0] and sides[1]:
                broken = broken.judged(sides[0][0], sides[1][0], rules.allowed)
        breaks.append(broken)
    each.compared.breaks = breaks


def _weigh_drafts(pairs: Sequence[JudgedPair], pool: WorkerPool) -> None:
    """Excuse accept lengths that a near-tie among drafts explains, by the dense draft."""
    for each in pairs:
        run = each.pair.base
        narrow = [broken for broken in each.compared.breaks if broken.what == "accept lengths"]
        if not narrow or run.shape.tree is None or not run.asked.dense:
            continue
        found = [(broken, parting) for broken in narrow if (parting := _parting(each, broken)) is not None]
        payload: dict[str, Any] = {"shape": run.shape, "partings": [parting for _, parting in found]}
        events, _ = run_one(pool, Job("asking the draft", partings.TARGET, payload, _WEIGH_S, _WEIGH_MB))
        told = {event["number"]: event for event in events if event["event"] == "weighed"}
        for number, (broken, _) in enumerate(found):
            if number in told and told[number]["gap"] <= told[number]["allowed"]:
                at = each.compared.breaks.index(broken)
                each.compared.breaks[at] = replace(broken, excused=True)


def _parting(each: JudgedPair, broken: TwinBreak) -> partings.Parting | None:
    """Where two servings that gave the same tokens accepted another number of drafts."""
    one, counts = each.served[0][broken.rid], (broken.left, broken.right)
    if None in counts:
        return None
    done, depth = 1 + sum(one.accept_lengths[: broken.position]), min(counts)
    ids = (*each.prompts()[broken.rid], *one.output_ids[:done])
    path = one.output_ids[done : done + depth]
    return partings.Parting(0, "draft", broken.rid, done + depth - 1, *counts, ids, path, depth)
