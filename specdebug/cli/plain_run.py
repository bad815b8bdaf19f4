"""``specdebug run -- CMD``, which reverts nothing: its processes only tell what they import."""

import os
import sys

from specdebug.base.errors import SpecDebugError
from specdebug.patching.hook.folder import HookedRun
from specdebug.workers.foreground import run_here


def main() -> None:
    """Run the command behind the dashes, and end with its exit status."""
    words = sys.argv[3:]
    try:
        if not words:
            raise SpecDebugError("run needs a command after --, as in: specdebug run -- ./job.sh")
        with HookedRun() as run:
            status = run_here(words, run.environment(os.environ))
    except SpecDebugError as error:
        print(f"error: {error}", file=sys.stderr)
        status = error.exit_code
    sys.exit(status)
