"""Make a failing thing smaller while it keeps failing in the same way, by trials that fail only some of the time.

Pure search: the caller says what the thing is, what can be taken away from it, and how it is tried (``space.py``). The
method is that of probabilistic delta debugging (Wang et al., "Probabilistic Delta Debugging", ESEC/FSE 2021), which
keeps for every element a probability that it is needed and tries next what promises most to go, carried over to flaky
trials: a trial shifts probabilities by its likelihood ratio, so none is repeated more often than what it decides is
worth.
"""

from __future__ import annotations

from specdebug.search.minimise.minimiser import Minimiser, MinimiseWatcher, StageResult, Summary
from specdebug.search.minimise.rates import TrialRates
from specdebug.search.minimise.subset import Probe, SubsetSearch

__all__ = ["MinimiseWatcher", "Minimiser", "Probe", "StageResult", "SubsetSearch", "Summary", "TrialRates"]
