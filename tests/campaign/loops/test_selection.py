"""The expressions of ``-k``."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replays import parse_expression

WORDS = ("cache", "hit", "zero", "not_a")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("cache", True),
        ("CACHE-H", True),
        ("cache_hit::zero", True),
        ("nothing", False),
        ("not nothing", True),
        ("not cache or zero", True),
        ("not (cache or zero)", False),
        ("cache and not zero", False),
        ("nothing or cache and zero", True),
        ("(nothing or cache) and nothing", False),
        ("not not cache", True),
        ("nor", False),
        ("android or cache", True),
        ("((((cache))))", True),
    ],
)
def test_an_expression_holds_for_names(text: str, holds: bool) -> None:
    assert parse_expression(text).holds(("cache-hit", "zero_fill", "cache_hit::zero_fill")) is holds


@pytest.mark.parametrize(
    ("text", "column"),
    [("", 1), ("cache and", 10), ("and cache", 1), ("(cache", 1), ("cache)", 6), ("a or ()", 6), ("a (b)", 1)],
)
def test_a_wrong_selection_is_refused_with_its_column(text: str, column: int) -> None:
    with pytest.raises(SpecDebugError, match=f"column {column}: "):
        parse_expression(text)


@pytest.mark.parametrize("text", ["(" * 5000 + "cache" + ")" * 5000, "not " * 5000 + "cache"], ids=["(", "not"])
def test_a_selection_that_is_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(SpecDebugError, match="nested"):
        parse_expression(text)


def trees() -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(WORDS),
        lambda below: st.one_of(
            st.tuples(st.just("not"), below),
            st.tuples(st.sampled_from(("and", "or")), below, below),
        ),
        max_leaves=12,
    )


def worked_out(tree: Any, present: frozenset[str]) -> bool:
    """The value of a tree, by recursion."""
    if isinstance(tree, str):
        return tree in present
    if tree[0] == "not":
        return not worked_out(tree[1], present)
    left, right = worked_out(tree[1], present), worked_out(tree[2], present)
    return left and right if tree[0] == "and" else left or right


def written(tree: Any) -> str:
    """A tree as text, with no more parentheses than ``not`` before ``and`` before ``or`` asks for."""
    binds = {"or": 1, "and": 2, "not": 3}

    def inside(below: Any, least: int) -> str:
        text = written(below)
        return text if isinstance(below, str) or binds[below[0]] >= least else f"({text})"

    if isinstance(tree, str):
        return tree
    if tree[0] == "not":
        return f"not {inside(tree[1], 3)}"
    return f"{inside(tree[1], binds[tree[0]])} {tree[0]} {inside(tree[2], binds[tree[0]])}"


@given(trees(), st.frozensets(st.sampled_from(WORDS)))
def test_operators_bind_as_everywhere(tree: Any, present: frozenset[str]) -> None:
    assert parse_expression(written(tree)).holds(present) is worked_out(tree, present)


@given(st.text(alphabet="ab()or nd t", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SpecDebugError):
        assert parse_expression(text).holds(("a", "b")) in (True, False)
