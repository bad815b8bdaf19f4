"""A look that fails ends itself: the engine's answers and its exceptions are as they would be without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.words import facts_in
from specdebug.targets.inside.wrapping import wrap_method


class Engine:
    def __init__(self) -> None:
        self.calls = 0

    def serve(self, one: int) -> int:
        self.calls += 1
        if one < 0:
            raise KeyError("the engine's own")
        return one + 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(Engine, "serve", Engine.serve)  # put back after
    return Engine()


def before(call: Callable[..., int], engine: Engine, one: int) -> int:
    engine.renamed  # type: ignore[attr-defined]  # noqa: B018
    return call(one)


def after(call: Callable[..., int], engine: Engine, one: int) -> int:
    answer = call(one)
    engine.renamed  # type: ignore[attr-defined]  # noqa: B018
    return answer


@pytest.mark.parametrize("tap", [before, after])
def test_a_tap_that_fails_is_off_and_told_once_with_its_place(
    tap: Callable[..., int], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    look = EngineLook("the books")
    wrap_method(Engine, "serve", tap, look)
    assert (engine.serve(1), engine.serve(5), engine.calls, look.off) == (2, 6, 2, True)
    (told,) = [facts["lost"] for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]
    assert (told["what"], told["stand_in"]) == ("the books", False)
    assert told["why"] == "AttributeError: 'Engine' object has no attribute 'renamed'"
    assert told["place"].startswith("specdebug/targets/inside/guard.py:")


@pytest.mark.parametrize("tap", [after, lambda call, engine, one: call(one)])
def test_the_engine_s_own_exception_goes_on_and_nothing_is_lost(tap: Callable[..., int], engine: Engine) -> None:
    look = EngineLook("it")
    wrap_method(Engine, "serve", tap, look)
    with pytest.raises(KeyError, match="the engine's own"):
        engine.serve(-1)
    assert (engine.calls, look.off) == (1, False)


def test_it_goes_on_although_a_tap_fails_over_it(engine: Engine) -> None:
    def tap(call: Callable[..., Any], engine: Engine, one: int) -> Any:
        try:
            return call(one)
        finally:
            raise ValueError("ours")

    wrap_method(Engine, "serve", tap, EngineLook("it"))
    with pytest.raises(KeyError, match="the engine's own"):
        engine.serve(-1)


def test_an_act_that_fails_is_answered_otherwise_from_then_on() -> None:
    look, made = EngineLook("it"), []

    def act() -> int:
        made.append(1)
        raise ValueError("ours")

    assert [look.attempt(act, 7), look.attempt(act, 7), len(made)] == [7, 7, 1]
