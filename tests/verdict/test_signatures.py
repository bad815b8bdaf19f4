import re

import pytest

from specdebug.verdict.outcome import RANK
from specdebug.verdict.signatures import SHAPE, complaint

BARE = ["hang", "oom", "crash:SIGSEGV", "crash:*", "oom@cuda"]


@pytest.mark.parametrize("pattern", [*(f"{kind}@here" for kind in RANK), *BARE, "*@draft.*", "n[ao]n@x"])
def test_patterns_that_can_match(pattern):
    assert complaint(pattern) is None
    assert re.match(SHAPE, pattern)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("gaurd@draft.kv_indices", "did you mean 'guard'?"),
        ("hangs", "did you mean 'hang'?"),
        ("crash:", "names no failure"),
        ("nan", "needs a site: 'nan@*' is any"),
        ("nan@", "needs a site after '@'"),
        ("zz*@x", "'zz*' is no kind of failure"),
        ("hang@step", "'hang' is no kind of failure"),
    ],
)
def test_patterns_that_never_match_say_what_is_wrong(pattern, says):
    assert says in complaint(pattern)
