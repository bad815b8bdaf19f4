"""An engine that fails, and one that cannot be imported."""

from __future__ import annotations

import pytest

from specdebug.base.errors import CannotRunHere
from specdebug.targets.inside.failure import failure_of, importing
from specdebug.targets.requests import SessionFailed


def test_an_exception_is_named_as_a_log_would_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise IndexError("index out of range in self")
    except IndexError as error:
        failure = failure_of(error)
    assert isinstance(failure, SessionFailed)
    assert str(failure) == "the engine failed: IndexError: index out of range in self"
    assert "IndexError" in capsys.readouterr().err


def test_what_cannot_be_imported_says_nothing_of_the_engine() -> None:
    with pytest.raises(CannotRunHere) as caught, importing("sglang==0.5.23 at 0123"):
        import of_no_package  # type: ignore[import-not-found]  # noqa: F401
    assert caught.value.exit_code == 125
    told = "sglang==0.5.23 at 0123 cannot be imported: ModuleNotFoundError: No module named 'of_no_package' ("
    assert str(caught.value).startswith(told)
    assert "test_failure.py:" in str(caught.value)
