"""A server with SGLang's HTTP interface as a target, whoever's it is.

``client.py`` speaks HTTP, ``answers.py`` reads what comes, ``facts.py`` what the server says of itself; ``session.py``
runs requests, ``plain.py`` asks for the same text without drafts. httpx is imported only once a session is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdebug.targets.http.target import HttpTarget
    from specdebug.targets.serving import HttpSettings


def target_of(settings: HttpSettings) -> HttpTarget:
    """The target that a scenario's words about a server mean."""
    from specdebug.targets.http.target import HttpTarget

    return HttpTarget(settings)
