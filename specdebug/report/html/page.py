"""A page: a template filled in, style and script inside, and a policy that forbids it to load or run anything else."""

from __future__ import annotations

import base64
import hashlib
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specdebug import __version__

MAX_ROWS = 500
"""Rows of a table; the JSON document has them all."""
MAX_TRIALS = 1000
"""Rows of a table of trials, the last ones; the journal has them all."""

_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Chip:
    """A verdict in a word: ``style`` is pass, fail, unknown or plain."""

    words: str
    style: str = "plain"


@dataclass(frozen=True)
class Head:
    """The head of every page: the verdicts, the result in one line, seed, duration and the like by name, and the
    command line, which may be empty."""

    title: str
    chips: Sequence[Chip]
    summary: str
    facts: dict[str, str]
    command: str


def render(template: str, head: Head, **context: object) -> str:
    """The whole page. Everything that is no Markup is escaped; characters that HTML cannot hold are replaced."""
    script = Markup(_asset("page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _environment().get_template(template)
    text = page.render(
        head=head,
        versions=f"specdebug {__version__}, Python {platform.python_version()}",
        style=Markup(_asset("page.css")),
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'",
        **context,
    )
    return _NOT_HTML.sub("\N{REPLACEMENT CHARACTER}", text)


def plain_log(text: str) -> str:
    """Take the colours out of a log."""
    return _COLOUR.sub("", text)


def _asset(name: str) -> str:
    return files("specdebug.report.html").joinpath("templates", name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("specdebug.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["log"] = plain_log
    environment.globals |= {"max_rows": MAX_ROWS, "max_trials": MAX_TRIALS}
    return environment
