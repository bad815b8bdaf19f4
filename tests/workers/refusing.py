"""Preloaded into a fork server: the second fork is refused."""

import errno
import os

_fork = os.fork
_asked = 0


def _refuse_the_second() -> int:
    global _asked
    _asked += 1
    if _asked == 2:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


os.fork = _refuse_the_second
