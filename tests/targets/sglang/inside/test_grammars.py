"""Grammars of a scheduler in this process: compiled where they are asked for, or why there are none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdebug.targets.sglang.inside.grammars import AtOnce, attempt_grammars


def test_a_grammar_is_compiled_where_it_is_asked_for() -> None:
    done = AtOnce().submit(lambda text, *, times: text * times, "ab", times=2)
    assert (done.done(), done.result()) == (True, "abab")
    failed = AtOnce().submit(int, "no number")
    assert failed.done()
    with pytest.raises(ValueError, match="no number"):
        failed.result()


def test_a_scheduler_that_takes_grammars_is_left_alone_and_one_that_cannot_says_why() -> None:
    has = SimpleNamespace(grammar_manager=SimpleNamespace(grammar_backend="its own"))
    assert attempt_grammars(has) == ""
    assert has.grammar_manager.grammar_backend == "its own"
    assert attempt_grammars(SimpleNamespace()) == "this release keeps its grammars elsewhere"
    lacks = SimpleNamespace(model_config=None, grammar_manager=SimpleNamespace(grammar_backend=None))
    assert attempt_grammars(lacks).startswith("its environment has no xgrammar that works (")
