"""The search for a culprit: what is known picks the next trial, until the answer is certain.

A test that fails at random whatever is switched on can spell a culprit by chance: before one is named, trials with
nothing switched on (:data:`CONTROL`) are run until, if they failed as often as with the culprit, one would have shown
it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials import campaign
from specdebug.campaign.trials.campaign import Candidate
from specdebug.logs.scan import tells_of_damage
from specdebug.search.posterior import Answer, BayesianSearch, Rates

LEAD = 2  # failures that the leading signature needs before it is chosen; it must also be ahead of every other
OPENING = 16  # trials after which it is chosen in any case
SHARE = 1 / 3
"""Damage takes the place of a followed failure that is none, after the opening, if seen this often beside it."""
HOPELESS = 3  # untestable trials, none of them testable, after which switching everything on is given up


@dataclass(frozen=True)
class SeenSignature:
    """A way to fail, how often it was seen, and if it is (one of those) followed."""

    signature: str
    failures: int
    followed: bool


class Clusters:
    """Counts the ways to fail, and picks one to follow, or those that fit ``pattern`` (shell wildcards): the most
    frequent of the first trials, which switch everything on, of those that tell of damage if there are any. A failure
    with another signature is no verdict on it if it ended the run, for it may only have come first, nor if the followed
    one was found after it. An exception or exit code gives way to damage that shows within ``OPENING`` trials, or later
    if not rare.

    ``settled``: the opening is over; ``untestable``: trials that came to no verdict at all.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = pattern
        self._counts: Counter[str] = Counter()
        self._trials = 0
        self._leader: str | None = None
        self.untestable = 0
        self.settled = pattern is not None

    @property
    def followed(self) -> str | None:
        """Return the signature (or pattern) that is followed, None as long as nothing has failed."""
        return self._leader if self._pattern is None else self._pattern

    @property
    def chosen(self) -> str:
        """Return how the followed signature was chosen, in words that fit behind it."""
        if self._pattern is not None:
            return "as --signature or the scenario states"
        if self._leader is None:
            return ""
        kind = " that tell of damage" if tells_of_damage(self._leader) else ", none of which tells of damage"
        return f"the most frequent of the first trials' failures{kind}"

    @property
    def seen(self) -> tuple[SeenSignature, ...]:
        return tuple(SeenSignature(name, count, self.matches(name)) for name, count in self._counts.most_common())

    def matches(self, signature: str) -> bool:
        return signature == self._leader if self._pattern is None else fnmatchcase(signature, self._pattern)

    def add(self, result: TrialResult) -> None:
        self._trials += 1
        self.untestable += result.outcome == "untestable"
        if result.signature is not None:
            self._counts[result.signature] += 1
        if self._pattern is None and (not self.settled or self._leader is None or self._may_give_way()):
            self._lead()

    def _may_give_way(self) -> bool:
        """Return True if the followed failure tells of no damage, and another does that is no stray."""
        if self._leader is None or tells_of_damage(self._leader):
            return False
        damage = max((count for name, count in self._counts.items() if tells_of_damage(name)), default=0)
        return damage > 0 and (self._trials <= OPENING or damage >= max(LEAD, SHARE * self._counts[self._leader]))

    def _lead(self) -> None:
        telling = [(name, count) for name, count in self._counts.most_common() if tells_of_damage(name)]
        ranked = telling or self._counts.most_common(2)  # of equals the one seen first
        self._leader = ranked[0][0] if ranked else None
        ahead = ranked[0][1] - (ranked[1][1] if len(ranked) > 1 else 0) if ranked else 0
        self.settled = (
            self.settled
            or (ahead > 0 and ranked[0][1] >= LEAD)
            or self._trials >= OPENING
            or self._trials == self.untestable >= HOPELESS
        )

    def verdict(self, result: TrialResult) -> bool | None:
        """Return what a result says of the followed failure; None for nothing."""
        if result.outcome == "pass":
            return False
        if result.signature is None:
            return None
        if self.matches(result.signature):
            return True
        went_on = result.besides is not None and not any(map(self.matches, result.besides))
        return False if went_on else None


CONTROL = frozenset[str]()  # nothing switched on
DOUBT = 0.05  # chance that controls all pass although they fail as often as what is blamed
UNTESTABLE = 20  # trials after which a search ends that has not seen a single testable one
IDLE_PASSES = 3  # passed trials in which a candidate that never took effect was switched on, after which it is left out
IDLE_TRIALS = 8  # the same of trials however they ended: a failure may have come before its lines
IDLE = "its lines never ran"
HELD = "a trial with it starts the engine anew, and the others are not acquitted"


@dataclass(frozen=True)
class Standing:
    """The state of a search.

    Attributes:
        trials: that count; ``resumed`` of these were in the journal already.
        followed: the signature that the search is after; None as long as nothing failed. ``chosen`` says why.
        posterior: the likeliest culprit sets; the empty one says "none of these".
    """

    trials: int
    resumed: int
    running: int
    followed: str | None
    signatures: tuple[SeenSignature, ...]
    untestable: int
    posterior: tuple[tuple[frozenset[str], float], ...]
    rates: Rates
    chosen: str = ""


@dataclass(frozen=True)
class Findings:
    """The result of a search.

    Attributes:
        reason: "answered", "unproven", "not-tried", "stalled", "untestable", "max-trials", "interrupted" or "trouble".
        answer: None when it ended undecided, or "unproven": it would be that no candidate is to blame, and nothing
            shows that the candidates were ever switched on.
        shown_by: a trial that failed as followed, if possible with the culprits switched on, and with little besides.
        silent: trials that passed with all of the opening switched on; of several sets (or, without an opening, of each
            candidate alone) with the one that passed least often.
        untestable: what was switched on in trials that were untestable, each set once.
        not_tried: the candidates that are neither convicted nor acquitted, and why.
    """

    answer: Answer | None
    reason: str
    standing: Standing
    shown_by: Trial | None
    silent: int
    untestable: tuple[frozenset[str], ...]
    trouble: SpecDebugError | None = None
    not_tried: Mapping[str, str] = field(default_factory=dict)


Watcher = campaign.Watcher[Standing]


@dataclass
class CulpritSearch:
    """One search among ``candidates``; a campaign makes its trials.

    ``chooser`` makes what picks trials among some candidates, in its first state. The first trials switch the sets of
    ``opening`` on in turn, until it is known how things fail; without any it picks these, too. Signatures that fit
    ``pattern`` are followed, instead of the most frequent. ``proven``: what a trial switches on takes effect; else no
    candidate is acquitted. Dear candidates are held back until the others are acquitted.
    """

    candidates: Sequence[Candidate]
    chooser: Callable[[Sequence[str]], BayesianSearch]
    _: KW_ONLY
    opening: Sequence[frozenset[str]]
    max_trials: int
    pattern: str | None = None
    proven: bool = True

    def __post_init__(self) -> None:
        self._held = {candidate.id for candidate in self.candidates if candidate.dear}
        self._left = set[str]()  # their lines never ran
        self._names = self._suspected()
        self._chooser = self.chooser(self._names)
        self._ever_ran: set[str] = set()
        self._tells = False
        self._idle, self._idle_passes = Counter[str](), Counter[str]()
        self._clusters = Clusters(self.pattern)
        self._counted: list[tuple[Trial, TrialResult]] = []
        self._resumed = 0
        self._masked = False

    def end(self, reason: str, trouble: SpecDebugError | None = None) -> Findings:
        answer = self._chooser.answer if reason == "answered" else None
        if answer is not None and not answer.culprits and not self.proven:
            reason, answer = "unproven", None
        needed = answer.culprits if answer is not None else frozenset()
        shown = (trial for trial, result in self._counted if self._clusters.verdict(result) is True)
        shown_by = min(shown, key=lambda t: (not needed <= t.reverted, len(t.reverted), t.number), default=None)
        tried = frozenset(self._names)
        passed = Counter(trial.reverted & tried for trial, result in self._counted if result.outcome == "pass")
        silent = min((passed[each] for each in self._opening or map(frozenset, zip(self._names))), default=0)
        untestable = dict.fromkeys(trial.reverted for trial, r in self._counted if r.outcome == "untestable")
        idle = {one.id: IDLE if one.id in self._left else HELD for one in self.candidates if one.id not in tried}
        return Findings(answer, reason, self.standing(0), shown_by, silent, tuple(untestable), trouble, idle)

    def _suspected(self) -> list[str]:
        """The candidates that trials switch on: not those left out, and dear ones once no other is left to blame."""
        there = [candidate.id for candidate in self.candidates if candidate.id not in self._left]
        cheap = [name for name in there if name not in self._held]
        if not cheap:
            self._held.clear()
        return cheap or there

    @property
    def _opening(self) -> list[frozenset[str]]:
        """The sets of the opening, without what is left out."""
        return [each for each in (one & frozenset(self._names) for one in self.opening) if each]

    def pick(self, pending: Sequence[frozenset[str]]) -> frozenset[str]:
        if self._opening and not self._clusters.settled:
            return self._opening[(len(self._counted) + len(pending)) % len(self._opening)]
        if pending.count(CONTROL) < self._controls_due():
            return CONTROL
        if self._acquits_unseen():
            unseen = frozenset(self._unseen())
            return next(filter(None, (each & unseen for each in self._opening)), frozenset([min(unseen)]))
        return self._chooser.next_trial([each & frozenset(self._names) for each in pending])

    def take(self, trial: Trial, result: TrialResult, kept: bool) -> str | None:
        self._resumed += kept
        followed = self._clusters.followed
        self._clusters.add(result)
        self._counted.append((trial, result))
        verdict = self._clusters.verdict(result)
        self._masked = self._masked or verdict is None
        others = result.counted and self._leave_out(trial, result)
        if others and not self._names:
            return "not-tried"
        if others or (followed is not None and self._clusters.followed != followed):
            # Another signature leads, and every verdict so far was on the wrong one; or others are suspected now.
            self._begin_anew()
        else:
            self._chooser.observe(result.in_force(trial), verdict)
        if self._held and self._acquits():
            self._held.clear()
            self._names = self._suspected()
            self._begin_anew()
        if self._chooser.answer is not None and not self._controls_due() and not self._acquits_unseen():
            return "answered"
        if len(self._counted) >= self.max_trials:
            return "max-trials"
        if len(self._counted) == self._clusters.untestable >= UNTESTABLE:
            return "untestable"
        return "stalled" if self._masked and self._clusters.settled and self._chooser.stalled else None

    def _begin_anew(self) -> None:
        """Tell a new chooser, of those who are suspected now, of every trial."""
        self._chooser = self.chooser(self._names)
        for trial, result in self._counted:
            self._chooser.observe(result.in_force(trial), self._clusters.verdict(result))

    def _unseen(self) -> list[str]:
        """The candidates that took effect in no trial yet, where trials tell."""
        return [name for name in self._names if name not in self._ever_ran] if self._tells else []

    def _acquits_unseen(self) -> bool:
        """Return True if the answer would be that there is no culprit, and some candidate was never seen to run."""
        return self._acquits() and bool(self._unseen())

    def _acquits(self) -> bool:
        """Return True if the answer would be that there is no culprit."""
        return self._chooser.answer is not None and not self._chooser.answer.culprits

    def _leave_out(self, trial: Trial, result: TrialResult) -> bool:
        """Leave out candidates that were switched on again and again and never took effect; True if others are left."""
        self._tells = True
        self._ever_ran |= result.ran
        for name in trial.reverted - self._ever_ran:
            self._idle[name] += 1
            self._idle_passes[name] += result.outcome == "pass"
        idle = {
            name for name in self._idle if self._idle[name] >= IDLE_TRIALS or self._idle_passes[name] >= IDLE_PASSES
        }
        before, self._left = self._names, idle - self._ever_ran  # one under way may yet show that its lines run
        self._names = self._suspected()
        return self._names != before

    def _controls_due(self) -> int:
        """Return how many trials with nothing switched on must still count before the chooser's answer is given."""
        answer = self._chooser.answer
        if answer is None or not answer.culprits:
            return 0
        spared = chance = 1.0 - self._chooser.rates.manifest.mean
        wanted = 1
        while chance > DOUBT:  # multiplied, for logarithms differ by a last bit from processor to processor
            chance, wanted = chance * spared, wanted + 1
        had = sum(r.in_force(t) == CONTROL and self._clusters.verdict(r) is not None for t, r in self._counted)
        return max(wanted - had, 0)

    def standing(self, running: int) -> Standing:
        return Standing(
            trials=len(self._counted),
            resumed=self._resumed,
            running=running,
            followed=self._clusters.followed,
            signatures=self._clusters.seen,
            untestable=self._clusters.untestable,
            posterior=tuple(self._chooser.posterior(5)),
            rates=self._chooser.rates,
            chosen=self._clusters.chosen,
        )
