"""Bugs planted in the engine's source: a function compiled again with a line of it changed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str = "pass") -> None:
    """Put ``new`` in the place of ``old``, which stands once in the function ``name`` of a class or a module."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}"
    module = owner if inspect.ismodule(owner) else sys.modules[owner.__module__]
    scope: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<{name} with a bug>", "exec", dont_inherit=True), vars(module), scope)
    monkeypatch.setattr(owner, name, scope[name])
