"""The Bayesian search for what makes a flaky failure appear. Pure: it proposes trials and is told their outcomes."""

from specdebug.bisect.belief import Rate, Rates
from specdebug.bisect.bisector import Bisector, openings
from specdebug.bisect.nuisance import Prior
from specdebug.bisect.ordered import OrderedBisector
from specdebug.bisect.search import Answer, BayesianSearch

__all__ = ["Answer", "BayesianSearch", "Bisector", "OrderedBisector", "Prior", "Rate", "Rates", "openings"]
