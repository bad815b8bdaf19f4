"""What of a run is not the engine's own code stands in the report of every search and matrix over such runs."""

from __future__ import annotations

import html

from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix, FaultRun
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.loops.verify import Matrix, ToggleCheck, plan_matrix
from specdebug.faults.catalogue import CLASSES
from specdebug.report.faults import faults_report
from specdebug.report.html.page import page
from specdebug.report.toggles import matrix_report
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome
from tests.run.fakes import text_of

PARTS = ["graphs: called again", "a.kernel", "b.kernel"]
SHORT = "in place of the engine's own GPU code: graphs; 2 stand-ins (see --json)"
SCENARIO = """
name: searched
target: {{launch: {command}, request_timeout_s: 30}}
probes: []
workload:
  - {{id: a, requests: 2, prompt: {{token_ids: [5, 6]}}, max_new_tokens: 6}}
oracles: {{lossless: false, sampling: false}}
"""


def test_the_matrices_tell_it() -> None:
    outcomes = [Outcome("pass", None, None, "", None, not_engine_code=tuple(parts)) for parts in (PARTS[:2], PARTS[1:])]
    rows = CaseCheck(Case(next(iter(CLASSES.values()))), (FaultRun(0, outcomes[1], "row"),))
    faults = faults_report(FaultMatrix((rows,), (FaultRun(0, outcomes[0]),)), 1.0)
    assert faults.document["not_engine_code"] == PARTS
    assert SHORT in text_of(faults)
    assert "; ".join(PARTS) in html.unescape(page(faults))
    library = Library()
    toggle, (run_, *_) = plan_matrix(library, library.toggles([27338]), 1)[0]
    ended = ArmResult(run_, Outcome("pass", None, None, "", None, not_engine_code=tuple(PARTS)))
    fixes = matrix_report(Matrix((ToggleCheck(toggle, (ended,), (ended,)),), False))
    assert fixes.document[0]["not_engine_code"] == PARTS
    assert SHORT in text_of(fixes)
