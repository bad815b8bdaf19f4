"""What a load of a server is written down as."""

from __future__ import annotations

import json
from collections import Counter

from benchmarks.serve_load import Outcome, Sample


def test_the_outcome_can_be_written() -> None:
    sample = Sample(*range(len(Sample.__dataclass_fields__)))
    outcome = Outcome(3, 1.5, Counter(whole=2), Counter(whole=3), [sample], ["wrong"], 1)
    told = json.loads(json.dumps(outcome.to_dict()))
    assert (told["ends"], told["acts"], told["problems"]) == ({"whole": 2}, {"whole": 3}, ["wrong"])
    assert list(told["samples"][0].values()) == list(range(len(Sample.__dataclass_fields__)))
