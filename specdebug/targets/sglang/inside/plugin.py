"""The entry point: SGLang calls :func:`register` in each process of a server, before it imports its models."""

from __future__ import annotations

import json
import os
import traceback

from specdebug.targets.inside.reverts import revert
from specdebug.targets.inside.words import VARIABLE, say
from specdebug.targets.sglang.inside.stand_ins import prepare_for_cpu

FAILED = 86
"""Exit status of a process in which this failed."""


def register() -> None:
    """Revert what ``words.VARIABLE`` asks for, and on a CPU stand in for what needs a GPU. What fails ends the process:
    it would be judged for what it is not."""
    wanted = json.loads(os.environ.get(VARIABLE, "null"))
    if wanted is None:
        return
    try:
        if wanted.get("reverts"):
            revert(wanted["reverts"])  # first: what is replaced below imports what is to be patched
        if wanted.get("device") == "cpu":
            prepare_for_cpu()
    except BaseException:
        traceback.print_exc()
        say("failed; this process ends")
        os._exit(FAILED)
