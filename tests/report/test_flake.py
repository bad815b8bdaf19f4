"""What a reader is told of a failure rate."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.sampling import Sampled, Tally
from specdebug.report.flake import (
    LiveFlake,
    PlainFlake,
    Question,
    flake_progress,
    rate_text,
    sampled_text,
    verdict_line,
)
from specdebug.stats.claims import parse_claim


def question(claim: str | None = None) -> Question:
    parsed = None if claim is None else parse_claim(claim, 0.95)
    return Question("./test.sh", parsed, 0.95, "j.sqlite", lambda seed: f"SEED={seed} ./test.sh", "bisect ./test.sh")


def tally(failures: int, runs: int, **more: int) -> Tally:
    named = ((("hang", failures),), (("hang", Trial(4, frozenset(), 99)),)) if failures else ((), ())
    measured = tuple(name for name, _ in named[0])
    return Tally(runs, runs=runs, failures=failures, signatures=named[0], measured=measured, first=named[1], **more)


@pytest.mark.parametrize(
    ("claim", "failures", "runs", "line"),
    [
        (None, 0, 2000, "0 of 2000 failed: rate < 0.15% at 95%"),
        (None, 3, 40, "3 of 40 failed: rate 7.5%, 95% interval 0.56% to 27.4%"),
        ("rate<1%", 0, 299, "`rate<1%` holds at 95%: 0 of 299 failed: rate < 1% at 95%"),
        ("rate<10% or rate>40%", 0, 9, "`rate<10%` rather than `rate>40%` at 95%: 0 of 9 failed: rate < 28.4% at 95%"),
    ],
)
def test_verdicts(claim: str | None, failures: int, runs: int, line: str) -> None:
    assert verdict_line(Sampled("enough", tally(failures, runs)), question(claim), {}) == line


def test_refuted_and_undecided() -> None:
    assert verdict_line(Sampled("enough", tally(5, 6)), question("rate<1%"), {}).startswith(
        "`rate<1%` is refuted at 95%: 5 of"
    )
    interrupted = verdict_line(Sampled("interrupted", tally(0, 298)), question("rate<1%"), {})
    assert interrupted.startswith("undecided, interrupted: 0 of 298 failed")
    assert interrupted.endswith("; 1 more clean run is owed before `rate<1%` can be claimed")
    # What stopped it decides, not what the counts would say: an answer counts when it is first given.
    assert verdict_line(Sampled("max-trials", tally(0, 0)), question("rate<1%"), {}).startswith(
        "undecided, --max-trials"
    )


def test_the_rest_of_the_report() -> None:
    sampled = Sampled("enough", tally(3, 10, untestable=1, masked=2, resumed=4))
    text = sampled_text(sampled, question(), {"": "starting\nno such GPU\n", "hang": "silence"})
    assert text.splitlines()[1:] == [
        "the interval holds whenever one stops; for 10 runs fixed beforehand: 6.7% to 65.2%",
        "  3 x hang, first with seed 99",
        "failed in another way, which is no verdict on these: 2 times",
        "untestable, which is no verdict: once",
        "  the first said: no such GPU",
        "reproduce: SEED=99 ./test.sh",
        "next: bisect ./test.sh",
        "journal: j.sqlite (the same command shows this again)",
    ]


def test_what_is_reproduced_is_what_is_measured() -> None:
    first = (("hang", Trial(0, frozenset(), 11)), ("nan@x", Trial(5, frozenset(), 22)))
    other = Tally(9, runs=4, failures=1, masked=5, signatures=(("hang", 5), ("nan@x", 1)), first=first)
    lines = sampled_text(Sampled("max-trials", replace(other, measured=("nan@x",))), question(), {}).splitlines()
    assert "  5 x hang, first with seed 11, not what is measured" in lines
    assert "  1 x nan@x, first with seed 22" in lines
    assert "reproduce: SEED=22 ./test.sh" in lines
    unseen = replace(other, failures=0, runs=3, masked=6)
    assert "reproduce" not in sampled_text(Sampled("max-trials", unseen), question(), {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_and_elsewhere() -> None:
    stream = Terminal()
    live = flake_progress(stream, question("rate<1%"))
    assert isinstance(live, LiveFlake)
    with live:
        live.counted(Trial(9, frozenset(), 1), TrialResult("fail", "hang", 0.1), tally(2, 10, running=3))
    shown = stream.getvalue()
    assert "flake ./test.sh: 3 running" in shown
    assert "hang" in shown
    assert rate_text(tally(2, 10), 0.95) in shown
    plain = flake_progress(io.StringIO(), question())
    assert isinstance(plain, PlainFlake)
    with plain:
        plain.moved(tally(0, 7, resumed=7))
        for n in range(8, 21):
            plain.counted(Trial(n, frozenset(), n), TrialResult("pass", None, 0.1), tally(0, n, resumed=7))
    assert plain._stream.getvalue().splitlines() == [
        "resumed: 7 trials are in j.sqlite",
        "0 of 20 failed: rate < 13.9% at 95%",
    ]
