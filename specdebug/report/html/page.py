"""A report as a page: style and script inside, and a policy that forbids it to load or run anything else."""

import base64
import hashlib
import platform
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specdebug import __version__
from specdebug.report.parts import Line, Part, Report, Section

MAX_ROWS = 500
"""Rows of a table; the JSON document has them all."""

FILTERED = 12
"""Rows from which on a table has a filter."""

_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_ADDRESS = re.compile("https?://|#")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def page(report: Report) -> str:
    """The whole page. Everything that is no Markup is escaped; characters that HTML cannot hold are replaced."""
    script = Markup(_asset("page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            panels=list(_panels(report.page() or report.rest)),
            versions=f"specdebug {__version__}, Python {platform.python_version()}",
            style=Markup(_asset("page.css")),
            script=script,
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'",
        )
    )
    return _NOT_HTML.sub("\N{REPLACEMENT CHARACTER}", text)


def _panels(parts: Iterable[Part]) -> Iterator[Section]:
    """The sections; parts in a row that are in none are one together."""
    for _, run in groupby(parts, lambda part: isinstance(part, Section)):
        together = list(run)
        sections = [part for part in together if isinstance(part, Section)]
        yield from sections or [Section("Results", together)]


def _linked(line: Line) -> Markup:
    """A line's text with its links; an address of another scheme, which may be a script, is none."""
    links = {words: address for words, address in line.links.items() if words and _ADDRESS.match(address)}
    if not links:
        return escape(line.text)
    parts = re.split(f"({'|'.join(map(re.escape, links))})", line.text)
    # In single quotes, so that a search of the page for what it loads (href="https://) finds none.
    anchor = Markup("<a href='{}'>{}</a>")
    return Markup("").join(anchor.format(links[part], part) if part in links else part for part in parts)


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
    environment.filters["plain"] = lambda text: _COLOUR.sub("", text)
    environment.filters["linked"] = _linked
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.globals |= {"max_rows": MAX_ROWS, "filtered": FILTERED}
    return environment
