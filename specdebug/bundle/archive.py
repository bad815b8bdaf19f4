"""The container: a zip archive whose manifest names every member with its size and SHA-256.

A bundle may come from a stranger, so everything is checked before anything is used: names, sizes as declared and as
read, digests, format version. Members are never extracted, and only those that are asked for are held in memory:
a few KiB can unpack to hundreds of MiB, so every reader says how much room it has for what.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from specdebug.base.errors import SpecDebugError
from specdebug.base.files import NotAFile, open_file, replace_file
from specdebug.base.yamlio import one_line
from specdebug.bundle import ENDING
from specdebug.workers.machine_failure import blamed

MANIFEST = "manifest.json"
FORMAT = "specdebug-bundle"
VERSION = 2  # of the format, the one that is read; raised with every change of it

MAX_MEMBERS = 1000
MAX_MEMBER = 64 << 20
MAX_TOTAL = 256 << 20
MAX_MANIFEST = 1 << 20
MAX_HELD = 100 << 20  # bytes of all members together that are held
MAX_DIRECTORY = 1 << 20
"""Bytes of the archive's list of its members, which zipfile reads before it says how many there are."""

Room = Callable[[str], int]
"""The number of bytes of a member, by its name, that may be held; 0 for one that is checked and not held."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_LOCAL_HEADER = b"PK\x03\x04"
_END = struct.Struct("<4s4H2LH")
_END_MARK, _END64_MARK = b"PK\x05\x06", b"PK\x06\x07"
_CHUNK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip archive can state; no member's time says anything
_REGULAR_FILE = 0o100644 << 16
_ENCRYPTED = 1
_DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, struct.error, RuntimeError, OverflowError, ValueError)
"""Errors that zipfile raises over archives that are not as they should be."""


def check_target(path: Path, force: bool) -> None:
    """Raises SpecDebugError now if a bundle could not be written there later, or would overwrite something."""
    if path.suffix != ENDING:
        raise SpecDebugError(f"cannot write {path}: a bundle's name ends in {ENDING}, by which replay knows it")
    if path.is_dir():
        raise SpecDebugError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise SpecDebugError(f"cannot write {path}: no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise SpecDebugError(f"cannot write {path}: the folder {path.parent} is read-only")
    if path.exists() and not force:
        raise SpecDebugError(f"{path} is there already; --force overwrites it")


def anything(name: str) -> int:
    """The room of a reader that holds every member."""
    return MAX_MEMBER


def write_archive(
    path: Path, facts: Mapping[str, Any], members: Mapping[str, bytes], force: bool = False, room: Room = anything
) -> None:
    """Write a bundle, whole or not at all: manifest first, then the members by name. Raises SpecDebugError. ``facts``:
    those of the manifest beside format, version and members. ``force``: overwrite what is there. ``room``: of its
    reader to come; what has none there is not written."""
    check_target(path, force)
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(members.items())
    }
    manifest = {"format": FORMAT, "version": VERSION, **facts, "members": listed}
    written = {MANIFEST: json.dumps(manifest, indent=2, allow_nan=False).encode(), **dict(sorted(members.items()))}
    _check_sizes(path, {name: len(data) for name, data in written.items()}, room)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in written.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, _REGULAR_FILE
            archive.writestr(entry, data)
    _store(path, packed.getvalue(), force)


def _store(path: Path, data: bytes, force: bool) -> None:
    """Write a file, whole or not at all; one that is there stays unless ``force``."""
    with contextlib.ExitStack() as undo:  # also for a Ctrl-C
        try:
            if force:
                replace_file(path, data)
            else:
                with open(path, "xb") as file:
                    undo.callback(path.unlink, missing_ok=True)
                    file.write(data)
        except FileExistsError:
            raise SpecDebugError(f"{path} is there already; --force overwrites it") from None
        except OSError as error:
            raise blamed(SpecDebugError, f"cannot write {path}: {error.strerror}", error) from None
        undo.pop_all()


def read_archive(path: str | Path, room: Room = anything) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the members of a bundle that is whole and of a version that can be read. A member for which
    there is no ``room`` is checked like the others; it is not among those that are returned, and the manifest names it.
    Raises SpecDebugError, one line that names the file and what is wrong with it."""
    try:
        with open_file(path) as file:
            start = file.read(len(_LOCAL_HEADER))
            if start != _LOCAL_HEADER:
                raise SpecDebugError(f"{path}: is not a bundle{'; it is empty' if not start else ''}")
            try:
                _check_directory(path, file)
                with zipfile.ZipFile(file) as archive:
                    return _read(path, archive, room)
            except _DAMAGE as error:
                what = "it is truncated" if "not a zip file" in str(error) else one_line(str(error), 80)
                raise SpecDebugError(f"{path}: is damaged ({what}); fetch it again") from None
    except FileNotFoundError:
        raise SpecDebugError(f"{path}: no such file") from None
    except NotAFile as error:
        raise SpecDebugError(f"{path}: {str(error.strerror).removesuffix('file')}bundle") from None
    except OSError as error:
        raise SpecDebugError(f"{path}: cannot be read: {error.strerror or one_line(str(error), 80)}") from None


def _check_directory(path: str | Path, file: BinaryIO) -> None:
    """Refuse a list of members that is longer than any bundle's, before zipfile makes an object of every entry. zipfile
    takes an end record without a comment if there is one, else the last mark in the last 64 KiB; a bundle is read only
    if it ends with such a record, and is not of the large kind, whose numbers stand elsewhere."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size - 20))
    tail = file.read()
    file.seek(0)
    mark, *_, directory, _, comment = _END.unpack(tail[-_END.size :].rjust(_END.size, b"\0"))
    if mark != _END_MARK or comment:
        raise ValueError("not a zip file, or one with something behind it")
    if tail.startswith(_END64_MARK):
        raise SpecDebugError(f"{path}: is packed in a way that no bundle is; unpack and zip it plainly")
    if directory > MAX_DIRECTORY:
        raise SpecDebugError(f"{path}: holds more members than the {MAX_MEMBERS} a bundle may have")


def _read(path: str | Path, archive: zipfile.ZipFile, room: Room) -> tuple[dict[str, Any], dict[str, bytes]]:
    entries = archive.infolist()
    if len(entries) > MAX_MEMBERS:
        raise SpecDebugError(f"{path}: holds {len(entries)} members, more than the {MAX_MEMBERS} a bundle may have")
    for entry in entries:
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise SpecDebugError(f"{path}: is packed in a way that no bundle is; unpack and zip it plainly")
    names = [entry.filename for entry in entries]
    for name in names:
        if not _NAME.fullmatch(name) or ".." in name:
            raise SpecDebugError(f"{path}: holds '{one_line(name, 60)}', which is no name of a bundle's member")
        if names.count(name) > 1:
            raise SpecDebugError(f"{path}: holds {name} twice")
    sizes = {entry.filename: entry.file_size for entry in entries}
    if MANIFEST not in sizes:
        raise SpecDebugError(f"{path}: is not a bundle; it holds no {MANIFEST}")
    _check_sizes(path, sizes, room)
    manifest, listed = _manifest(path, _member(archive, MANIFEST, sizes[MANIFEST], hold=True)[0])
    for name in sorted({*listed, *names} - {MANIFEST}):
        if name not in sizes:
            raise SpecDebugError(f"{path}: lacks {name}, which its manifest names")
        if name not in listed:
            raise SpecDebugError(f"{path}: holds {name}, which its manifest does not name")
    members = {}
    for name, stated in listed.items():
        hold = room(name) > 0
        data, digest = _member(archive, name, sizes[name], hold=hold)
        if hold:
            members[name] = data
        if digest != stated:
            raise SpecDebugError(f"{path}: {name} is not what the manifest says it is; it was changed")
    return manifest, members


def _member(archive: zipfile.ZipFile, name: str, limit: int, *, hold: bool) -> tuple[bytes, str]:
    """A member's bytes, if they are to be held, and its SHA-256. What it declares bounds what is unpacked."""
    digest, chunks, size = hashlib.sha256(), [], 0
    with archive.open(name) as stream:
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise ValueError(f"{name} is longer than it says")
            digest.update(chunk)
            if hold:
                chunks.append(chunk)
    return b"".join(chunks), digest.hexdigest()


def _manifest(path: str | Path, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The manifest and the digest of each member it names."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        raise SpecDebugError(f"{path}: is not a bundle; its {MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise SpecDebugError(f"{path}: is not a bundle; its {MANIFEST} does not say '{FORMAT}'")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SpecDebugError(f"{path}: its {MANIFEST} states no format version")
    if version != VERSION:
        how = "upgrade specdebug" if version > VERSION else "make the bundle anew"
        raise SpecDebugError(f"{path}: has format {version}, this specdebug reads {VERSION}; {how}")
    if not isinstance(manifest.setdefault("members", {}), dict):
        raise SpecDebugError(f"{path}: its {MANIFEST} does not name its members")
    listed = {}
    for name, stated in manifest["members"].items():
        digest = stated.get("sha256") if isinstance(stated, dict) else None
        if not isinstance(digest, str):
            raise SpecDebugError(f"{path}: its {MANIFEST} states no SHA-256 of {one_line(name, 60)}")
        listed[name] = digest
    return manifest, listed


def _check_sizes(path: str | Path, sizes: Mapping[str, int], room: Room) -> None:
    held = 0
    for name, size in sizes.items():
        limit = MAX_MANIFEST if name == MANIFEST else min(room(name), MAX_MEMBER) or MAX_MEMBER
        held += size if room(name) else 0
        if size > limit:
            raise SpecDebugError(f"{path}: {name} has {_mib(size)} MiB, more than the {limit >> 20} MiB it may have")
    if (total := sum(sizes.values())) > MAX_TOTAL:
        raise SpecDebugError(f"{path}: unpacks to {_mib(total)} MiB, more than the {MAX_TOTAL >> 20} MiB it may have")
    if held > MAX_HELD:
        most = f"more than the {MAX_HELD >> 20} MiB they may have"
        raise SpecDebugError(f"{path}: its members have {_mib(held)} MiB together, {most}")


def _mib(size: int) -> int:
    """Rounded up, so that what is too large never reads like what is allowed."""
    return -(-size >> 20)
