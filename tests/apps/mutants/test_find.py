"""Mutants of the engine: each is one patch that fits, under a name of its own."""

import ast
import textwrap
from pathlib import Path

import pytest

from specdebug.apps.mutants.find import OURS, Code, code_of
from specdebug.apps.mutants.operators import changes
from specdebug.base.errors import SpecDebugError
from specdebug.patching.match import place
from specdebug.targets.settings import parse_target


@pytest.mark.slow
def test_every_mutant_has_a_name_of_its_own_and_fits_one_place() -> None:
    found = OURS.mutants()
    assert len(found) > 1000
    assert len({mutant.id for mutant in found}) == len(found)
    for mutant in found:
        source = OURS.source(mutant.file)
        (edit,) = mutant.patch.edits
        placed = place(source, mutant.patch, edit, 0)
        assert placed.start <= mutant.line <= placed.stop, mutant.id


def test_the_text_with_a_mutant_is_a_program_that_says_something_else() -> None:
    for mutant in OURS.mutants_of("engine/textbook/memory/radix_cache.py"):
        source = OURS.source(mutant.file)
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


def test_mutants_of_another_package_are_named_and_patched_below_it(tmp_path: Path) -> None:
    (tmp_path / "rooms").mkdir()
    (tmp_path / "rooms" / "one.py").write_text("def f(a):\n    return a + 1\n\n\ndef check(a):\n    return a + 1\n")
    code = Code("engine", tmp_path, ("rooms/*.py",), checks=("check",))
    assert code.files("engine/rooms/*.py") == code.files("one.py") == ["rooms/one.py"]
    mutants = code.mutants()
    assert [mutant.id for mutant in mutants] == ["rooms/one.py:2:arithmetic:1", "rooms/one.py:2:off_by_one:1"]
    assert mutants[0].diff.startswith("--- engine/rooms/one.py\n")
    assert mutants[0].patch.target == "engine.rooms.one:f"
    with pytest.raises(SpecDebugError, match="no file of the engine that is mutated has such a name"):
        code.files("two.py")


def test_only_engines_whose_code_is_known_are_mutated() -> None:
    assert code_of("embedded") is OURS
    with pytest.raises(SpecDebugError, match="releases of sglang, not of vllm"):
        code_of(parse_target("vllm==0.32.0"))
