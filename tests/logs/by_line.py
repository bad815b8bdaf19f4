"""The plain way to read a log: line by line, every rule in turn. The reader must say the same."""

from specdebug.logs.rule import Hit
from specdebug.logs.rules import FINDERS, RULES, named


def hits_in(line: bytes) -> list[Hit]:
    """What a single line tells of, the strongest kind of message only."""
    for rule, finder in zip(RULES, FINDERS, strict=True):
        found = finder.search(line)
        if found is not None and (hits := list(named(rule, line, found.start()))):
            return hits
    return []
