"""Names of releases."""

from __future__ import annotations

import pytest

from specdebug.targets.installs.release import ReleaseError, parse_release


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sglnag==0.5.13", "no engine 'sglnag'; did you mean 'sglang'?"),
        ("sglang>=0.5", "no engine 'sglang>=0.5'"),
        ("sglang==", "names no release; write sglang==VERSION"),
        ("sglang==0.5.x", "'0.5.x' is no version"),
        ("sglang==a b", "names no release"),
    ],
)
def test_what_names_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(ReleaseError) as caught:
        parse_release(text)
    assert told in str(caught.value)
