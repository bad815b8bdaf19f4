"""The formats in which a replay or a comparison is written to a file.

A package of its own brings one through an entry point of the group ``specdebug.reports``. The entry point has the
format's name, leads to a :class:`ReportFormat`, and then ``--report NAME=FILE`` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError, did_you_mean, one_line
from specdebug.base.plugins import PluginError, PluginRegistry

if TYPE_CHECKING:
    from specdebug.campaign.loops.compare import Comparison
    from specdebug.campaign.loops.replay import Replay
    from specdebug.campaign.loops.steplog import Recording


@dataclass(frozen=True)
class Told:
    """A format writes of this.

    Attributes:
        answer: the replay, of the arms that were compared where there is a comparison.
        comparison: None of a replay.
        recording: the steps of every arm; None unless the format shows them.
        command: the command line that was run.
    """

    answer: Replay
    comparison: Comparison | None
    recording: Recording | None
    command: str


@dataclass(frozen=True)
class ReportFormat:
    """One format. ``render`` makes the file's text and escapes whatever comes from outside.

    ``shows_steps``: the steps are recorded for it.
    """

    render: Callable[[Told], str]
    shows_steps: bool = False


def _html(told: Told) -> str:
    from specdebug.report.html.compare import compare_page
    from specdebug.report.html.replay import replay_page

    assert told.recording is not None
    if told.comparison is None:
        return replay_page(told.answer, told.recording, told.command)
    return compare_page(told.answer, told.comparison, told.recording, told.command)


def _junit(told: Told) -> str:
    from specdebug.report.junit import junit_xml, verdict_xml
    from specdebug.report.terminal import comparison_line, not_engine_lines

    if told.comparison is None:
        return junit_xml([told.answer])
    case = " and ".join(told.comparison.names)
    said = "\n".join([comparison_line(told.comparison), *not_engine_lines(told.answer.results)])
    return verdict_xml(told.answer.scenario.name, case, told.comparison.exit_code, said, told.answer.wall_s)


def _perfetto(told: Told) -> str:
    from specdebug.report.perfetto import perfetto_json

    assert told.recording is not None
    return perfetto_json(told.answer, told.recording)


OURS = {
    "html": ReportFormat(_html, shows_steps=True),
    "junit": ReportFormat(_junit),
    "perfetto": ReportFormat(_perfetto, shows_steps=True),
}

FORMATS: PluginRegistry[ReportFormat] = PluginRegistry(
    "reports", "a ReportFormat", lambda part: isinstance(part, ReportFormat), OURS
)


def parse_report(text: str) -> tuple[str, Path]:
    """The format and the file of ``FORMAT=FILE``. Raises SpecDebugError, PluginError as :func:`report_format` does."""
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise SpecDebugError(f"--report takes FORMAT=FILE, such as html=report.html; got {text!r}")
    report_format(name)
    return name, Path(file)


def report_format(name: str) -> ReportFormat:
    """A format by name. Raises SpecDebugError for one that nobody has, PluginError for one that cannot be used."""
    try:
        return FORMATS[name]
    except KeyError:
        raise SpecDebugError(f"no report format '{name}'{did_you_mean(name, FORMATS)}") from None


def render(name: str, told: Told) -> str:
    """The text of a file in this format. Raises PluginError where another package's format fails."""
    try:
        return report_format(name).render(told)
    except Exception as error:
        if name in OURS or isinstance(error, SpecDebugError):
            raise
        what = f"{type(error).__name__}: {one_line(str(error))}"
        raise PluginError(f"the report format '{name}' of an installed package failed: {what}") from error
