"""The ``specdebug`` command, also as ``python -m specdebug``: load the command line, then run it."""

import os
import signal
import sys


def main() -> None:
    """Run the command line that this process was started with."""
    # Until it is loaded there is nothing to end or to say: a Ctrl-C ends the process, wherever its imports are.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    if sys.argv[1:3] == ["run", "--"]:  # costs a job little: the command line is not loaded for it
        from specdebug.cli.plain_run import main as command
    else:
        from specdebug.cli.main import main as command
    command()


if __name__ == "__main__":
    main()
