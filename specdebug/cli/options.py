"""Options that several commands share, each declared once, and their groups.

A group is a frozen dataclass whose fields are options of every command that takes it. A field is annotated as a
parameter of a typer command is, and its default is the option's. A command names the group as one parameter, under the
decorator :func:`grouped`. On the command line the fields stand where the group does, in their order, and a
configuration file and a shell's completion know them by their names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from specdebug.base.attention_plans import PLANS, SHIPPED
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import Takes
from specdebug.cli import complete
from specdebug.cli.output import check_writable, note, set_debug

if TYPE_CHECKING:
    from specdebug.campaign.loops.baseline import Baseline
    from specdebug.campaign.loops.replay import ArmResult, Choices
    from specdebug.campaign.loops.steplog import Recording
    from specdebug.scenario.library import Library


@dataclass(frozen=True)
class Help:
    """One command's own help text for a shared option, behind the option in its annotation.

    ``{command}`` in any help text is the command's name.
    """

    text: str


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with its groups' fields as parameters for typer. Raises TypeError for two of one name."""
    name = command.__name__
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[parameter.name] = hint
            own = get_type_hints(hint, include_extras=True)
            parameters += [_parameter(one.name, own[one.name], one.default, name) for one in fields(hint)]
        else:
            parameters.append(_parameter(parameter.name, hint, parameter.default, name))
    names = [parameter.name for parameter in parameters]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise TypeError(f"{name} has two options called {', '.join(twice)}")

    def ungrouped(**values: Any) -> int:
        for parameter, group in groups.items():
            values[parameter] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    ungrouped.__name__, ungrouped.__doc__, ungrouped.__module__ = name, command.__doc__, command.__module__
    ungrouped.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    ungrouped.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    return ungrouped


def _parameter(name: str, hint: Any, default: Any, command: str) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    # Only by keyword, as typer calls: then one without a default may follow one that has a default.
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=_with_help(hint, command))


def _with_help(hint: Any, command: str) -> Any:
    """Return an annotation with the help text of its option, if it has one, filled in."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *metadata = get_args(hint)
    own = [one.text for one in metadata if isinstance(one, Help)]
    infos = [copy(one) for one in metadata if isinstance(one, ParameterInfo)]
    for info in infos:
        info.help = (own[-1] if own else info.help or "").replace("{command}", command) or None
    return Annotated[(kind, *infos)] if infos else hint


class Executor(StrEnum):
    """The machine that trials run on."""

    LOCAL = "local"
    RAY = "ray"


def check_cluster(executor: Executor, address: str | None) -> None:
    """Raise SpecDebugError for a cluster's address without a cluster."""
    if address is not None and executor is not Executor.RAY:
        raise SpecDebugError("--ray-address is of no use without --executor ray")


class Dtype(StrEnum):
    """The type of weights, activations and KV."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def _plan(value: str) -> str:
    if value not in PLANS:
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(map(repr, PLANS))}")
    return value


def engine_overrides(
    device: str | None, dtype: Dtype | None, backend: str | None, page_size: int | None = None
) -> dict[str, str | int]:
    """Return the engine options set for every arm, by name. Raises SpecDebugError for a device that is none."""
    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,2})?", device):
        raise SpecDebugError(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    chosen = {"device": device, "dtype": dtype, "attention_backend": backend}
    over: dict[str, str | int] = {option: str(value) for option, value in chosen.items() if value is not None}
    return over if page_size is None else over | {"page_size": page_size}


def engine_words(over: Mapping[str, str | int | float]) -> list[str]:
    """Return the words of a command line that sets these engine options."""
    from specdebug.targets.options import OVERRIDES

    return [word for option, value in over.items() for word in (OVERRIDES[option], str(value))]


def positive(timeout: float | None, option: str = "--timeout") -> float | None:
    """Return the seconds of an option. Raises SpecDebugError unless they are above 0."""
    if timeout is not None and not timeout > 0:
        raise SpecDebugError(f"{option} must be above 0 seconds, got {timeout:g}")
    return timeout


def named_on_command_line(ctx: typer.Context, names: Collection[str]) -> str | None:
    """Return the first of these options that the command line itself names, and not only a configuration file."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(str(param.name))
        if param.name in names and source is not None and source.name == "COMMANDLINE":
            return str(param.opts[0])
    return None


Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", callback=set_debug, is_eager=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json-file", metavar="FILE", help="The JSON document, into a file beside the report.")
]
Content = Annotated[
    list[Path] | None,
    typer.Option("--content", metavar="DIR", help="A folder with your own scenarios/, toggles/ and probes/."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Workers at a time; 0: one more than cores.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the scenario's own seed.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="For each arm, not the scenario's.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="A self-contained page, too, whatever the verdict.")
]
Reports = Annotated[
    list[str] | None,
    typer.Option(
        "--report", metavar="FORMAT=FILE", help="A file in this format, ours or an installed package's (repeatable)."
    ),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline", metavar="FILE", help="Hold accept lengths against this file, which --save-baseline wrote."
    ),
]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML, too.")]
_A_SCENARIO = "A scenario file, or the name of a shipped one."
File = Annotated[str, typer.Argument(metavar="FILE", help=_A_SCENARIO, autocompletion=complete.scenarios)]
ScenarioFile = Annotated[str, typer.Argument(metavar="SCENARIO", help=_A_SCENARIO, autocompletion=complete.scenarios)]
Reverts = Annotated[
    list[str] | None,
    typer.Option(
        "--revert",
        metavar="PR[,PR]",
        help="Revert these fixes as well as the arm's own.",
        autocompletion=complete.fixes,
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="NAME[:key=value,...]",
        help="Inject this fault as well (repeatable).",
        autocompletion=complete.faults,
    ),
]
OnDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda[:N]",
        help="Run every arm there, whatever the file says.",
        autocompletion=complete.devices,
    ),
]
InDtype = Annotated[Dtype | None, typer.Option("--dtype", help="For every arm, not the scenario's.")]
WithBackend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        "--attention-backend",
        metavar="|".join(plan.name for plan in SHIPPED),
        help="Attention plan of every arm.",
        parser=_plan,
        autocompletion=complete.plans,
    ),
]
WithPageSize = Annotated[
    int | None, typer.Option("--page-size", metavar="TOKENS", min=1, help="KV slots a page, of every arm.")
]
OnTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="What every arm runs on: embedded (unless the file says otherwise), reference, serve, or a URL.",
        autocompletion=complete.targets,
    ),
]

ReadyTimeout = Annotated[
    float | None,
    typer.Option("--ready-timeout", metavar="SECONDS", help="For a server that is started to be ready, not its own."),
]

# Of commands that run trials. Those that are only a typer.Option have a type or a least value of the command's own.
ScenarioOrCommand = Annotated[
    str | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario; or end with -- CMD ... to run a command.",
        autocompletion=complete.scenarios,
    ),
]
ArmOption = Annotated[str | None, typer.Option("--arm", autocompletion=complete.arms)]
ArmsOption = Annotated[list[str] | None, typer.Option("--arm", autocompletion=complete.arms)]
Confidence = Annotated[str, typer.Option("--confidence", metavar="P")]
MAX_TRIALS = typer.Option("--max-trials", min=1)
TRIALS_AT_A_TIME = typer.Option("--jobs", "-j", min=1, help="Trials at a time.")
ExecutorOption = Annotated[
    Executor, typer.Option("--executor", help="Run trials here, or on a Ray cluster, as many as it has CPUs.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="HOST:PORT", help="Of the cluster, or auto; RAY_ADDRESS, else this machine alone."
    ),
]
ResumeAnyway = Annotated[
    bool, typer.Option("--resume-anyway", help="Go on with what was kept, though what it ran has changed since.")
]
TrialSeed = Annotated[int, typer.Option("--seed", min=0, help="Of the trials' seeds.")]
TrialTimeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", help="A command that takes longer hangs; an arm only if it stands still."
    ),
]
TakesOption = Annotated[
    Takes,
    typer.Option("--takes", help="What a command takes in SGLANG_DEBUG_REVERT_PR: one number, as SGLang, or a set."),
]
NoLocate = Annotated[
    bool, typer.Option("--no-locate", help="Do not run failing arms again to find where wrong outputs began.")
]
SignatureOption = Annotated[str | None, typer.Option("--signature", metavar="GLOB", autocompletion=complete.signatures)]


def numbers_of(revert: Sequence[str] | None) -> tuple[int, ...]:
    """Return the fixes that ``--revert`` and the environment name. Raises SpecDebugError for what is no number."""
    from specdebug.patching.toggles import parse_numbers, reverts_from_environment

    return (*parse_numbers(",".join(revert or ())), *reverts_from_environment())


def open_baseline(path: Path | None) -> Baseline | None:
    """Return the content of the baseline file, if one is given. Raises ContentError."""
    from specdebug.campaign.loops.baseline import Baseline

    return None if path is None else Baseline.read(path)


def open_library(content: Sequence[Path] | None) -> Library:
    """Return the shipped content with that of the folders on the command line."""
    from specdebug.scenario.library import Library

    return Library(content or ())


@dataclass(frozen=True)
class ContentOptions:
    """The folders of content, and ``--debug``."""

    content: Content = None
    debug: Debug = False

    def library(self) -> Library:
        return open_library(self.content)

    def words(self) -> list[str]:
        """Return the words of a command line that names these folders."""
        return [word for folder in self.content or () for word in ("--content", str(folder))]


@dataclass(frozen=True)
class EngineOptions:
    """The options of every arm's engine, and what that is."""

    device: OnDevice = None
    dtype: InDtype = None
    backend: WithBackend = None
    page_size: WithPageSize = None
    target: OnTarget = None
    ready_timeout: ReadyTimeout = None

    def choices(self) -> Choices:
        """Return them as the choices of a replay. Raises SpecDebugError for a device, a target or a time that is
        none."""
        from specdebug.campaign.loops.replay import Choices
        from specdebug.targets.settings import parse_target

        target = None if self.target is None else parse_target(self.target)
        ready_s = positive(self.ready_timeout, "--ready-timeout")
        return Choices(engine=self._of_engine(), target=target, ready_timeout_s=ready_s)

    def overrides(self) -> dict[str, str | int | float]:
        """Return them by the engine's names, and the target, for ``Scenario.laid_over``. Raises SpecDebugError for a
        device or a time that is none."""
        of_target = {"target": self.target, "ready_timeout_s": positive(self.ready_timeout, "--ready-timeout")}
        return self._of_engine() | {name: value for name, value in of_target.items() if value is not None}

    def _of_engine(self) -> dict[str, str | int]:
        return engine_overrides(self.device, self.dtype, self.backend, self.page_size)

    def overrides_of(self, ctx: typer.Context, scenario: str | None) -> dict[str, str | int | float]:
        """Return them for trials of a scenario; a command has none. Raises SpecDebugError for one named then."""
        if scenario is not None:
            return self.overrides()
        if flag := named_on_command_line(ctx, [field.name for field in fields(self)]):
            raise SpecDebugError(f"{flag} is for a scenario; a command has none")
        return {}


@dataclass(frozen=True)
class JsonOptions:
    """The JSON document, in place of the report or beside it."""

    as_json: Json = False
    json_file: JsonFile = None

    def check(self) -> None:
        """Raise SpecDebugError for a format that there is not, OutputError if one of the files could not be written."""
        own = [path for field in fields(self) if isinstance(path := getattr(self, field.name), Path)]
        for path in dict.fromkeys([*own, *(path for _, path in self.wanted())]):
            check_writable(path)

    def wanted(self) -> list[tuple[str, Path]]:
        """Return the format and the path of each file that draws the report."""
        from specdebug.report.formats import parse_report

        named = [(name, getattr(self, name, None)) for name in ("junit", "html", "perfetto")]
        asked = map(parse_report, getattr(self, "report", None) or ())
        return [(name, path) for name, path in (*named, *asked) if path is not None]

    def recording(self) -> Recording | None:
        """Return a place for the steps if a file shows them."""
        from specdebug.campaign.loops.steplog import Recording
        from specdebug.report.formats import report_format

        return Recording() if any(report_format(name).shows_steps for name, _ in self.wanted()) else None


@dataclass(frozen=True)
class PageOptions(JsonOptions):
    """The document, and a page."""

    html: Html = None


@dataclass(frozen=True)
class ResultOptions(JsonOptions):
    """The document, and files in the formats of ``report/formats.py``."""

    junit: Junit = None
    html: Html = None
    report: Reports = None


@dataclass(frozen=True)
class ReplayResults(ResultOptions):
    """The files of a replay."""

    html: Annotated[Html, Help("A self-contained page, too; of several FILEs, a folder of pages.")] = None
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="FILE", help="The steps as a Chrome/Perfetto trace, too.")
    ] = None


@dataclass(frozen=True)
class BaselineOptions:
    """The baseline that accept lengths are held against, and the one that they are written to."""

    baseline: BaselineFile = None
    save_baseline: Annotated[
        Path | None,
        typer.Option("--save-baseline", metavar="FILE", help="Write accept lengths there; other entries stay."),
    ] = None

    def open(self) -> Baseline | None:
        """Return the baseline to hold against. Raises ContentError, OutputError if the other could not be written."""
        if self.save_baseline is not None:
            check_writable(self.save_baseline)
            if self.save_baseline.exists():
                open_baseline(self.save_baseline)
        return open_baseline(self.baseline)

    def save(self, results: Sequence[ArmResult]) -> None:
        """Write what these accepted, and say so on stderr. Raises SpecDebugError."""
        if self.save_baseline is not None:
            from specdebug.campaign.loops.baseline import save

            for line in save(self.save_baseline, results):
                note(line)


@dataclass(frozen=True)
class RunOptions:
    """The number of workers that run arms, and the time each may take."""

    jobs: Jobs = 0
    timeout: Timeout = None
