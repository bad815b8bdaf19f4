"""The words that start a Python with ``-I``, so that none takes a module from a working folder or ``PYTHONPATH``.

``tests/base/test_interpreters.py`` holds every start in the source to it.
"""

import json
import sys
from collections.abc import Sequence

_BOOT = "import json, sys; sys.path[:{}] = json.loads(sys.argv.pop(1)); "


def own_python(code: str, *arguments: str) -> list[str]:
    """The command that runs ``code`` in this interpreter, which imports from where this process does; its ``sys.argv``
    holds the arguments from 1 on."""
    return _running(sys.executable, _BOOT.format("") + code, sys.path, arguments)


def home_python(python: str, path: Sequence[str], code: str, *arguments: str) -> list[str]:
    """As :func:`own_python`, in another interpreter, which imports from ``path`` before it does from its own."""
    return _running(python, _BOOT.format(0) + code, path, arguments)


def _running(python: str, code: str, path: Sequence[str], arguments: Sequence[str]) -> list[str]:
    unwritten = ("-B",) if sys.dont_write_bytecode else ()
    return [python, "-I", "-u", *unwritten, "-c", code, json.dumps(path), *arguments]


def other_python(python: str, *words: str) -> list[str]:
    """The command of another interpreter, such as one of an engine's environment, which imports what it has itself."""
    return [python, "-I", *words]


def engine_python(python: str, *words: str) -> list[str]:
    """As :func:`other_python`, of one that also finds what a ``PYTHONPATH`` of ours names
    (``targets/installed.py``)."""
    return [python, "-P", "-s", *words]


ENGINE_ENV = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
"""Variables by which the processes that an engine starts do as :func:`engine_python`."""
