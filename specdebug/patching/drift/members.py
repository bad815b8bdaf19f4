"""The files of a wheel, an sdist or a folder, by their path inside it. They are read in memory, never unpacked."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import one_line

MAX_MEMBER_BYTES = 16 << 20
MAX_TOTAL_BYTES = 512 << 20

_TAR_ENDINGS = (".tar.gz", ".tgz")
_METADATA = ("METADATA", "PKG-INFO", "pyproject.toml")
_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, OSError)


class Members(ABC):
    """Python files and metadata of one distribution. Paths have ``/`` and no leading folder of an sdist's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Every path, sorted."""

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]: ...

    def read(self, name: str) -> bytes:
        """Raises SpecDebugError for a file that is damaged, or larger than any source is."""
        try:
            with self._open(name) as stream:
                data = stream.read(MAX_MEMBER_BYTES + 1)
        except _DAMAGE as error:
            raise SpecDebugError(f"{self.path}: {one_line(name)} cannot be read: {_reason(error)}") from None
        if len(data) > MAX_MEMBER_BYTES:
            raise SpecDebugError(
                f"{self.path}: {one_line(name)} is larger than {MAX_MEMBER_BYTES >> 20} MiB; no source is"
            )
        return data

    def place(self, name: str) -> str:
        """A file as a person finds it: inside an archive its path there."""
        return name


def open_members(path: str | Path) -> Members:
    """Open a wheel (.whl), an sdist (.tar.gz), a folder. Raises SpecDebugError for anything else, or a damaged one."""
    file = Path(path)
    shown = one_line(str(path), 200)
    try:
        if file.is_dir():
            return _Folder(file)
        if not file.exists():
            raise SpecDebugError(f"{shown}: no such file or folder")
        if not file.is_file():
            raise SpecDebugError(f"{shown} is neither a regular file nor a folder")
    except (OSError, ValueError) as error:
        raise SpecDebugError(f"{shown} cannot be read: {_reason(error)}") from None
    if file.suffix == ".whl":
        return _Wheel(file)
    if file.name.endswith(_TAR_ENDINGS):
        return _Sdist(file)
    raise SpecDebugError(f"{shown} is neither a wheel (.whl), an sdist (.tar.gz) nor a folder")


def open_package(folder: Path) -> Members:
    """The files of one package where it is installed, or in a checkout; nothing beside it."""
    return _Package(folder)


class _Wheel(Members):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile:
            raise SpecDebugError(f"{path} is no wheel: not a zip archive, or cut off; download it again") from None
        except _DAMAGE as error:
            raise SpecDebugError(f"{path} cannot be read: {_reason(error)}") from None

    @cached_property
    def names(self) -> Sequence[str]:
        return sorted(filter(_wanted, self._zip.namelist()))

    def _open(self, name: str) -> IO[bytes]:
        return self._zip.open(name)


class _Sdist(Members):
    """A compressed tar has no index, so everything wanted is read in one pass."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        files: dict[str, bytes] = {}
        total = 0
        try:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    if not member.isfile() or not _wanted(member.name):
                        continue
                    total += member.size
                    if total > MAX_TOTAL_BYTES:
                        raise SpecDebugError(f"{path} holds more than {MAX_TOTAL_BYTES >> 20} MiB of source")
                    stream = archive.extractfile(member)
                    files[member.name.removeprefix("./")] = stream.read(MAX_MEMBER_BYTES + 1) if stream else b""
        except _DAMAGE as error:
            message = f"{path} is no sdist: not a gzipped tar, or cut off; download it again ({_reason(error)})"
            raise SpecDebugError(message) from None
        tops = {name.partition("/")[0] for name in files}
        if len(tops) == 1 and all("/" in name for name in files):
            files = {name.partition("/")[2]: data for name, data in files.items()}
        self._files = files

    @cached_property
    def names(self) -> Sequence[str]:
        return sorted(self._files)

    def _open(self, name: str) -> IO[bytes]:
        return io.BytesIO(self._files[name])


class _Folder(Members):
    @cached_property
    def names(self) -> Sequence[str]:
        found = []
        for folder, folders, files in os.walk(self.path):
            named = [one for one in folders if not one.startswith(".") and one not in _SKIPPED_FOLDERS]
            folders[:] = [one for one in named if not Path(folder, one, "pyvenv.cfg").exists()]
            below = Path(folder).relative_to(self.path)
            wanted = [file for file in files if _wanted(file) and Path(folder, file).is_file()]
            found += [(below / file).as_posix() for file in wanted]
        return sorted(found)

    def _open(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")

    def place(self, name: str) -> str:
        return str(self.path / name)


class _Package(_Folder):
    """One folder of those that lie beside each other; paths begin with its name."""

    @cached_property
    def names(self) -> Sequence[str]:
        return [f"{self.path.name}/{name}" for name in super().names]

    def _open(self, name: str) -> IO[bytes]:
        return (self.path.parent / name).open("rb")

    def place(self, name: str) -> str:
        return str(self.path.parent / name)


def _wanted(name: str) -> bool:
    return name.endswith(".py") or name.rpartition("/")[2] in _METADATA


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(text) or type(error).__name__
