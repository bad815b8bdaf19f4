"""``python -m specdebug``: the command line."""

from specdebug.cli.main import main

main()
