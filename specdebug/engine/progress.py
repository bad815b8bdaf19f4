"""Reports of work that makes a step unusually long (capturing graphs, compiling kernels) to listeners; none waits."""

from collections.abc import Callable

Listener = Callable[[str], None]

_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` with every report from now on. Returns what ends that; calling it twice is harmless."""
    _listeners.append(listener)

    def forget() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return forget


def report(text: str) -> None:
    """Name the work that has begun, in a few words: ``capturing graphs, batch 4``. Empty: it is over.

    A report holds until the next one or the next engine step, so most callers need not say that they are done.
    """
    for listener in tuple(_listeners):  # one may end its own registration
        listener(text)
