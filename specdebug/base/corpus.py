"""The text checkpoints are trained on and scenarios draw prompts from: the interpreter's own library sources.

A file's place in the split depends on its path inside the library alone. Imports no torch.
"""

import hashlib
import os
import sysconfig
import zlib
from functools import lru_cache
from pathlib import Path

HELD_OUT_ONE_IN = 10

# Not prose-like source: other people's packages, tests (absent from many builds), generated tables and text.
_SKIPPED_FOLDERS = frozenset(
    {
        "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "ensurepip",
        "turtledemo", "encodings", "pydoc_data", "__pycache__",
    }
)  # fmt: skip


def stdlib_root() -> Path:
    """The folder that holds the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def is_held_out(relative_path: str) -> bool:
    """Return True if the file at this POSIX path, relative to the library's root, is kept out of all training."""
    return zlib.crc32(relative_path.encode()) % HELD_OUT_ONE_IN == 0


def heldout_files() -> tuple[Path, ...]:
    """Library sources no checkpoint was trained on, by relative path, ascending."""
    return tuple(stdlib_root() / name for name in _relative_paths() if is_held_out(name))


def train_files() -> tuple[Path, ...]:
    """Library sources that checkpoints are trained on, by relative path, ascending."""
    return tuple(stdlib_root() / name for name in _relative_paths() if not is_held_out(name))


def read_source(path: Path) -> str:
    """One source file as text; undecodable bytes become U+FFFD, so that no file can stop a run."""
    return path.read_text(encoding="utf-8", errors="replace")


@lru_cache(maxsize=1)
def heldout_text() -> str:
    """The held-out files in order, each ended by a blank line."""
    return "\n\n".join(read_source(path).rstrip() for path in heldout_files()) + "\n"


def digest() -> str:
    """SHA-256 over every path and its bytes: two machines with equal digests draw equal prompts."""
    root = stdlib_root()
    total = hashlib.sha256()
    for name in _relative_paths():
        data = (root / name).read_bytes()
        total.update(f"{name}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


@lru_cache(maxsize=1)
def _relative_paths() -> tuple[str, ...]:
    root = str(stdlib_root())
    names = []
    for folder, folders, files in os.walk(root):
        # pruned, not filtered: site-packages may hold more files than the library itself
        # config-3.11-x86_64-linux-gnu and _sysconfigdata_* describe one build, not the library
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("config-")]
        inside = os.path.relpath(folder, root)
        names += [
            (name if inside == "." else f"{inside}/{name}").replace(os.sep, "/")
            for name in files
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return tuple(sorted(names))
