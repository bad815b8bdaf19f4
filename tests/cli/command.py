"""The command in a process of its own."""

import os
import subprocess
import sys

COMMAND = [sys.executable, "-c", "from specdebug.cli.main import main; main()"]


def spawn(*argv: str, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it in the test's folder, with these variables besides; raises TimeoutExpired after so many seconds."""
    words, variables = [*COMMAND, *argv], os.environ | env
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=timeout, check=False)
