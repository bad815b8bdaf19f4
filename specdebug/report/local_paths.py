"""Text from this machine, fit to be shown to strangers.

What lies in an installation keeps its path within that; of any other absolute path the last part is left.
"""

from __future__ import annotations

import os
import re

_PATH = re.compile(r"(?<![\w./])/(?!/)[^\s'\"`:,;()\[\]{}<>|*?]+")
_INSTALLED = "site-packages/"


def without_local_paths(text: str) -> str:
    """Shorten every absolute path of at least two parts that begins with a folder of this machine; a route of a server,
    such as ``/v1/models``, begins with none."""
    return _PATH.sub(_shortened, text)


def _shortened(found: re.Match[str]) -> str:
    path = found[0].rstrip("/")
    top, *rest = path[1:].split("/")
    if not rest or not os.path.isdir(f"/{top}"):
        return found[0]
    _, installed, inside = path.partition(_INSTALLED)
    return inside if installed else f".../{rest[-1]}"
