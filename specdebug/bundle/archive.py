"""The container: a zip archive whose manifest names every member with its size and SHA-256.

Whoever sends a bundle may be anybody, so everything is checked before anything is used: names, sizes as declared and as
read, digests, format version. Members are read into memory and never extracted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdebug.bundle import ENDING
from specdebug.errors import SpecDebugError
from specdebug.yamlio import one_line

MANIFEST = "manifest.json"
FORMAT = "specdebug-bundle"
VERSION = 1
"""Of the format; raised when an older specdebug could no longer replay what is written."""

MAX_MEMBERS = 1000
MAX_MEMBER = 64 << 20
MAX_TOTAL = 256 << 20
MAX_MANIFEST = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_LOCAL_HEADER = b"PK\x03\x04"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first moment a zip archive can state; no member's time says anything."""
_REGULAR_FILE = 0o100644 << 16
_ENCRYPTED = 1
_DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, struct.error, RuntimeError, OverflowError, ValueError)
"""What zipfile raises over archives that are not as they should be."""


class BundleError(SpecDebugError):
    """A bundle cannot be written, or what was given as one is not one that can be trusted to be whole."""


def check_target(path: Path, force: bool) -> None:
    """Raises BundleError now if a bundle could not be written there later, or would overwrite something."""
    if path.suffix != ENDING:
        raise BundleError(f"cannot write {path}: a bundle's name ends in {ENDING}, by which replay knows it")
    if path.is_dir():
        raise BundleError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise BundleError(f"cannot write {path}: no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise BundleError(f"cannot write {path}: the folder {path.parent} is read-only")
    if path.exists() and not force:
        raise BundleError(f"{path} is there already; --force overwrites it")


def write_archive(path: Path, facts: Mapping[str, Any], members: Mapping[str, bytes], force: bool = False) -> None:
    """Write a bundle, whole or not at all: manifest first, then the members by name.

    Args:
        facts: what the manifest says beside format, version and members.
        force: overwrite what is there.

    Raises BundleError.
    """
    check_target(path, force)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        **facts,
        "members": {
            name: {"bytes": len(members[name]), "sha256": hashlib.sha256(members[name]).hexdigest()}
            for name in sorted(members)
        },
    }
    head = json.dumps(manifest, indent=2, allow_nan=False).encode()
    _check_sizes(path, {MANIFEST: len(head), **{name: len(data) for name, data in members.items()}})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in (MANIFEST, *sorted(members)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, _REGULAR_FILE
            archive.writestr(entry, head if name == MANIFEST else members[name])
    _store(path, packed.getvalue(), force)


def _store(path: Path, data: bytes, force: bool) -> None:
    """Write a file, whole or not at all; one that is there stays unless ``force``."""
    target = path.with_name(f".{path.name}.{os.getpid()}") if force else path
    with contextlib.ExitStack() as undo:  # also for a Ctrl-C
        try:
            with open(target, "wb" if force else "xb") as file:
                undo.callback(target.unlink, missing_ok=True)
                file.write(data)
            if force:
                os.replace(target, path)
        except FileExistsError:
            raise BundleError(f"{path} is there already; --force overwrites it") from None
        except OSError as error:
            raise BundleError(f"cannot write {path}: {error.strerror}") from None
        undo.pop_all()


def read_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and all members of a bundle that is whole and of a version that can be read.

    Raises BundleError, one line that names the file and what is wrong with it.
    """
    try:
        if Path(path).is_dir():
            raise BundleError(f"{path}: is a folder, not a bundle")
        with open(path, "rb") as file:
            start = file.read(len(_LOCAL_HEADER))
            if start != _LOCAL_HEADER:
                raise BundleError(f"{path}: is not a bundle{'; it is empty' if not start else ''}")
            try:
                with zipfile.ZipFile(file) as archive:
                    return _read(path, archive)
            except _DAMAGE as error:
                what = "it is truncated" if "not a zip file" in str(error) else one_line(str(error), 80)
                raise BundleError(f"{path}: is damaged ({what}); fetch it again") from None
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror or one_line(str(error), 80)}") from None


def _read(path: str | Path, archive: zipfile.ZipFile) -> tuple[dict[str, Any], dict[str, bytes]]:
    entries = archive.infolist()
    if len(entries) > MAX_MEMBERS:
        raise BundleError(f"{path}: holds {len(entries)} members, more than the {MAX_MEMBERS} a bundle may have")
    for entry in entries:
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleError(f"{path}: is packed in a way that no bundle is; unpack and zip it plainly")
    names = [entry.filename for entry in entries]
    for name in names:
        if not _NAME.fullmatch(name) or ".." in name:
            raise BundleError(f"{path}: holds '{one_line(name, 60)}', which is no name of a bundle's member")
        if names.count(name) > 1:
            raise BundleError(f"{path}: holds {name} twice")
    sizes = {entry.filename: entry.file_size for entry in entries}
    if MANIFEST not in sizes:
        raise BundleError(f"{path}: is not a bundle; it holds no {MANIFEST}")
    _check_sizes(path, sizes)
    manifest, listed = _manifest(path, _member(archive, MANIFEST, MAX_MANIFEST))
    for name in sorted({*listed, *names} - {MANIFEST}):
        if name not in sizes:
            raise BundleError(f"{path}: lacks {name}, which its manifest names")
        if name not in listed:
            raise BundleError(f"{path}: holds {name}, which its manifest does not name")
    members = {}
    for name, digest in listed.items():
        data = members[name] = _member(archive, name, sizes[name])
        if hashlib.sha256(data).hexdigest() != digest:
            raise BundleError(f"{path}: {name} is not what the manifest says it is; somebody changed it")
    return manifest, members


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A member's bytes; what it declares bounds what is unpacked, so that nothing can swell."""
    with archive.open(name) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{name} is longer than it says")
    return data


def _manifest(path: str | Path, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The manifest and the digest of each member it names."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        raise BundleError(f"{path}: is not a bundle; its {MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{path}: is not a bundle; its {MANIFEST} does not say '{FORMAT}'")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleError(f"{path}: its {MANIFEST} states no format version")
    if version > VERSION:
        message = f"has format {version}, this specdebug reads up to {VERSION}; upgrade specdebug"
        raise BundleError(f"{path}: {message}")
    members = manifest.get("members")
    listed = {}
    for name, stated in members.items() if isinstance(members, dict) else ():
        digest = stated.get("sha256") if isinstance(stated, dict) else None
        if not isinstance(digest, str):
            raise BundleError(f"{path}: its {MANIFEST} states no SHA-256 of {one_line(name, 60)}")
        listed[name] = digest
    return manifest, listed


def _check_sizes(path: str | Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        limit = MAX_MANIFEST if name == MANIFEST else MAX_MEMBER
        if size > limit:
            raise BundleError(f"{path}: {name} has {_mib(size)} MiB, more than the {limit >> 20} MiB it may have")
    if (total := sum(sizes.values())) > MAX_TOTAL:
        raise BundleError(f"{path}: unpacks to {_mib(total)} MiB, more than the {MAX_TOTAL >> 20} MiB it may have")


def _mib(size: int) -> int:
    """Rounded up, so that what is too large never reads like what is allowed."""
    return -(-size >> 20)
