"""The Bayesian search for what makes a flaky failure appear. Pure: it proposes trials and is told their outcomes."""

from specdebug.search.bisect.belief import Rate, Rates
from specdebug.search.bisect.bisector import Bisector, openings
from specdebug.search.bisect.nuisance import Prior
from specdebug.search.bisect.ordered import OrderedBisector
from specdebug.search.bisect.search import Answer, BayesianSearch

__all__ = ["Answer", "BayesianSearch", "Bisector", "OrderedBisector", "Prior", "Rate", "Rates", "openings"]
