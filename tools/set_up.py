"""Set up the project's own environment, and say what is being installed: ``make`` calls this.

``python3 tools/set_up.py .venv`` makes the environment if there is none and installs specdebug into it, editable; names
of extras (``test``, ``lint``) after the folder install those as well. On a terminal pip shows its progress; elsewhere
there is one line when a phase begins and one when it ends. Only the standard library is used, because nothing else is
there yet, and only what an old Python can read, so that it can say that it is too old.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time an old Python cannot evaluate the alias
    from collections.abc import Callable, Sequence

    Run = Callable[[Sequence[str]], int]

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST = (3, 11)
FOR_CUDA = (
    ": on Linux PyPI has the build for CUDA, up to 2.7 GB to download; "
    f"`make clean demo TORCH_INDEX={CPU_INDEX}` takes the one for CPUs, 0.2 GB"
)
"""Sizes are those of torch 2.13 on x86-64."""


class SetUpError(Exception):
    """The environment could not be made; the message says how to mend it."""


def main(argv: Sequence[str], run: Run = subprocess.call) -> int:
    """Set up as the command line says; returns the exit code. ``run``: runs a command, returns its exit status."""
    parser = argparse.ArgumentParser(description="Set up an environment with specdebug, editable.")
    parser.add_argument("folder", type=Path, help="of the environment, made unless it is there")
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml to install as well")
    parser.add_argument("--torch-index", metavar="URL", help=f"where torch comes from, such as {CPU_INDEX}")
    options = parser.parse_args(argv)
    try:
        check_python(sys.version_info[:2])
        make_environment(options.folder, run)
        pip = [str(options.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
        if not sys.stdout.isatty():
            pip.append("--quiet")
        if options.extras:
            extras = ",".join(options.extras)
            phase(f"the packages of the extras {extras} in pyproject.toml", [*pip, "-e", f"{ROOT}[{extras}]"], run)
        else:
            install_torch(pip, options.torch_index, run)
            phase("specdebug and what else it needs, 0.1 GB to download", [*pip, "-e", str(ROOT)], run)
    except SetUpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def check_python(version: tuple[int, int]) -> None:
    """Raise SetUpError when specdebug cannot run on this version of Python."""
    if version < OLDEST:
        needed, there = (".".join(map(str, each)) for each in (OLDEST, version))
        raise SetUpError(
            f"specdebug needs Python {needed} or newer, and {sys.executable} is {there}; name another one, as in "
            "`make demo PYTHON=python3.12`"
        )


def make_environment(folder: Path, run: Run) -> None:
    """Make the environment unless it is there; pip comes last, so without it the making was cut short. Raises
    SetUpError."""
    if (folder / "bin" / "pip").exists():
        return
    version = ".".join(map(str, sys.version_info[:3]))
    command = [sys.executable, "-m", "venv", str(folder)]
    what = f"an environment of Python {version} in {folder}; all in all about a minute with torch for CPUs"
    phase(what, command, run, " (Debian and Ubuntu need python3-venv for it)")


def install_torch(pip: Sequence[str], index: str | None, run: Run) -> None:
    """Install torch by itself, because it is most of the wait and may come from an index of its own."""
    wanted = requirement("torch", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = ["--index-url", index] if index else []
    hint = FOR_CUDA if sys.platform == "linux" else ""
    phase(f"torch from {index}" if index else f"torch{hint}", [*pip, *source, wanted], run)


def requirement(name: str, pyproject: str) -> str:
    """The requirement on a package among the project's dependencies. Raises SetUpError when there is none."""
    import tomllib  # only there since Python 3.11, which has been made sure of by now

    for each in tomllib.loads(pyproject)["project"]["dependencies"]:
        if re.split(r"[^A-Za-z0-9_.-]", each)[0] == name:
            return str(each)
    raise SetUpError(f"pyproject.toml has no dependency on {name}")


def phase(what: str, command: Sequence[str], run: Run, hint: str = "") -> None:
    """Run one command between a line that says what it is and one that says how long it took. Raises SetUpError."""
    print(f"== {what}", flush=True)
    began = time.monotonic()
    status = run(command)
    if status != 0:
        shown = " ".join(command)
        raise SetUpError(f"`{shown}` ended with exit status {status}; what it says is above{hint}")
    print(f"   done in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
