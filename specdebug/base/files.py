"""Open files that come by name from elsewhere: regular files only, so that no read waits; and write files whole."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class NotAFile(OSError):
    """A path leads to a pipe, a socket, a device or a folder; ``strerror`` says to which."""


class NotOwn(OSError):
    """The content of a path may be another user's word; ``strerror`` says why."""


class TooLarge(OSError):
    """A file holds more bytes than its reader takes; ``strerror`` says how many that is."""


def open_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading bytes, without waiting.

    Raises NotAFile where the path leads to something else, and OSError, whose ``strerror`` is always set. A path with a
    NUL byte is one that leads nowhere.
    """
    try:
        # Opening a pipe waits for a writer unless told not to; of a regular file the flag changes nothing.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise FileNotFoundError(2, str(error), str(path)) from None
    except OSError as error:
        if kind := kind_of(path):  # a socket cannot be opened at all
            raise NotAFile(error.errno, f"is {kind}, not a file", str(path)) from None
        raise
    try:
        found = os.fstat(descriptor)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode))
        if kind is not None and not os.path.samestat(found, os.stat(os.devnull)):  # which is an empty file
            raise NotAFile(22, f"is {kind}, not a file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: str | Path, limit: int, own: bool = False) -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes. Raises as ``open_file``, TooLarge, and where it
    must be the user's ``own``, as ``require_own``."""
    with open_file(path) as file:
        if own:
            require_own(path, os.fstat(file.fileno()))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(27, f"is larger than the {limit >> 20} MiB that are read of it", str(path))
    return data


def require_own(path: str | Path, found: os.stat_result | None = None) -> None:
    """Raise NotOwn where a file or folder, or a link that leads to it, belongs to another user than this one and root,
    or anybody may change it. ``found``: of what was opened there, which a path may not lead to any more."""
    owners = _owners()
    for each in (os.lstat(path), found or os.stat(path)):
        if each.st_uid not in owners:
            raise NotOwn(1, f"belongs to another user (uid {each.st_uid})", str(path))
        kept = stat.S_ISLNK(each.st_mode) or (stat.S_ISDIR(each.st_mode) and each.st_mode & stat.S_ISVTX)
        if each.st_mode & stat.S_IWOTH and not kept:
            raise NotOwn(1, "can be written by every user", str(path))


def _owners() -> tuple[int, ...]:
    return (os.getuid(), 0) if hasattr(os, "getuid") else (0,)


def cache_folder(name: str) -> Path:
    """A folder of the user's own cache, which may not be there yet: what is kept there lies in no shared folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "specdebug" / name


def kind_of(path: str | Path) -> str | None:
    """Return in words what a path leads to, such as "a pipe"; None for a regular file, and where nothing is known."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return None


def name_beside(path: Path) -> Path:
    """A free path in the same folder, which no other process can make before us by guessing it."""
    return path.with_name(f".specdebug-{secrets.token_hex(8)}")


def made_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder whole or not at all, unless it is there: ``write`` fills an empty one. Raises OSError."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = name_beside(folder)
    with contextlib.ExitStack() as undo:  # also for a Ctrl-C
        undo.callback(shutil.rmtree, beside, ignore_errors=True)
        beside.mkdir()
        write(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was not quicker
                raise


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and keep its permissions; the file of before stays if it cannot be written.

    What is no regular file, such as a terminal, is written to. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))
    beside = name_beside(path)
    with contextlib.ExitStack() as undo:  # also for a Ctrl-C
        try:
            file = open(beside, "xb")  # noqa: SIM115 - closed below, after what undoes it is in place
        except PermissionError:
            path.write_bytes(data)  # nothing may be added to the folder, but the file may be written
            return
        undo.callback(beside.unlink, missing_ok=True)
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # its name must not be on the disk before it is
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
        undo.pop_all()
