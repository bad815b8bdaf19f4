"""What several lines tell together."""

import pytest

from specdebug.logs.scan import BLOCK, scan_bytes

LOW = "[TP0] Decode batch, #running-req: 4, accept len: 1.00, accept rate: 0.00\n"
GOOD = "[TP0] Decode batch, #running-req: 4, accept len: 2.91, accept rate: 0.64\n"
RETRIED = "requests.exceptions.HTTPError: 429 Client Error\nRetrying in 1s [Retry 1/5].\n"


def name(log: str) -> str | None:
    main = scan_bytes(log.encode()).main
    return None if main is None else main.signature


@pytest.mark.parametrize(
    ("log", "signature"),
    [
        (GOOD * 3 + LOW * 2, "accept-drop@metrics"),
        (LOW * 3, "accept-drop@metrics"),
        (GOOD + LOW, None),
        (LOW * 3 + GOOD, None),
        (GOOD * (BLOCK // len(GOOD)) + LOW * 2 * (BLOCK // len(LOW)), "accept-drop@metrics"),
        (LOW * 2 * (BLOCK // len(LOW)) + GOOD, None),
    ],
)
def test_accept_lengths_that_stay_at_nothing_are_a_drop(log: str, signature: str | None) -> None:
    assert name(log) == signature


@pytest.mark.parametrize(
    "green",
    ["==== 12 passed, 3 warnings in 8.1s ====", "Ran 3 tests in 9.1s\n\nOK", "[  PASSED  ] 12 tests.",
     "100% tests passed, 0 tests failed out of 3", "test result: ok. 3 passed; 0 failed",
     "Uvicorn running\nApplication startup complete."],
)  # fmt: skip
def test_what_was_tried_again_in_a_run_that_went_well_is_no_failure(green: str) -> None:
    assert name(RETRIED) is not None
    assert name(f"{RETRIED}{green}\n") is None
