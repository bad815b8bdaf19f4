"""Names of releases."""

from __future__ import annotations

import pytest

from specdebug.targets.installs.release import Release, ReleaseError, order, parse_release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("sglang==0.5.13", Release("sglang", "0.5.13")),
        ("vllm", Release("vllm")),
        ("sglang==0.6rc1", Release("sglang", "0.6rc1")),
    ],
)
def test_a_release_is_read_and_written_alike(text: str, release: Release) -> None:
    assert parse_release(text) == release
    assert str(release) == text


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


def test_versions_are_compared_as_versions() -> None:
    assert order("0.5.9") < order("0.5.13") < order("0.5.13.post1")
    assert Release("sglang", "0.5.13").admits("0.5.13.0")
    assert not Release("sglang", "0.5.13").admits("0.5.14")
    assert Release("sglang").admits("0.5.14")
