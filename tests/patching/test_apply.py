"""apply: all or nothing, overlaps refused, nesting in any order, safe from several threads."""

from __future__ import annotations

import itertools
import sys

import pytest

from specdebug.patching import Patch, PatchError, apply
from specdebug.patching.live import LiveFunctions

TEXT = """
def f():
    a = 1
    b = 10
    c = 100
    return a + b + c


def g():
    return f() + 1000
"""


def edit(name: str, owner: str, old: str, new: str, function: str = "f") -> Patch:
    return Patch.of(owner, f"{name}:{function}", (old, new))


@pytest.mark.parametrize(
    "bad",
    [
        lambda name: edit(name, "bad", "z = 1", "z = 2"),
        lambda name: edit(name, "bad", "c = 100", "c = ("),
        lambda name: edit(name, "bad", "a = 1\nb = 10", "a = b = 0"),
        lambda name: edit(name, "bad", "return f() + 1000", "nonlocal q", "g"),
        lambda name: edit(name, "bad", "def g():", "def g(x=1):", "g"),
        lambda name: Patch.of("bad", f"{name}:h", ("x", "y")),
        lambda name: Patch.of("bad", "no_such_module", ("x", "y")),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_one_bad_patch_stops_all(toys, refusal, bad, order):
    first, second = toys.load(TEXT), toys.load(TEXT)
    codes = [mod.__dict__[name].__code__ for mod in (first, second) for name in "fg"]
    names = [dict(vars(mod)) for mod in (first, second)]
    good = [edit(first.__name__, "one", "a = 1", "a = 2"), edit(second.__name__, "two", "a = 1", "a = 2")]
    refusal(apply, [*good, bad(second.__name__)][::order])
    assert [mod.__dict__[name].__code__ for mod in (first, second) for name in "fg"] == codes
    assert all(
        mod.__dict__[name].__code__ is code
        for (mod, name), code in zip(itertools.product((first, second), "fg"), codes, strict=True)
    )
    assert [dict(vars(mod)) for mod in (first, second)] == names
    assert (first.f(), second.f()) == (111, 111)


def test_a_failure_while_changing_is_undone(toys, monkeypatch):
    first, second = toys.load(TEXT), toys.load(TEXT)
    code = first.f.__code__
    real = LiveFunctions.commit

    def failing(self, exchange):
        if self.base.source.name == second.__name__ and exchange.target.placed:
            raise PatchError("the interpreter refused")
        return real(self, exchange)

    monkeypatch.setattr(LiveFunctions, "commit", failing)
    with pytest.raises(PatchError, match="interpreter refused"):
        apply([edit(mod.__name__, "t", "a = 1", "a = 2") for mod in (first, second)])
    assert first.f.__code__ is code
    monkeypatch.undo()
    sys.path.insert(0, str(toys.folder))  # undo took the path away as well
    with apply([edit(first.__name__, "t", "a = 1", "a = 2")]):
        assert first.f() == 112
    sys.path.remove(str(toys.folder))


def test_overlap_of_two_toggles_is_refused_by_name(toys, refusal):
    mod = toys.load(TEXT)
    one, two = (
        edit(mod.__name__, "toggle 1", "a = 1\nb = 10", "a = b = 2"),
        edit(mod.__name__, "toggle 2", "b = 10", "b = 2"),
    )
    for text in (refusal(apply, [one, two]), refusal(apply, [two, one])):
        assert "toggle 1" in text
        assert "toggle 2" in text
        assert f"{mod.__file__}:3" in text
    with apply([one]):
        assert mod.f() == 104
        assert "toggle 1" in refusal(apply, [two])
        assert "toggle 1 is already applied" in refusal(apply, [one])
    with apply([two]):
        assert mod.f() == 103


def test_restore_twice_and_after_an_exception(toys):
    mod = toys.load(TEXT)
    code = mod.f.__code__
    applied = apply([edit(mod.__name__, "t", "a = 1", "a = 2")])
    applied.restore()
    applied.restore()
    with pytest.raises(KeyError), apply([edit(mod.__name__, "t", "a = 1", "a = 2")]):
        {}[mod.f()]
    assert mod.f.__code__ is code


def test_edits_of_one_owner_are_counted_apart(toys):
    mod = toys.load(TEXT + "\n\ndef h():\n    return 0\n")
    ran = edit(mod.__name__, "t", "a = 1", "a = 2")
    idle = Patch.of("t", f"{mod.__name__}:h", ("return 0", "return 1"))
    both = Patch.of("t", f"{mod.__name__}:f", ("b = 10", "b = 20"), ("c = 100", "c = 200"))
    for patches, hits in (
        ([ran, idle], {"t#1": 1, "t#2": 0}),
        ([idle, ran], {"t#1": 0, "t#2": 1}),
        ([idle, both, ran], {"t#1": 0, "t#3": 1, "t#2": 1, "t#4": 1}),
    ):
        with apply(patches) as applied:
            mod.f()
        assert applied.hits() == hits


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_nested_patches_restore_in_any_order(toys, order):
    mod = toys.load(TEXT)
    code = mod.f.__code__
    digits = [1, 1, 1]
    edits = [("a = 1", "a = 2\na = 5"), ("b = 10", "b = 50"), ("c = 100", "")]
    applied = []
    for index, (old, new) in enumerate(edits[:2]):
        applied.append(apply([edit(mod.__name__, f"t{index}", old, new)]))
        digits[index] = 5
    applied.append(apply([edit(mod.__name__, "t2", "c = 100", "c = 500")]))
    digits[2] = 5
    for index in order:
        assert mod.f() == digits[0] + 10 * digits[1] + 100 * digits[2]
        applied[index].restore()
        digits[index] = 1
    assert mod.f() == 111
    assert mod.f.__code__ is code
