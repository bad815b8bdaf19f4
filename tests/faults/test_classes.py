"""Every class, in its minimal scenario: it does what it says, leaves it in the ledger, and has the stated effect."""

from collections.abc import Iterator

import pytest

from specdebug.faults.catalogue import CLASSES
from specdebug.faults.minimal import minimal
from tests.faults.running import minimal_run, models_kept

OF_RANKS = {"ranks", "transfers"}
SURVIVED = [name for name, kind in CLASSES.items() if kind.effect != "kills" and not OF_RANKS & {*kind.needs}]
"""Classes whose workers live on, and that our engine, which has one rank, can have."""


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    with models_kept(minimal(CLASSES["nan_logits"])[0]["engine"]):
        yield


@pytest.mark.parametrize("name", SURVIVED)
def test_a_class_has_its_effect(name: str) -> None:
    outcome = minimal_run(name, seed=1)
    assert outcome.injections
    assert any(each.changed for each in outcome.injections)
    assert all(each.fault == name for each in outcome.injections)
    if CLASSES[name].effect == "benign":
        assert outcome.verdict == "pass", outcome.detail
    else:
        assert outcome.verdict == "fail"
        found, done = outcome.violations[0], outcome.injections[0]
        assert found.step is not None
        # A key at fault is reported at the step that wrote its position, which a row that is changed later has passed.
        assert found.step >= done.step or found.site == "target_kv"
        assert found.signature not in ("error@engine", "error@oracle")  # a fault that raises is a fault of ours


def test_the_first_pass_of_an_assistant_is_looked_at_even_if_the_tree_stays_the_same() -> None:
    outcome = minimal_run("tied_draft_logits", worker="FROZEN_KV_MTP")
    (injection,) = outcome.injections
    assert outcome.signature == "mismatch@draft.forward.logits"
    assert outcome.violations[0].step == injection.step
    assert outcome.violations[0].data["tensor"] == "logits"
    assert outcome.violations[0].data["forward"] == 0


@pytest.mark.parametrize(("worker", "buffer"), [("MTP", "extend.kv_indices"), ("FROZEN_KV_MTP", "extend.kv_indices")])
def test_an_overrun_of_the_buffer_that_a_draft_has_is_seen(worker: str, buffer: str) -> None:
    outcome = minimal_run("buffer_overrun", worker=worker)
    assert outcome.signature is not None
    assert outcome.signature.startswith(f"guard@{buffer}->")
