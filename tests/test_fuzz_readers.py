"""Whatever is in a file, its reader returns, or says in one line what is wrong with it, with exit code 2.

Good files of every kind (``tests/fuzzing/kinds.py`` lists them) are mutated from a seed: bytes, cuts, repeated pieces,
and values that have broken readers. Every case may take 2 s of processor time and 300 MB; a line for each kind, at the
end of pytest's output, says how much it took at most. ``python -m tests.fuzzing [KIND ...]`` does the same without
pytest.

What opens a user's file, and the kinds that are fuzzed through it (*and by command*: through the command line, too):

==================================  ====================================================================
``yamlio.load_yaml``                scenario, toggle, pack; and by command
``configuration.load``              configuration, configuration in pyproject; and by command
``engine.model.checkpoint``         config of a checkpoint, weights, pickled weights, index of weights
``reference.config``                config, by the reference
``scenario.text``                   tokenizer
``trials.journal``                  journal, state of a journal; and by command
``bundle.archive``, ``.content``    bundle, members of a bundle; and by command
``loops.baseline``                  accept lengths: the baseline of ``replay --baseline``; and by command
``hunt.record``, ``.evidence``      record of a hunt, evidence of a hunt
``installs.store``                  record of an environment
``evaluation.declared``             evaluation
``evaluation.questions``            questions, questions of MMLU
``targets.http``                    answer of a server, streamed answer of a server, words of a server
``loops.last_failed``               last failed: the baseline of ``replay --last-failed``
``logs.scan``                       log; and by command
``drift.members``, ``.identity``,   wheel, sdist, sdist's compression, project, version, module and registry of
``.dist``, ``.upstream``            a release: the baseline of ``toggles check``; and by command
==================================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzzing.child import in_a_child
from tests.fuzzing.kinds import KINDS
from tests.fuzzing.measure import Broken

PLANTED = "tests.fuzzing.planted"


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
    record_property("fuzzed", tally.to_dict())


@pytest.mark.parametrize("kind", ["sound", "refuses"])
def test_a_reader_within_its_limits_passes(kind: str, tmp_path: Path) -> None:
    tally = in_a_child(kind, tmp_path, table=PLANTED)
    assert (tally.cases, tally.refused) == (3, 3 * (kind == "refuses"))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("holds enough", "case 0: held 3[0-9]{2} MB, more than 300 MB"),
        ("asks for more", "case 0: MemoryError"),
        ("is slow", r"case 0: took 2\.\d+ s of processor, more than 2.0 s"),
        pytest.param("never returns", "case 0: the process ended with SIGPROF", marks=pytest.mark.slow),
        ("raises", "case 0: ValueError: x"),
        ("exits", "case 0: SystemExit"),
        ("says two lines", r"case 0: exit code 2, 'one\\ntwo'"),
        ("has another exit code", "case 0: exit code 3"),
        ("dies", "case 0: the process ended with SIGABRT"),
    ],
)
def test_a_reader_that_breaks_a_rule_is_found(kind: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(Broken, match=complaint):
        in_a_child(kind, tmp_path, table=PLANTED)
