"""A tap is called in the place of a method or a function, and can call it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.targets.sglang.inside.taps import tap_all


class Worker:
    def add(self, one: int, two: int = 0) -> int:
        return one + two


def test_a_method_is_called_with_what_the_tap_passes_on() -> None:
    seen: list[Any] = []

    def tap(call: Callable[..., int], worker: Worker, *args: int, **named: int) -> int:
        seen.append((worker, args, named))
        return call(*args, **named) * 10

    class Own(Worker):
        add = Worker.add

    tap_all([(Own, "add", tap)])
    worker = Own()
    assert worker.add(1, two=2) == 30
    assert seen == [(worker, (1,), {"two": 2})]
    assert Own.add.__name__ == "add"
    assert Worker().add(1) == 1


def test_a_function_that_is_called_by_names_alone_too() -> None:
    module = SimpleNamespace(f=lambda *, a: a + 1)
    module.f.__name__ = "f"
    tap_all([(module, "f", lambda call, **named: -call(**named))])
    assert module.f(a=1) == -2


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="gone"):
        tap_all([(Worker, "gone", lambda call: None)])
