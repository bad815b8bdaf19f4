"""A server that is started for a run, as a target: by a command, or our own with the scenario's engine options.

``command.py`` makes the command, ``process.py`` starts it, waits for it and ends it, ``log.py`` follows its log. What
it serves is asked for as of any other server (``targets/http``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdebug.targets.launch.target import LaunchTarget
    from specdebug.targets.serving import LaunchSettings


def target_of(settings: LaunchSettings) -> LaunchTarget:
    """The target that a scenario's words about a server mean."""
    from specdebug.targets.launch.target import LaunchTarget

    return LaunchTarget(settings)
