"""The name of a command's failure: the signature in its output, as triage reads it, else its exit status.

``REVISION`` changes when failures come to be named otherwise: trials named in two ways must not be counted together.
"""

from __future__ import annotations

import signal

from specdebug.logs.checks import died_of
from specdebug.logs.scan import Scan

REVISION = "names 4"

HANG = "hang"
_LITTLE = ("exit:", "signal:", "error:", "assert:", "test:", "panic:", "crash:SIGKILL", "crash:SIGTERM")


def name_of(log: Scan, status: int) -> str:
    """Name the failure of a command: the strongest signature of its output and of the signal that ended it, else
    ``exit:1``.

    Args:
        log: the scan of its whole output.
        status: its exit status; negative for the signal that killed it, 128 + n where a shell says that of signal n.
    """
    main, died = log.main, died_of(status)
    if main is not None and (died is None or main.strength <= died.strength or _aborts(main.signature, died.signature)):
        return main.signature
    if died is not None:
        return died.signature
    if status >= 0:
        return f"exit:{status}"
    try:
        return f"signal:{signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"signal:{-status}"


def _aborts(said: str, died: str) -> bool:
    """Return True for an abort after a hang: a watchdog ends its process so."""
    return died == "crash:SIGABRT" and said.startswith(HANG)


def tells_of_damage(signature: str) -> bool:
    """Return False for a name that only says that an exception, a test, a kill or an exit code ended the run, however
    precisely."""
    return not signature.startswith(_LITTLE)
