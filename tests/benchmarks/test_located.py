"""Which stages a signature may name, of what is broken."""

from __future__ import annotations

import dataclasses
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from benchmarks.located import AFTER, BELONGS, STAGES_OF, Broken, caught, is_right, shipped, stages_named, stages_of
from specdebug.campaign.loops.replay import ArmResult
from specdebug.engine.sites import SITES
from specdebug.mutants.find import ROOT, all_mutants
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Located, Outcome, Violation

CALLER = "graph.extend_runner.ExtendGraphRunner._plan"
SHARED = ("attention", "kv_pool")


def result(signature: str, **located: Any) -> ArmResult:
    outcome = Outcome("fail", signature, signature.partition("@")[2], "", 1)
    if located:
        place = Located(1, None, tensor="", seen="mismatch@request", twin="", **located)
        outcome = dataclasses.replace(outcome, located=place)
    (broken, *_) = shipped(Library())
    return ArmResult(broken.run, outcome)


def test_files_and_sites_are_those_of_the_engine() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "engine").rglob("*.py")}
    assert all(any(fnmatchcase(file, glob) for file in files) for glob in STAGES_OF)
    stages = {stage for some in STAGES_OF.values() for stage in some}
    assert stages <= set(AFTER)
    assert {stage for some in AFTER.values() for stage in some} <= set(AFTER)
    prefixes = {name.partition(".")[0] for name in SITES} - set(SHARED)
    assert {BELONGS.get(prefix, prefix) for prefix in prefixes} <= set(AFTER)


@pytest.mark.parametrize(
    ("signature", "located", "stage"),
    [
        ("oob@draft_graph.replay.topk_index", {}, "draft"),
        ("guard@draft.kv_indices->verify.kv_indptr", {}, "draft"),
        ("mismatch@verify.logits", {"site": "verify.logits"}, "verify"),
        ("mismatch@kv_pool.write.k", {"site": "kv_pool.write.k", "stage": "draft_extend"}, "draft_extend"),
        ("error@speculative.accept.accept", {}, "accept"),
        ("pools@ownership", {}, "schedule"),
    ],
)
def test_the_stage_that_a_signature_names(signature: str, located: dict[str, str], stage: str) -> None:
    assert stages_named(result(signature, **located)) == (stage,)


def test_an_error_in_what_all_stages_share_names_who_called() -> None:
    called = result("illegal-address@create_kv_indices.req_to_token")
    found = Violation("illegal-address", "create_kv_indices.req_to_token", 1, "", data={"caller": CALLER})
    called = dataclasses.replace(called, outcome=dataclasses.replace(called.outcome, violations=(found,)))
    assert stages_named(called) == ("draft_extend",)


def test_a_stage_is_right_that_is_the_file_s_or_comes_next() -> None:
    file = "engine/speculative/verify.py"
    found = {stage: is_right((stage,), [file]) for stage in ("draft", "verify", "accept", "commit")}
    assert found == {"draft": False, "verify": True, "accept": True, "commit": False}
    assert stages_of("engine/memory/mha_pool.py") == ()
    assert is_right(("draft",), [file, "engine/memory/mha_pool.py"]) is None


def test_a_mutant_is_reverted_in_the_arm_that_caught_it(tmp_path: Path) -> None:
    mutant = next(each for each in all_mutants("tree.py") if each.operator == "off_by_one")
    row = {"id": mutant.id, "caught": True, "by_time": False, "scenario": "topk_kv_indices/fixed"}
    (tmp_path / "m.json").write_text(json.dumps({"mutants": [row]}))
    (found,) = caught(Library(), tmp_path / "m.json", 5, 0)
    assert isinstance(found, Broken)
    assert (found.name, found.files, found.run.arm) == (mutant.id, ("engine/speculative/tree.py",), "fixed")
    assert [patch.target for patch in found.run.toggles[0].patches] == [mutant.patch.target]
