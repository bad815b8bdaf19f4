"""Make a failing thing smaller while it keeps failing in the same way, by trials that fail only some of the time.

Pure search: what the thing is, what can be taken away from it, and how it is tried, is the caller's (:class:`Space`,
:class:`Trials`). The method is that of probabilistic delta debugging (Wang et al., "Probabilistic Delta Debugging",
ESEC/FSE 2021), which keeps for every element a probability that it is needed and tries next what promises most to go,
carried over to flaky trials: a trial shifts probabilities by its likelihood ratio, so no trial is repeated more often
than what it decides is worth.
"""

from __future__ import annotations

from specdebug.minimise.belief import NeedBelief
from specdebug.minimise.minimiser import Minimiser, MinimiseWatcher, Reason, StageResult, Summary
from specdebug.minimise.rates import TrialRates
from specdebug.minimise.space import Attempt, Seen, Space, Stage, Trials
from specdebug.minimise.subset import Probe, SubsetSearch

__all__ = [
    "Attempt",
    "MinimiseWatcher",
    "Minimiser",
    "NeedBelief",
    "Probe",
    "Reason",
    "Seen",
    "Space",
    "Stage",
    "StageResult",
    "SubsetSearch",
    "Summary",
    "TrialRates",
    "Trials",
]
