from types import SimpleNamespace

import pytest

from specdebug.verdict.signatures import complaint, may_have_begun_before, names_place, stated


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


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("mismatch@draft_extend.logits", True),
        ("mismatch@draft.*", True),
        ("accept-drop@schedule", True),
        ("mismatch@verify.kv_pool.write.loc", True),
        ("ends@prefix_cache.release.first_free", False),
        ("mismatch@request", False),
        ("mismatch@*", False),
        ("mismatch@nowhere.at_all", False),
        ("nan@draft_extend.logits", False),
        ("hang", False),
    ],
)
def test_patterns_of_located_failures_are_told_from_others(pattern, place):
    assert names_place(pattern) is place


def test_a_located_failure_is_stated_by_its_place_or_else_by_what_was_seen():
    both = ("mismatch@verify.logits", "mismatch@request")
    assert stated(both, "mismatch@request"), "a search does not locate"
    assert stated(both, "mismatch@verify.logits", "mismatch@draft_kv")
    assert not stated(both, "mismatch@draft.bonus", "mismatch@request"), "the place counts"
    assert stated(("mismatch@request",), "mismatch@draft.bonus", "mismatch@request")
    assert stated(("mismatch@*",), "mismatch@draft.bonus", "mismatch@request")
    assert not stated(("mismatch@draft_kv",), "mismatch@draft.bonus", "mismatch@request")
    assert not stated(("nan@*",), None)


@pytest.mark.parametrize(
    ("signature", "wanted", "before"),
    [
        ("mismatch@request", (), True),
        ("mismatch@acceptance", (), False),
        ("oob@draft.bonus", (), True),
        ("oob@draft.bonus", ("oob@draft.*",), False),
        ("error@server.error.RuntimeError.worker.verify", (), True),
        ("error@server.error.RuntimeError.worker.verify", ("error@server.*",), False),
        ("error@engine.abort", (), True),
        ("ends@stop.token", (), True),
        ("ends@stop.token", ("ends@*",), False),
        ("error@kv_pool.free", (), False),
        ("pools@states", (), False),
    ],
)
def test_what_is_found_late_may_have_begun_before(signature, wanted, before):
    outcome = SimpleNamespace(signature=signature, verdict="fail", interrupted=False, located=None)
    assert may_have_begun_before(outcome, wanted) is before
