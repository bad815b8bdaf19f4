"""Mutants of the engine: each is one patch that fits, under a name of its own."""

from __future__ import annotations

import ast
import textwrap

import pytest

from specdebug.apps.mutants.find import all_mutants, mutants_of, source_of
from specdebug.apps.mutants.operators import changes
from specdebug.patching.match import place


@pytest.mark.slow
def test_every_mutant_has_a_name_of_its_own_and_fits_one_place() -> None:
    found = all_mutants()
    assert len(found) > 1000
    assert len({mutant.id for mutant in found}) == len(found)
    for mutant in found:
        source = source_of(mutant.file)
        (edit,) = mutant.patch.edits
        placed = place(source, mutant.patch, edit, 0)
        assert placed.start <= mutant.line <= placed.stop, mutant.id


def test_the_text_with_a_mutant_is_a_program_that_says_something_else() -> None:
    for mutant in mutants_of("engine/textbook/memory/radix_cache.py"):
        source = source_of(mutant.file)
        placed = place(source, mutant.patch, mutant.patch.edits[0], 0)
        lines = [*source.lines[: placed.start - 1], *placed.lines, *source.lines[placed.stop :]]
        assert ast.dump(ast.parse("\n".join(lines))) != ast.dump(source.tree), mutant.id


def made(body: str, head: str = "def f(a, b, out):") -> list[tuple[str, str]]:
    """Operator and new text of every change of a function's body."""
    tree = ast.parse(f"{head}\n{textwrap.indent(textwrap.dedent(body), '    ')}")
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    return [(change.operator, change.text) for change in changes(function)]


@pytest.mark.parametrize(
    ("body", "operator", "text"),
    [
        ("return a < b", "comparison", "a <= b"),
        ("return a == b", "comparison", "a != b"),
        ("return a is None", "comparison", "a is not None"),
        ("return a + b", "arithmetic", "a - b"),
        ("return out - a * b", "arithmetic", "(a + b)"),
        ("return out[3]", "off_by_one", "4"),
        ("return out[a:b]", "off_by_one", "out[a:b + 1]"),
        ("return out[a]", "wrong_row", "out[a + 1]"),
        ("return out[a, b]", "wrong_row", "out[a, b + 1]"),
        ("return g(a, b)", "swapped_arguments", "g(b, a)"),
        ("out[a] = b", "dropped_statement", "pass"),
        ("out.fill_(0)", "dropped_statement", "pass"),
        ("a += b", "dropped_statement", "pass"),
        ("a = g(a)", "stale_read", "pass"),
        ("if a < b:\n    return a", "negated_condition", "not (a < b)"),
        ("return a and b", "negated_condition", "(a or b)"),
        ("return a if b else out", "negated_condition", "a if not b else out"),
        ("stream.wait_stream(a)", "missing_sync", "pass"),
        ("return a.clone()", "missing_sync", "a"),
    ],
)
def test_each_makes_its_fault(body: str, operator: str, text: str) -> None:
    assert (operator, text) in made(body)


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError(a + 1)",
        "assert a < b",
        "if a < 1:\n    raise ValueError(a)",
        '"""A docstring."""',
        "maybe_detect_nan(a[1], 'site')",
        "if a < b:\n    maybe_detect_nan(a[1], 'site')",
        "out.probe_written(a[1:])",
        "self._probe(a[1:])",
        "probes.input_ids(a[1:])",
        "for each in self._observers:\n    each.on_stage(a + 1)",
        "return f'{a + 1}'",
        "x: dict[int, str] = a",
        "return a.sum(1)",
        "new = g(a)",
    ],
)
def test_what_is_no_work_and_what_could_only_end_at_once_is_left_alone(body: str) -> None:
    assert made(body) == []
