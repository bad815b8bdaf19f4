"""Functions of somebody else's, wrapped in their places."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.wrapping import Tapped, wrap_all, wrap_method


class Adder:
    def add(self, one: int, *, other: int = 0) -> int:
        return one + other

    def twice(self, one: int) -> int:
        return 2 * self.add(one)


def test_a_method_of_a_class_is_called_through_its_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adder, "add", Adder.add)  # put back after
    seen: list[Any] = []

    def tap(call: Callable[..., int], owner: Adder, *args: Any, **named: Any) -> int:
        seen.append((owner, args, named))
        return call(*args, **named) + 100

    wrap_method(Adder, "add", tap, EngineLook("it"))
    adder = Adder()
    assert adder.add(1, other=2) == 103
    assert seen == [(adder, (1,), {"other": 2})]


def test_functions_of_a_module_are_wrapped_also_those_called_by_names_alone() -> None:
    module = SimpleNamespace(one=lambda a, b: a - b, two=lambda *, a: a + 1)
    for function in (module.one, module.two):
        functools.update_wrapper(function, Adder.add)
    taps: list[Tapped] = [
        (module, "one", lambda call, a, b: call(b) * a),
        (module, "two", lambda call, **named: -call(**named)),
    ]
    wrap_all(taps, EngineLook("it"))
    assert (module.one(7, 3), module.two(a=1)) == (28, -2)
