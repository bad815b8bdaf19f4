"""The words that start a Python with ``-I``, so that none takes a module from a working folder or ``PYTHONPATH``.

``tests/base/test_interpreters.py`` holds every start in the source to it.
"""

import json
import sys

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "


def own_python(code: str, *arguments: str) -> list[str]:
    """The command that runs ``code`` in this interpreter, which imports from where this process does; its ``sys.argv``
    holds the arguments from 1 on."""
    unwritten = ("-B",) if sys.dont_write_bytecode else ()
    return [sys.executable, "-I", "-u", *unwritten, "-c", _BOOT + code, json.dumps(sys.path), *arguments]


def other_python(python: str, *words: str) -> list[str]:
    """The command of another interpreter, such as one of an engine's environment, which imports what it has itself."""
    return [python, "-I", *words]


def engine_python(python: str, *words: str) -> list[str]:
    """As :func:`other_python`, of one that also finds what a ``PYTHONPATH`` of ours names
    (``targets/installed.py``)."""
    return [python, "-P", "-s", *words]


ENGINE_ENV = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
"""Variables by which the processes that an engine starts do as :func:`engine_python`."""
