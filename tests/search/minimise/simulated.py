"""Things that fail when they have all they need, for tests of the search."""

import random

from specdebug.base.trial import TrialResult
from specdebug.search.minimise import MinimiseWatcher
from tests.campaign.trials import searches


class Stage:
    """Elements numbered from 0, some sets of which cannot go together."""

    def __init__(self, whole, title="parts", impossible=()):
        self.whole, self.title, self.impossible = frozenset(whole), title, impossible
        self.order = sorted(self.whole)
        self.labels = [f"{title}-{one}" for one in self.order]

    def without(self, removed):
        if any(pair <= removed for pair in self.impossible) or len(removed) == len(self.order):
            return None
        return self.whole - {self.order[index] for index in removed}


class Space:
    """Two stages: the even elements' turn, then all that are left."""

    def __init__(self, size, impossible=()):
        self.start = frozenset(range(size))
        self._left, self._stages, self._stage = self.start, ["first", "second"], None
        self._impossible = impossible

    def next_stage(self):
        if not self._stages:
            return None
        title = self._stages.pop(0)
        self._stage = Stage(self._left, title, self._impossible if title == "first" else ())
        return self._stage

    def took(self, removed, confirmed):
        self._left = self._stage.without(removed)


class Source(searches.Source):
    """Fails with ``nan@x`` at ``rate`` when ``needed`` is there, with ``oob@y`` at ``other`` when anything is; the last
    trial that was started ends first."""

    def __init__(self, needed, rate=1.0, other=0.0, false=0.0, capacity=1, stop_after=10**9):
        super().__init__(self.result, capacity, order=None, stop_after=stop_after)
        self.needed, self.rate, self.other, self.false = frozenset(needed), rate, other, false
        self._left = {}

    def leave(self, number, left):
        self._left[number] = left

    def result(self, trial):
        signature = self.signature(self._left.pop(trial.number), trial.seed)
        return TrialResult("pass" if signature is None else "fail", signature, 0.0)

    def signature(self, left, seed):
        draw = random.Random(f"{seed}:{sorted(left)}")
        signature = "oob@y" if draw.random() < self.other else None
        if draw.random() < (self.rate if self.needed <= left else self.false):
            signature = "nan@x"
        return signature


class Watcher(MinimiseWatcher):
    """Counts what it is told."""

    def __init__(self):
        self.told = []

    def opening(self, *said):
        self.told.append("opening")

    def tried(self, *said):
        self.told.append("tried")

    def ended(self, step):
        self.told.append("ended")

    def closing(self, *said):
        self.told.append("closing")
