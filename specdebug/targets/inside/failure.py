"""An engine's exception as the failure of its session, and one that cannot be imported as a lack of its environment."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from specdebug.base.errors import CannotRunHere
from specdebug.targets.inside.guard import engines_own
from specdebug.targets.requests import SessionFailed
from specdebug.workers.machine_failure import machine_failure


def failure_of(error: BaseException) -> BaseException:
    """The failure of a session whose engine raised: by the name that its traceback would have in a log. What a probe
    asserts, a lost device and what the machine lacks are told as they are."""
    from specdebug.logs.scan import name_of, scan_bytes
    from specdebug.targets.http.server import split

    if isinstance(error, Exception) and (engines_own(error) or machine_failure(error) is not None):
        return error
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    kind, site = split(name_of(scan_bytes(text.encode(), settings=False), 1))
    told = " ".join(str(error).split())
    return SessionFailed(f"the engine failed: {type(error).__name__}: {told}", site, kind)


@contextmanager
def importing(release: object) -> Iterator[None]:
    """An engine is imported meanwhile. Raises CannotRunHere where that fails: its code is not that of its packages."""
    try:
        yield
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise CannotRunHere(f"{release} cannot be imported: {told} ({place.filename}:{place.lineno})") from error
