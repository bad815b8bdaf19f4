"""What to call the failure of a command: a signature of ours if its output holds one, else an assertion, else its end.

The output is somebody else's, so only what is plain is recognised, and numbers that differ from run to run are left
out of names.
"""

from __future__ import annotations

import re
import signal

from specdebug.harness.outcome import RANK
from specdebug.trials.process import Ended

MAX_NAME = 80

_KINDS = "|".join(sorted((re.escape(kind) for kind in (*RANK, "oom")), key=len, reverse=True))
_SITE = r"(?:[\w.:/\[\]]|-(?!>))+"
_OURS = re.compile(rf"(?<![\w.@:/-])((?:{_KINDS})@{_SITE}(?:->{_SITE})?|crash:SIG[A-Z]+)")
_C_ASSERTION = re.compile(r"(?P<file>[^\s:]+):\d+: [^\n]*?Assertion [`'](?P<text>[^\n]*?)['`]? failed")
_PYTHON_ASSERTION = re.compile(r"^(?:E\s+)?AssertionError(?:: (?P<text>[^\n]*))?$", re.MULTILINE)
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")


def signature_of(ended: Ended) -> str:
    """Name the failure of a command that did not succeed: ``hang`` if it was killed at its deadline, what its output
    says it is, ``signal:SIGSEGV``, or ``exit:1``."""
    if ended.timed_out:
        return "hang"
    return signature_in(ended.output) or _of_status(ended.status)


def signature_in(output: str) -> str | None:
    """The first of our signatures in a text, else its first failed assertion, else None."""
    if found := _OURS.search(output):
        return found[1].rstrip(".:")
    if found := _C_ASSERTION.search(output):
        return _name(f"assert@{found['file'].rpartition('/')[2]}:{found['text']}")
    if found := _PYTHON_ASSERTION.search(output):
        return _name(f"assert:{found['text'] or 'AssertionError'}")
    return None


def _name(text: str) -> str:
    return " ".join(_VARIES.sub("#", text).split())[:MAX_NAME]


def _of_status(status: int) -> str:
    if status >= 0:
        return f"exit:{status}"
    try:
        return f"signal:{signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"signal:{-status}"
