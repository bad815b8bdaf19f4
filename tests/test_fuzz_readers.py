"""Whatever is in a file, its reader returns, or says in one line what is wrong with it, with exit code 2.

Good files of every kind (``tests/fuzzing/kinds.py`` lists them) are mutated from a seed: bytes, cuts, repeated pieces,
and values that have broken readers. Every case may take 2 s of processor time and 300 MB; a line for each kind, at the
end of pytest's output, says how much it took at most.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.fuzzing.kinds import KINDS
from tests.fuzzing.measure import in_a_child


def test_there_are_twenty_thousand_cases() -> None:
    assert sum(kind.count for kind in KINDS.values()) >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_is_read_or_refused_in_one_line(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    tally = in_a_child(kind, tmp_path)
    assert tally.cases == KINDS[kind].count
    assert tally.read + tally.refused == tally.cases
    record_property("fuzzed", asdict(tally))
