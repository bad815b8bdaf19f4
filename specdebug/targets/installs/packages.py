"""The packages of an environment: what pip took, by version and hash, and what of them is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from specdebug.base.errors import ContentError
from specdebug.base.files import read_file
from specdebug.base.schema import Item
from specdebug.base.yamlio import parse_json

_MAX_REPORT = 256 << 20
Package = dict[str, str]
"""``version`` and, where pip knows it, ``sha256`` of the archive that it was installed from."""


def packages_in(report: Path) -> dict[str, Package]:
    """The packages that pip's report says it took, by their canonical names; none where there is no report, as of a
    step that had nothing to install. Raises OSError, ContentError for a report of another form."""
    try:
        raw = read_file(report, _MAX_REPORT)
    except FileNotFoundError:
        return {}
    taken = parse_json(raw, str(report)).root.entries().get("install")
    return dict(map(_package, taken.items())) if taken is not None else {}


def read_packages(item: Item) -> dict[str, Package]:
    """Packages as a record has them. Raises ContentError."""
    return {
        name: {key: value.text() for key, value in each.table(required=("version",), optional=("sha256",)).items()}
        for name, each in item.entries().items()
    }


def missing(packages: Mapping[str, Package], venv: Path) -> list[str]:
    """The packages that are not in an environment any more."""
    there = {canonicalize_name(metadata.name.partition("-")[0]) for metadata in _metadata(venv)}
    return sorted(set(packages) - there)


def drop_half_made(venv: Path) -> None:
    """Forget packages whose installation was cut short, so that pip installs them again: it takes one for installed as
    soon as its metadata is there, and writes INSTALLER once all of it is. Raises OSError."""
    for metadata in _metadata(venv):
        if not (metadata / "INSTALLER").exists():
            shutil.rmtree(metadata)


def _package(item: Item) -> tuple[str, Package]:
    entries = item.entries()
    try:
        metadata, source = entries["metadata"].entries(), entries["download_info"].entries()
        name, package = canonicalize_name(metadata["name"].text()), {"version": metadata["version"].text()}
    except KeyError as error:
        raise ContentError(f"a package of pip's report lacks {error}", item.where) from None
    archive = source["archive_info"].entries() if "archive_info" in source else {}
    hashes = archive["hashes"].entries() if "hashes" in archive else {}
    if "sha256" in hashes:
        package["sha256"] = hashes["sha256"].text()
    return name, package


def _metadata(venv: Path) -> Iterator[Path]:
    return venv.glob("lib*/python*/site-packages/*.dist-info")
