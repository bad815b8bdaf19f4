"""Functions of an engine wrapped in their places. A look that fails ends itself: the engine is as it would be without
it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.async_probe.gate import ProbeFinding
from specdebug.targets.inside import guard
from specdebug.targets.inside.guard import EngineLook, wrap_all, wrap_method


class Engine:
    def __init__(self) -> None:
        self.calls = 0

    def serve(self, one: int, *, more: int = 1) -> int:
        self.calls += 1
        if one < 0:
            raise KeyError("the engine's own")
        return one + more

    def twice(self, one: int) -> int:
        return 2 * self.serve(one)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(Engine, "serve", Engine.serve)  # put back after
    return Engine()


def test_a_method_of_a_class_is_called_through_its_tap(engine: Engine) -> None:
    seen: list[Any] = []

    def tap(call: Callable[..., int], owner: Engine, *args: Any, **named: Any) -> int:
        seen.append((owner, args, named))
        return call(*args, **named) + 100

    wrap_method(Engine, "serve", tap, EngineLook("it"))
    assert engine.serve(1, more=2) == 103
    assert seen == [(engine, (1,), {"more": 2})]


def test_functions_of_a_module_are_wrapped_also_those_called_by_names_alone() -> None:
    module = SimpleNamespace(one=lambda a, b: a - b, two=lambda *, a: a + 1)
    for function in (module.one, module.two):
        functools.update_wrapper(function, Engine.serve)
    taps: list[Any] = [
        (module, "one", lambda call, a, b: call(b) * a),
        (module, "two", lambda call, **named: -call(**named)),
    ]
    wrap_all(taps, EngineLook("it"))
    assert (module.one(7, 3), module.two(a=1)) == (28, -2)


def before(call: Callable[..., int], engine: Engine, one: int) -> int:
    engine.renamed  # type: ignore[attr-defined]  # noqa: B018
    return call(one)


def after(call: Callable[..., int], engine: Engine, one: int) -> int:
    answer = call(one)
    engine.renamed  # type: ignore[attr-defined]  # noqa: B018
    return answer


@pytest.mark.parametrize("tap", [before, after])
def test_a_tap_that_fails_is_off_and_told_once_with_its_place(
    tap: Callable[..., int], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOST", [])
    look = EngineLook("the books")
    wrap_method(Engine, "serve", tap, look)
    assert (engine.serve(1), engine.serve(5), engine.calls, look.off) == (2, 6, 2, True)
    (lost,) = guard.LOST
    assert (lost.what, lost.stand_in) == ("the books", False)
    assert lost.why == "AttributeError: 'Engine' object has no attribute 'renamed'"
    assert lost.place.startswith("specdebug/targets/inside/guard.py:")


def over_it(call: Callable[..., Any], engine: Engine, one: int) -> Any:
    try:
        return call(one)
    finally:
        raise ValueError("ours")


@pytest.mark.parametrize("tap", [after, lambda call, _, one: call(one), over_it])
def test_the_engine_s_own_exception_goes_on_and_nothing_is_lost(tap: Callable[..., int], engine: Engine) -> None:
    look = EngineLook("it")
    wrap_method(Engine, "serve", tap, look)
    with pytest.raises(KeyError, match="the engine's own"):
        engine.serve(-1)
    assert (engine.calls, look.off) == (1, False)


def test_what_a_probe_asserts_is_raised(engine: Engine) -> None:
    def tap(call: Callable[..., Any], engine: Engine, one: int) -> Any:
        raise RuntimeError(ProbeFinding("verify.input_ids", "oob").message())

    look = EngineLook("probes")
    wrap_method(Engine, "serve", tap, look)
    with pytest.raises(RuntimeError, match=r"verify\.input_ids"):
        engine.serve(1)
    assert not look.off


def test_an_act_that_fails_is_answered_otherwise_from_then_on() -> None:
    look, made = EngineLook("it"), []

    def act() -> int:
        made.append(1)
        raise ValueError("ours")

    assert [look.attempt(act, 7), look.attempt(act, 7), len(made)] == [7, 7, 1]
