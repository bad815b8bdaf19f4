"""SGLang 0.5.23's algorithms beside EAGLE: each serves what the dense reference says, and its drafts are accepted."""

from __future__ import annotations

import pytest

from tests.engines.replays import ROOT, replayed

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.23"


@pytest.mark.parametrize(
    ("name", "least"),
    [("standalone", 3.0), ("ngram", 1.1), ("adaptive", 3.0), ("dflash", 1.3), ("dspark", 1.3), ("nextn", 1.5)],
)
def test_it_is_lossless_and_its_drafts_know_something(name: str, least: float) -> None:
    code, arm = replayed(str(ROOT / "scenarios" / "twins" / f"{name}.yaml"), "--target", RELEASE)
    assert (code, arm["verdict"]) == (0, "pass"), arm["detail"]
    lengths = [each for request in arm["requests"] for each in request["accept_lengths"]]
    assert sum(lengths) / len(lengths) >= least
    assert any(request["cached_tokens"] for request in arm["requests"])
    if name == "adaptive":
        assert max(lengths) > 4  # chains of three steps have four tokens at most
