"""Scenarios: read from YAML, checked as a whole, ready to run.

``load_scenario`` finds everything that can be found wrong without a checkpoint or a GPU, in a few milliseconds and
without importing torch, and says where it stands. The grammar is ``scenarios/README.md``.
"""

from __future__ import annotations

from pathlib import Path

from specdebug.base.errors import ContentError, ContentErrors
from specdebug.base.yamlio import Doc, load_yaml
from specdebug.scenario.checks import KnownNames, check_scenario, problems_of
from specdebug.scenario.grammar import Scenario, json_schema, read_scenario

__all__ = ["KnownNames", "Scenario", "json_schema", "load_scenario", "scenario_of"]


def load_scenario(path: str | Path, registry: KnownNames | None = None) -> Scenario:
    """Read and check the scenario in ``path``. ``registry`` holds the toggles and packs it may refer to; without one,
    such names are taken on trust. Raises ContentError; its ``problems`` are all that is wrong."""
    try:
        doc = load_yaml(path)
    except ContentErrors as errors:  # it is YAML, but for duplicate keys
        try:
            scenario_of(errors.partial, registry)
        except ContentError as more:
            raise ContentErrors((*errors.problems, *more.problems)) from None
        raise
    return scenario_of(doc, registry)


def scenario_of(doc: Doc, registry: KnownNames | None = None) -> Scenario:
    """Like ``load_scenario``, of a document already parsed."""
    try:
        scenario = read_scenario(doc)
    except ContentErrors as errors:
        if errors.partial is None:
            raise
        broken = [problem.path for problem in errors.problems if problem.path is not None]
        raise ContentErrors((*errors.problems, *problems_of(errors.partial, registry, broken))) from None
    check_scenario(scenario, registry)
    return scenario
