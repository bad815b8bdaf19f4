"""Mutants of the engine: each is one patch that fits, under a name of its own."""

from __future__ import annotations

import ast

import pytest

from specdebug.apps.mutants.find import all_mutants, files, mutants_of, source_of
from specdebug.base.errors import SpecDebugError
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


def test_a_diff_shows_the_lines_before_and_after() -> None:
    (mutant,) = (
        each
        for each in mutants_of("engine/textbook/memory/radix_cache.py")
        if each.old[0].strip() == "member.lock_ref -= 1" and each.operator == "dropped_statement"
    )
    head, *_, old, new = mutant.diff.split("\n")
    assert head == "--- specdebug/engine/textbook/memory/radix_cache.py"
    assert (old.split(), new.split()) == (["-", "member.lock_ref", "-=", "1"], ["+", "pass"])


def test_files_are_chosen_by_their_path_or_its_end() -> None:
    assert files("radix_cache.py") == ["engine/textbook/memory/radix_cache.py"]
    assert files("speculative/*.py") == files("specdebug/engine/textbook/speculative/*.py") != []
    found = files("sampler.py", "engine/textbook/sampler.py", "v1.py")
    assert found == ["engine/textbook/sampler.py", "engine/workers/v1.py"]
    laws = ("accounting.py", "reuse.py", "room.py")
    assert not [file for file in files() if "triton" in file.split("/")[2:3] or file.endswith(laws)]
    with pytest.raises(SpecDebugError, match="no file of the engine that is mutated"):
        files("v1.py", "nothing.py")
