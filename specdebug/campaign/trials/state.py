"""The state of what trials run: a result belongs to it, however alike the command stays.

Facts by name: the files that a command names, the git working trees (or code) that these and its folder lie in, and the
packages of its interpreters. A value is text for a reader, and behind ``#`` a digest of what the text does not tell."""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from specdebug import __version__
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import SpecDebugError, one_line
from specdebug.base.git import ask, git
from specdebug.base.interpreters import other_python
from specdebug.scenario.checks import asked_of
from specdebug.scenario.grammar import Scenario
from specdebug.targets.registry import find_target
from specdebug.targets.settings import SERVE, LaunchedServer, ReleasedEngine, TargetChoice

State = Mapping[str, str]

SEVERAL = {"trials": "of several states"}
"""In the place of the state of what was gone on with after a change: none is like it."""
_UNKNOWN = "what was kept is of several states, or of one that it does not tell"
_MOST_DIFFERENCES = 3
READ_LIMIT = 16 * 2**20  # bytes of a file that are read; of a larger one its size and its time stand for it
_SCRIPT_BYTES = 2**20
_CODE = (".py", ".so", ".sh", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp", ".toml", ".cfg", ".ini", ".yaml")
"""Endings of files that decide what a program does; a job writes its results into others."""
_BUILD_FILES = ("Makefile", "Dockerfile", "justfile")
_INSTALLED = (".py", ".so", ".pth", ".egg-link", "RECORD", "direct_url.json")
_MOST_FILES = 50_000  # files of a folder that are looked at
_SITES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages")
_PACKAGE = Path(__file__).resolve().parents[2]
_PATHS = re.compile(r"[\w./~+-]+")
_PROGRAMS = ("python3", "python")
_ASKED = "import sys; print(sys.prefix)"


def read_state(plain: Any) -> State | None:
    """Return the state that was written so; None where that is none."""
    texts = isinstance(plain, dict) and all(isinstance(each, str) for pair in plain.items() for each in pair)
    return plain if texts else None


def differences(before: State | None, now: State) -> list[str]:
    """Return in words what differs between two states, what can be told in full first."""
    if not before or before == SEVERAL:
        return [_UNKNOWN]
    told = []
    for name in sorted({*before, *now}):
        old, new = (each.get(name, "none") for each in (before, now))
        if old != new:
            shown = [each.partition("#")[0].strip() for each in (old, new)]
            same = shown[0] == shown[1]
            told.append((same, f"{name} changed" if same else f"{name}: {shown[0] or '?'} -> {shown[1] or '?'}"))
    return [text for _, text in sorted(told)]


def shortly(differs: Sequence[str]) -> str:
    """Return the first of some differences on one line, and how many more there are."""
    first = [one_line(text, 300) for text in differs[:_MOST_DIFFERENCES]]
    return "; ".join([*first, *([f"and {len(differs) - len(first)} more"] if len(differs) > len(first) else [])])


def command_state(command: Sequence[str], cwd: Path) -> dict[str, str]:
    """Return the state of all that a command in ``cwd`` is known to run."""
    files = files_of(command, cwd)
    state = {name: content_digest(path.resolve()) for name, path in files.items()}
    scripts = {path: _script(path) for path in files.values()}
    folders = [cwd, *(cwd / word for word in command if (cwd / word).is_dir())]
    folders += [path.parent for path, text in scripts.items() if text is not None and path.parent.name != "bin"]
    paths = (cwd / each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)
    folders += [path for path in paths if path.is_dir()]
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        state |= tree_state(folder)
    for prefix in _prefixes(command, scripts, cwd):
        state |= packages_state(prefix)
    return state


def imported_state(packages: Mapping[str, str]) -> dict[str, str]:
    """Return the state of packages that a job imported, by their origins: of an installed one all that is beside it, of
    a checkout its tree."""
    folders = {Path(origin).parent if Path(origin).suffix else Path(origin) for origin in packages.values() if origin}
    sites = {folder.parent for folder in folders if folder.parent.name in ("site-packages", "dist-packages")}
    sites |= {folder for folder in folders if folder.name in ("site-packages", "dist-packages")}  # of a single module
    state: dict[str, str] = {}
    for prefix in sorted({site.parents[2] for site in sites}):
        state |= packages_state(prefix)
    for folder in sorted(folder for folder in folders if not {folder, folder.parent} & sites and folder.is_dir()):
        state |= tree_state(folder)
    return state


def own_state() -> dict[str, str]:
    """Return the state of this package's own code, and of the packages beside it."""
    return {"specdebug": f"{__version__} {folder_digest(_PACKAGE, ('.py',), content=True)}", **own_packages()}


def own_packages() -> dict[str, str]:
    return packages_state(Path(sys.prefix), besides=_PACKAGE.parent)


def files_of(command: Sequence[str], cwd: Path) -> dict[str, Path]:
    """Return the files that a command's words name, the program on the ``PATH`` among them, each by its word."""
    found = {}
    for number, word in enumerate(command):
        program = shutil.which(word) if number == 0 and os.sep not in word else None
        words = [word]
        if number and any(map(str.isspace, word)):  # a shell's command line, as far as it can be read
            try:
                words = shlex.split(word)
            except ValueError:
                words = word.split()
        for each in words:
            with contextlib.suppress(OSError, ValueError):  # a word that only looks like a path
                if (path := cwd / (program or each)).is_file():
                    found[each] = path
    return found


def tree_state(folder: Path) -> dict[str, str]:
    """Return the commit of the git working tree that a folder lies in, with what is changed there, or the code in a
    folder that git knows nothing of."""
    top = ask(folder, "rev-parse", "--show-toplevel") if shutil.which("git") else None
    if top is None or ask(folder, "check-ignore", "--quiet", ".") is not None:
        state = {f"code in {folder}": folder_digest(folder, _CODE, content=True)}
        return state if top is None else state | _of_tree(Path(top))
    return _of_tree(Path(top))


def packages_state(prefix: Path, besides: Path | None = None) -> dict[str, str]:
    """Return the packages below an interpreter's prefix, and the checkouts that are installed from where they lie,
    but for ``besides``."""
    state: dict[str, str] = {}
    sites = (site for each in (prefix, *_base_of(prefix)) for kind in _SITES for site in sorted(each.glob(kind)))
    for site in dict.fromkeys(site.resolve() for site in sites):
        for name in sorted(path.name for path in site.glob("*.dist-info")):
            distribution, _, version = name.removesuffix(".dist-info").partition("-")
            state[f"{distribution} in {site}"] = version
        state[f"files of {site}"] = folder_digest(site, _INSTALLED)
        for checkout in _checkouts(site):
            if checkout != besides:
                state |= tree_state(checkout)
    return state


def _of_tree(top: Path) -> dict[str, str]:
    commit = ask(top, "rev-parse", "--verify", "--quiet", "HEAD") or "none"
    digest = hashlib.blake2b(digest_size=8)
    state: dict[str, str] = {}
    listed = changed_files(top)
    for kind, name in listed:
        path = top / name
        if path.is_dir() and not path.is_symlink():  # a repository within it
            state |= tree_state(path) if (path / ".git").exists() else {}
        digest.update(f"{kind} {name} {content_digest(path)}\0".encode(errors="surrogateescape"))
    changed = f", {len(listed)} files changed or untracked #{digest.hexdigest()}" if listed else ""
    return {f"working tree {top}": f"commit {commit[:12]}{changed}", **state}


def _prefixes(command: Sequence[str], scripts: Mapping[Path, str | None], cwd: Path) -> list[Path]:
    """Return the prefixes of the interpreters that a command may use: those of its words, of what its scripts name,
    of the environment that is active, and of the ``PATH``."""
    own = shutil.which(command[0])
    programs = [*([] if own is None else [Path(own)]), *scripts]
    for path, text in (*scripts.items(), (cwd, " ".join(command))):
        named = [each for each in _PATHS.findall(text or "") if "bin/" in each]
        programs += [folder / os.path.expanduser(name) for name in named for folder in (cwd, path.parent)]
    active = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    programs += [each / "bin" / "python" for each in (*map(Path, active), cwd / ".venv")]
    found = [program.parent.parent for program in programs if program.parent.name == "bin" and program.exists()]
    found += [_prefix_of(python) for name in _PROGRAMS if (python := shutil.which(name)) is not None]
    return list(dict.fromkeys(Path(os.path.normpath(prefix)) for prefix in found))


def _prefix_of(program: str) -> Path:
    """Return the prefix of an interpreter; a program that stands for one, as pyenv's do, is asked."""
    prefix = Path(program).parent.parent
    if any(any(prefix.glob(kind)) for kind in _SITES):
        return prefix
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = other_python(program, "-c", _ASKED)
        asked = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=10, check=True)
        return Path(os.fsdecode(asked.stdout.rstrip(b"\n")))
    return prefix


def _base_of(prefix: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError, ValueError):
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        told = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
        if told.get("include-system-site-packages", "").lower() == "true" and "home" in told:
            yield Path(told["home"]).parent


def _checkouts(site: Path) -> Iterator[Path]:
    """Folders that a ``.pth`` file, or the record of an editable install, leads to."""
    for path in sorted((*site.glob("*.pth"), *site.glob("*.egg-link"))):
        for line in (_script(path, anything=True) or "").splitlines():
            with contextlib.suppress(OSError, ValueError):
                if os.path.isabs(line.strip()) and Path(line.strip()).is_dir():
                    yield Path(line.strip())
    for path in sorted(site.glob("*.dist-info/direct_url.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            told = json.loads(path.read_bytes())
            place = Path(unquote(urlsplit(told["url"]).path))
            if told.get("dir_info", {}).get("editable") and place.is_dir():
                yield place


def _script(path: Path, *, anything: bool = False) -> str | None:
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _SCRIPT_BYTES:
            data = path.read_bytes()
            if anything or data.startswith(b"#!") or path.suffix in _CODE:
                return data.decode(errors="replace")
    return None


def content_digest(path: Path) -> str:
    """Return a digest of a file's content; of a link's, where it leads."""
    try:
        if path.is_symlink():
            return "#" + digest_of(os.readlink(path))
        found = path.stat()
        if not path.is_file() or found.st_size > READ_LIMIT:
            return "#" + digest_of(str(found.st_size), str(found.st_mtime_ns))
        return "#" + hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return "gone"


def folder_digest(folder: Path, endings: tuple[str, ...] = ("",), *, content: bool = False) -> str:
    """Return a digest of the files of a folder and of those in it: where each lies, and its size and time, or its
    content."""
    told = []
    for path in itertools.islice(_walk(folder, endings), _MOST_FILES):
        with contextlib.suppress(OSError):
            found = path.stat()
            told.append(f"{path} {content_digest(path) if content else (found.st_size, found.st_mtime_ns)}")
    return "#" + digest_of(*told)


def _walk(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        own = (name for name in folders if not name.startswith(".") and name != "__pycache__")
        folders[:] = sorted(name for name in own if not Path(top, name, "pyvenv.cfg").exists())
        for name in sorted(names):
            if name.endswith(endings) or name in _BUILD_FILES:
                yield Path(top, name)


def digest_of(*facts: str) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for fact in facts:
        data = fact.encode("utf-8", errors="surrogateescape")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def arm_state(scenario: Scenario, arm: str) -> dict[str, str]:
    """Return the state that an arm's trials belong to, but for the content of its scenario."""
    state = own_state()
    with contextlib.suppress(SpecDebugError):  # what cannot be is told by the first trial
        model = checkpoint_path(asked_of(scenario, arm).model)
        state[f"checkpoint {model}"] = folder_digest(model)
    return state | engine_state(scenario.target_of(arm))


def engine_state(choice: TargetChoice) -> dict[str, str]:
    """Return the state of an engine that is not ours: the packages of an installed one, and of a checkout in its place
    the files, or what a command starts."""
    from specdebug.targets.installed import InstalledTarget

    if isinstance(choice, LaunchedServer) and choice.command != SERVE:
        with contextlib.suppress(ValueError):
            return command_state(shlex.split(choice.command), Path.cwd())
    target = find_target(choice)
    if isinstance(target, InstalledTarget):
        state: dict[str, str] = {}
        with contextlib.suppress(SpecDebugError):
            state = packages_state(Path(target.installed().python).parent.parent)
        if isinstance(choice, ReleasedEngine) and choice.tree is not None and choice.commit is None:
            state |= tree_state(Path(choice.tree).expanduser())
        return state
    return {}


def changed_files(top: Path) -> list[tuple[str, str]]:
    """Return the files of a working tree that differ from its commit, or that git neither knows nor ignores, each with
    git's two letters for how."""
    words = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    asked = git(top, "--no-optional-locks", *words)
    listed = os.fsdecode(asked.stdout).split("\0") if asked.returncode == 0 else []
    return [(entry[:2], entry[3:]) for entry in listed if len(entry) > 3]
