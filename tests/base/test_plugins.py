"""Additions of other distributions are found by entry point, and what is wrong with one is said in a line."""

import os
import signal

import pytest

from specdebug.base import plugins
from tests.seams.conftest import Install, installing

__all__ = ["installing"]

EXIT = os._exit


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("", "AttributeError: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit()\n", "it ends the process (SystemExit: None)"),
        ("raise SystemExit('no licence')\n", "it ends the process (SystemExit: no licence)"),
        ("import os; os._exit(0)\n", "it ends the process (os._exit: 0)"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt: "),
        ("class Mine(BaseException): pass\nraise Mine('two\\nlines')\n", "Mine: two lines"),
        ("raise GeneratorExit\n", "GeneratorExit: "),
        ("def\n", "SyntaxError: "),
    ],
)
def test_one_that_cannot_be_imported_is_named_with_its_distribution_and_group(
    source: str, said: str, installing: Install
) -> None:
    installing("broken_plugin", source, {"reports": {"mine": "broken_plugin:Report"}})
    with pytest.raises(plugins.PluginError) as caught:
        plugins.load("reports", "mine")
    where = "cannot be imported from broken_plugin:Report (group specdebug.reports): "
    assert str(caught.value).startswith(f"plugin 'mine' of distribution broken_plugin 1.0 {where}{said}")
    assert caught.value.exit_code == 2
    assert os._exit is EXIT


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1e6)\n",
        "while True: pass\n",
        "import threading\nthreading.Event().wait()\n",
        "import time\nwhile True:\n    try: time.sleep(1e6)\n    except Exception: pass\n",
    ],
)
def test_one_that_hangs_is_named_with_the_place(
    source: str, installing: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "LIMIT_S", 0.0)
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    installing("hanging_plugin", source, {"oracles": {"mine": "hanging_plugin:Oracle"}})
    with pytest.raises(plugins.PluginError, match=r"plugin 'mine' of .*: it has not ended after 0 s, at .*\.py:\d+"):
        plugins.load("oracles", "mine")
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == before


def test_a_signal_of_the_user_s_is_not_the_plugin_s(installing: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.interrupts, "was_heard", lambda: True)
    installing("slow_plugin", "while True: pass\n", {"targets": {"mine": "slow_plugin:Target"}})
    with pytest.raises(KeyboardInterrupt):
        plugins.load("targets", "mine")


def test_a_part_that_a_plugin_names_is_imported_with_the_same_care() -> None:
    for reference in ("nothing_of_that_name:Planner", "specdebug.base.plugins:Planner"):
        with pytest.raises(plugins.PluginError, match=f"the planner cannot be loaded from {reference}: "):
            plugins.import_named(reference, "the planner")
