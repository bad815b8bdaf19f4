"""In process: every function object that holds the code changes, wherever it is kept, and gets it back."""

from __future__ import annotations

import gc
import inspect

from specdebug.patching import Patch, apply, live

TEXT = """
import contextlib
import functools


def deco(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


@deco
@deco
def decorated(x):
    return x + 1


@functools.lru_cache(maxsize=None)
def cached(x):
    return x + 1


@contextlib.contextmanager
def managed(x):
    y = x
    yield y


def outer(n):
    m = n * 2

    def inner(x):
        y = x + m
        return y

    return inner


def generator(n):
    for i in range(n):
        yield i


async def coroutine():
    return 1


class Base:
    def go(self):
        return "base"


class Child(Base):
    def go(self):
        start = super().go()
        return start + " child"

    def plain(self):
        return "plain"

    @property
    def size(self):
        return 1

    @staticmethod
    def fixed():
        return 1

    @classmethod
    def made(cls):
        return cls.__name__

    class Nested:
        def deep(self):
            return __class__.__name__

    def __secret(self):
        return 1

    def reveal(self):
        value = self.__secret()
        return value


by_name = {"twice": lambda x: x * 2, "thrice": lambda x: x * 3}


def default(x=3):
    return x


def shift(x):
    step = 1
    return x + step
"""


def test_every_kind_of_function(toys):
    mod = toys.load(TEXT)
    kept = [mod.decorated, mod.outer(5), mod.Child().go, mod.Child.__dict__["size"], mod.by_name["twice"]]
    patches = [
        Patch.of("a", f"{mod.__name__}:decorated", ("return x + 1", "return x + 10")),
        Patch.of("b", f"{mod.__name__}:cached", ("return x + 1", "return x + 10")),
        Patch.of("c", f"{mod.__name__}:managed", ("y = x", "y = 10 + x")),
        Patch.of("d", f"{mod.__name__}:outer.inner", ("y = x + m", "y = x - m")),
        Patch.of("e", f"{mod.__name__}:generator", ("yield i", "yield i * 10")),
        Patch.of("f", f"{mod.__name__}:coroutine", ("return 1", "return 10")),
        Patch.of("g", f"{mod.__name__}:Child.go", ('return start + " child"', 'return start + " patched"')),
        Patch.of("h", f"{mod.__name__}:Child.size", ("return 1", "return 10")),
        Patch.of("i", f"{mod.__name__}:Child.fixed", ("return 1", "return 10")),
        Patch.of("j", f"{mod.__name__}:Child.made", ("return cls.__name__", "return 10")),
        Patch.of("k", f"{mod.__name__}:Child.Nested.deep", ("return __class__.__name__", "return __class__")),
        Patch.of("l", f"{mod.__name__}:Child.reveal", ("value = self.__secret()", "value = self.__secret() + 9")),
    ]

    def observe():
        child = mod.Child()
        with mod.managed(1) as managed:
            pass
        try:
            mod.coroutine().send(None)
        except StopIteration as stop:
            awaited = stop.value
        return [
            mod.decorated(1),
            mod.cached(1),
            managed,
            mod.outer(5)(1),
            kept[1](1),
            list(mod.generator(2)),
            awaited,
            child.go(),
            kept[2](),
            child.size,
            mod.Child.fixed(),
            mod.Child.made(),
            mod.Child.Nested().deep(),
            child.reveal(),
        ]

    fixed = [2, 2, 1, 11, 11, [0, 1], 1, "base child", "base child", 1, 1, "Child", "Nested", 1]
    broken = [
        11, 11, 11, -9, -9, [0, 10], 10, "base patched", "base patched", 10, 10, 10, mod.Child.Nested, 10,
    ]  # fmt: skip
    assert observe() == fixed
    codes = {name: function.__code__ for name, function in inspect.getmembers(mod, inspect.isfunction)}
    inner = kept[1].__code__
    with apply(patches) as applied:
        assert observe() == broken
    assert observe() == fixed
    assert all(count >= 1 for count in applied.hits().values())
    assert len(applied.hits()) == len(patches)
    for name, code in codes.items():
        assert getattr(mod, name).__code__ is code
    assert kept[1].__code__ is inner


def test_a_closure_made_while_patched_returns_with_the_outer_function_edited(toys, refusal):
    mod = toys.load(TEXT)
    old = mod.outer(5)
    patch = Patch.of("t", f"{mod.__name__}:outer", ("m = n * 2", "m = n * 100"), ("y = x + m", "y = x + m + n"))
    assert "would need 'n'" in refusal(apply, [patch])
    del old
    gc.collect()
    with apply([patch]):
        young = mod.outer(1)
        assert young(0) == 101
    # The young closure holds n as well, which the original lines do not use.
    assert young(0) == 100
    assert mod.outer(1)(0) == 2


def test_what_ran_at_import_cannot_be_edited_in_process(toys, refusal):
    mod = toys.load(TEXT)
    for target, edit in {
        "": ("import contextlib", "import contextlib, json"),
        "default": ("def default(x=3):", "def default(x=4):"),
        "decorated": ("@deco\n@deco", "@deco"),
        "Child": ('def plain(self):\n    return "plain"', ""),
        "shift": ("def shift(x):", "def shift(x: int):"),
    }.items():
        text = refusal(apply, [Patch.of("t", f"{mod.__name__}:{target}", edit)])
        assert "changes code that ran when" in text
        assert "patch before the module is imported" in text
    with apply(
        [
            Patch.of(
                "t",
                f"{mod.__name__}:shift",
                ("def shift(x):\n    step = 1", "def shift(y, x):\n    step = y"),
            )
        ]
    ):
        assert mod.shift(2, 1) == 3
    assert mod.shift(1) == 2


def test_a_file_changed_since_the_import_is_refused(toys, refusal):
    mod = toys.load(TEXT)
    toys.write(TEXT.replace("step = 1", "step = 5"), mod.__name__)
    text = refusal(apply, [Patch.of("t", f"{mod.__name__}:shift", ("step = 5", "step = 2"))])
    assert "shift does not run what" in text
    assert mod.shift(1) == 2


def test_a_census_finds_what_a_search_finds(toys, refusal):
    mod, other = toys.load(TEXT), toys.load("def f(x):\n    return x\n")
    patches = [
        Patch.of("a", f"{mod.__name__}:cached", ("return x + 1", "return x + 2")),
        Patch.of("b", f"{mod.__name__}:deco.wrapper", ("return function(*args)", "return 'patched'")),
    ]
    uncounted = Patch.of("c", f"{other.__name__}:f", ("return x", "return 0"))
    assert mod.cached(1) == 2
    live.take_census(toys.path(mod.__name__))
    try:
        with apply(patches) as applied:
            assert (mod.cached(1), mod.decorated(1)) == (3, "patched")
            assert applied.hits() == {"a#1": 1, "b#1": 1}
        assert (mod.cached(1), mod.decorated(1)) == (2, 2)
        with open(toys.path(mod.__name__), "a") as file:
            file.write("\n# edited while it runs\n")
        with apply(patches[:1]):
            assert mod.cached(1) == 3
        assert "no live function runs f" in refusal(apply, [uncounted])
    finally:
        live.end_census()
    with apply([uncounted]):
        assert other.f(5) == 0


DOCUMENTED = """
import functools


def outer(function):
    @functools.wraps(function)
    def wrapper():
        return function()
    return wrapper


@outer
@outer
def f():
    'Old.'
    return 1


def own():
    'Old.'


own.__doc__ = "Mine."


def bare():
    return 1


class Box:
    @property
    def size(self):
        'Old.'
"""


def test_docstrings_follow_their_functions(toys):
    mod = toys.load(DOCUMENTED)
    places = ("f", "own", "Box.size")
    patches = [Patch.of("t", f"{mod.__name__}:{place}", ("'Old.'", "'New.'")) for place in places]
    patches.append(Patch.of("t", f"{mod.__name__}:bare", ("return 1", '"""New,\n  too."""\nreturn 1')))

    def told():
        return [each.__doc__ for each in (mod.f, inspect.unwrap(mod.f), mod.Box.size, mod.bare, mod.own)]

    old = ["Old."] * 3 + [None, "Mine."]
    assert told() == old
    with apply(patches):
        assert told() == ["New."] * 3 + ["New,\n  too.", "Mine."]
    assert told() == old


def test_frozen_objects_are_found(toys):
    mod = toys.load(TEXT)
    gc.collect()
    gc.freeze()
    try:
        with apply([Patch.of("t", f"{mod.__name__}:shift", ("step = 1", "step = 2"))]):
            assert mod.shift(1) == 3
            assert gc.get_freeze_count(), "collections walk through no more than before"
    finally:
        gc.unfreeze()


def test_a_census_of_a_fork_adds_what_was_made_since(toys):
    mod = toys.load(
        "def first():\n    return 1\n\n\ndef more():\n    def second():\n        return 1\n\n    return second\n"
    )
    folder = toys.path(mod.__name__)
    live.take_census(folder)
    gc.freeze()
    try:
        second = mod.more()
        live.take_census(folder)
        patches = [
            Patch.of("t", f"{mod.__name__}:{name}", ("return 1", "return 2")) for name in ("first", "more.second")
        ]
        with apply(patches):
            assert (mod.first(), second()) == (2, 2)
    finally:
        live.end_census()
        gc.unfreeze()
