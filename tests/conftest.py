"""What must be settled before any test module is imported.

Without a GPU, Triton kernels run in Triton's interpreter, on CPU tensors; Triton decides when it is imported, and some
test modules import it while they are collected.

A test marked ``gpu`` is skipped where there is no CUDA device, however the tests were chosen.

No property is timed: a busy machine is no failure.

``SPECDEBUG_TEST_MARGINS`` has every comparison of floats recorded; see :mod:`tests.margins`.

A shell starts background jobs with SIGINT ignored, ``nohup`` its job with SIGHUP ignored, and children inherit that:
tests of interrupts would wait for ever.
"""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import margins
from tests.fuzzing.measure import Tally

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

os.environ["SPECDEBUG_CONFIG"] = ""  # no test depends on a configuration file above the working directory
for name in ("SGLANG_DEBUG_REVERT_PR", "SPECDEBUG_PATH", "SPECDEBUG_TRIAL_SEED"):
    os.environ.pop(name, None)  # nor on what the shell asks of every command
for name in ("RAY_ADDRESS", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)  # nor on where it runs

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

if margins.VARIABLE in os.environ:
    margins.install(Path(os.environ[margins.VARIABLE]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a device that is not here."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what readers of files took at most, a line for each kind that was fuzzed."""
    passed = terminalreporter.getreports("passed")
    told = [value for report in passed for name, value in report.user_properties if name == "fuzzed"]
    if told:
        terminalreporter.section("readers of files")
        for value in told:
            terminalreporter.line(Tally(**value).line())
