"""Sources made anew on another machine, for one trial at a time each. What is needed travels; content is read from that
machine's own folders and from ``folders``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specdebug.campaign.trials.command import CommandSource
from specdebug.campaign.trials.source import TrialSource
from specdebug.scenario.library import Library


def made_there(kind: Callable[..., TrialSource], folders: Sequence[Path], *args: Any, **options: Any) -> TrialSource:
    """Return a source of a kind that reads a library. Raises SpecDebugError where it cannot be tried there."""
    return kind(Library(folders), *args, **options)


def command_source(library: Library, command: Sequence[str], **options: Any) -> CommandSource:
    """Return a command's source, as a kind for :func:`made_there`."""
    return CommandSource(command, library.registry, **options)
