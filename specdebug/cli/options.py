"""Options of commands, each declared once.

A command is a dataclass (:func:`enter`): its fields are its options, its docstring is its help, and ``run`` does it.
Options that go together are a class that commands inherit. On the command line a class's own fields come first, then
those of its bases in their order; a configuration file and a shell's completion know an option by its field's name.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast, dataclass_transform, get_type_hints

import typer
from typer.core import TyperCommand

from specdebug.base import interrupts
from specdebug.base.attention_plans import PLANS, SHIPPED
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import Takes, reverts_text
from specdebug.campaign.trials.journal import Journal, check_place
from specdebug.campaign.trials.state import shortly
from specdebug.cli import complete
from specdebug.cli.output import answer, check_writable, note, own_folder, set_debug, set_quiet
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.toggles import parse_numbers, reverts_from_environment
from specdebug.report.parts import Report
from specdebug.report.words import counted
from specdebug.scenario.library import Library
from specdebug.targets.options import OVERRIDES
from specdebug.targets.settings import parse_target

if TYPE_CHECKING:
    from specdebug.campaign.loops.baseline import Baseline
    from specdebug.campaign.loops.replay import ArmResult, Choices
    from specdebug.campaign.loops.steplog import Recording
    from specdebug.campaign.trials.hooked import Look
    from specdebug.campaign.trials.state import State
    from specdebug.patching.toggles import Registry

_WORDS = "specdebug.command"


def option(
    text: str, *flags: str, default: Any = None, parameter: Callable[..., Any] = typer.Option, **more: Any
) -> Any:
    """Declare a field as an option.

    Args:
        text: its help.
        flags: in place of the field's name with dashes.
        default: ... if it must be given.
        more: what typer takes, ``complete`` for its ``autocompletion``.
    """
    more |= {"help": text or None, "autocompletion": more.pop("complete", None)}
    declared = {"parameter": parameter, "flags": flags, "more": more}
    return field(default=MISSING if default is ... else default, metadata=declared)


argument = partial(option, parameter=typer.Argument)
"""Declare a field as an argument."""


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
@dataclass(kw_only=True)
class Command:
    """What every command has. Every class below is a dataclass."""

    panel: ClassVar[str] = "Options"
    """The title above a class's own options in ``--help``."""
    example: ClassVar[str] = ""
    """A command line, without ``specdebug``, that ``--help`` ends with; {group} is the name of the command's group."""
    after_dashes: ClassVar[bool] = False
    """The command line may end in ``-- CMD ...``."""
    held: ClassVar[bool] = False
    """Signals are noted from the beginning to the end, and the work that takes long looks for them."""
    debug: bool = option("Show tracebacks.", default=False, callback=set_debug, is_eager=True)
    ctx = cast(typer.Context, None)
    """The context of the call; no option."""

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True)(cls)

    def run(self) -> int:
        """Do it, and return the exit code. Raises SpecDebugError."""
        raise NotImplementedError

    def named(self, *groups: type) -> str | None:
        """The first option of these groups that the command line itself names, and not only a configuration file."""
        names = {one.name for group in groups for one in fields(group)} - {one.name for one in fields(Command)}
        for param in self.ctx.command.params:
            source = self.ctx.get_parameter_source(str(param.name))
            if param.name in names and source is not None and source.name == "COMMANDLINE":
                return str(param.opts[0])
        return None


def enter(app: typer.Typer, name: str, kind: type[Command], **settings: Any) -> None:
    """Make a dataclass the command ``name`` of an app."""

    def call(ctx: typer.Context, **values: Any) -> int:
        asked = kind(**values)
        asked.ctx = ctx
        with interrupts.held() if asked.held else contextlib.nullcontext():
            return asked.run()

    own = [inspect.get_annotations(base) for base in kind.__mro__]
    placed = sorted(fields(kind), key=lambda one: next(at for at, names in enumerate(own) if one.name in names))
    hints, only = get_type_hints(kind), inspect.Parameter.KEYWORD_ONLY  # so one with a default may come before others
    parameters = [inspect.Parameter("ctx", only, annotation=typer.Context)]
    for one in (one for one in placed if one.metadata):
        parameter, flags, more = (one.metadata[each] for each in ("parameter", "flags", "more"))
        if parameter is typer.Option:
            more = {"rich_help_panel": _panel_of(kind, one.name), **more}
        if parameter is typer.Option and not flags:
            flags = (f"--{one.name.replace('_', '-')}",)
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        kind_of, info = hints[one.name], [parameter(*flags, **more)]
        parameters.append(inspect.Parameter(one.name, only, default=default, annotation=Annotated[(kind_of, *info)]))
    call.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
    if kind.example:
        paragraphs.append(f"Example: specdebug {kind.example.format(group=app.info.name)}")
    flowing = "\n\n".join(" ".join(each.split()) for each in paragraphs)  # for terminals of any width
    parser: dict[str, Any] = {"cls": WithCommand} if kind.after_dashes else {}
    app.command(name, help=flowing, **parser, **settings)(call)


def _panel_of(kind: type[Command], name: str) -> str:
    """The title above an option: that of the class that declares it."""
    declares = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    return "Other" if declares is Command else str(vars(declares).get("panel", "Options"))


class Dtype(StrEnum):
    """The type of weights, activations and KV."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Executor(StrEnum):
    """The machine that trials run on."""

    LOCAL = "local"
    RAY = "ray"


def plan_named(value: str) -> str:
    """An attention plan's name. Raises typer.BadParameter for one that there is not."""
    if value not in PLANS:
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(map(repr, PLANS))}")
    return value


def positive(seconds: float | None, flag: str = "--timeout") -> float | None:
    """The seconds of an option. Raises SpecDebugError unless they are above 0."""
    if seconds is not None and not seconds > 0:
        raise SpecDebugError(f"{flag} must be above 0 seconds, got {seconds:g}")
    return seconds


def confidence_of(text: str) -> float:
    """A confidence given as 0.95 or 95%. Raises SpecDebugError."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if rest or not 0.5 < value < 1:
        raise SpecDebugError(f"--confidence must be above 50% and below 100%, such as 0.95 or 95%, got {text!r}")
    return value


def engine_words(over: Mapping[str, str | int | float]) -> list[str]:
    """The words of a command line that sets these engine options."""
    return [word for name, value in over.items() for word in (OVERRIDES[name], str(value))]


def numbers_of(revert: Sequence[str] | None) -> tuple[int, ...]:
    """The fixes that ``--revert`` and the environment name. Raises SpecDebugError for what is no number."""
    return (*parse_numbers(",".join(revert or ())), *reverts_from_environment())


# Options of several commands that are in no group, or whose help each command says in its own words.
_A_SCENARIO = "A scenario file, or the name of a shipped one."
file_argument = partial(argument, _A_SCENARIO, default=..., metavar="FILE", complete=complete.scenarios)
arm_option = partial(option, complete=complete.arms)
revert_option = partial(option, metavar="PR[,PR]", complete=complete.fixes)
fault_option = partial(option, metavar="NAME[:key=value,...]", complete=complete.faults)
seed_option = partial(option, "Use this seed instead of the scenario's own.", min=0)
packs_option = partial(option, metavar="PACK", complete=complete.packs)
signature_option = partial(option, metavar="GLOB", complete=complete.signatures)
confidence_option = partial(option, metavar="P")
jobs_option = partial(
    option, "Run so many workers at a time; 0 takes one more than there are cores.", "--jobs", "-j", default=0, min=0
)
baseline_option = partial(option, "Hold accept lengths against this file, which --save-baseline wrote.", metavar="FILE")
no_locate_option = partial(option, "Do not run failing arms again to find where wrong outputs began.", default=False)


def trials_at_a_time(text: str = "Run so many trials at a time.", default: int | None = None) -> Any:
    """The option ``--jobs`` of a search."""
    return option(text, "--jobs", "-j", default=default, min=1)


class JsonFlag(Command):
    """A document in place of the report."""

    panel = "Output"

    as_json: bool = option("Print one JSON document on stdout and nothing else.", "--json", default=False)

    def answer(self, report: Report) -> int:
        """Write a report, or its document, and return the exit code."""
        return answer(self.as_json, report)


class ContentOptions(Command):
    """The folders of content."""

    panel = "Content"

    content: list[Path] | None = option(
        "Use this folder of your own scenarios/, toggles/ and probes/, too.", metavar="DIR"
    )

    def library(self) -> Library:
        """The shipped content with that of the folders on the command line."""
        return Library(self.content or ())

    def content_words(self) -> list[str]:
        """The words of a command line that names these folders."""
        return [word for folder in self.content or () for word in ("--content", str(folder))]


class DeviceOptions(Command):
    """What every arm runs on."""

    panel = "Engine"

    device: str | None = option(
        "Run every arm on this device, whatever the scenario says.", metavar="cpu|cuda[:N]", complete=complete.devices
    )
    dtype: Dtype | None = option("Use this type for every arm, whatever the scenario says.")
    target: str | None = option(
        "Run every arm on this engine: embedded, reference, serve, a URL, sglang==VERSION or vllm==VERSION.",
        metavar="TARGET",
        complete=complete.targets,
    )

    def engine(self) -> dict[str, str | int]:
        """The engine options set for every arm, by name. Raises SpecDebugError for a device that is none."""
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,2})?", self.device):
            raise SpecDebugError(f"--device must be cpu, cuda or cuda:N, got {self.device!r}")
        dtype = None if self.dtype is None else self.dtype.value
        over = {"device": self.device, "dtype": dtype, "attention_backend": getattr(self, "backend", None)}
        over |= {"page_size": getattr(self, "page_size", None)}
        return {name: value for name, value in over.items() if value is not None}


class PlanOption(DeviceOptions):
    """The same, and the attention plan."""

    panel = "Engine"

    backend: str | None = option(
        "Use this attention plan for every arm.",
        "--backend",
        "--attention-backend",
        metavar="|".join(plan.name for plan in SHIPPED),
        parser=plan_named,
        complete=complete.plans,
    )


class EngineOptions(PlanOption):
    """The options of every arm's engine."""

    panel = "Engine"

    page_size: int | None = option("Use pages of so many KV slots for every arm.", metavar="TOKENS", min=1)
    ready_timeout: float | None = option("Wait so long for a server that is started to be ready.", metavar="SECONDS")

    def choices(self) -> Choices:
        """They as the choices of a replay. Raises SpecDebugError for a device, a target or a time that is none."""
        from specdebug.campaign.loops.replay import Choices

        target = None if self.target is None else parse_target(self.target)
        return Choices(
            engine=self.engine(), target=target, ready_timeout_s=positive(self.ready_timeout, "--ready-timeout")
        )

    def overrides(self) -> dict[str, str | int | float]:
        """They by the engine's names, and the target, for ``Scenario.laid_over``. Raises SpecDebugError."""
        of_target = {"target": self.target, "ready_timeout_s": positive(self.ready_timeout, "--ready-timeout")}
        return self.engine() | {name: value for name, value in of_target.items() if value is not None}


class JsonOptions(JsonFlag):
    """The JSON document, in place of the report or beside it, and files that draw the report."""

    panel = "Output"
    quiet: bool = option(
        "Print the verdict alone, and no progress.", "--quiet", "-q", default=False, callback=set_quiet
    )
    verbose: bool = option("Print all that is known, as a page has it.", "--verbose", "-v", default=False)

    json_file: Path | None = option("Write the JSON document into this file, beside the report.", metavar="FILE")

    def check_outputs(self) -> None:
        """Raise SpecDebugError for a format that there is not, OutputError if one of the files could not be written."""
        own = [path for name in ("json_file", "answers") if (path := getattr(self, name, None)) is not None]
        for path in dict.fromkeys([*own, *(path for _, path in self.wanted())]):
            check_writable(path)

    def wanted(self) -> list[tuple[str, Path]]:
        """The format and the path of each file that draws the report."""
        from specdebug.report.formats import parse_report

        named = [(name, getattr(self, name, None)) for name in ("junit", "html", "perfetto")]
        asked = map(parse_report, getattr(self, "report", None) or ())
        return [(name, path) for name, path in (*named, *asked) if path is not None]

    def recording(self) -> Recording | None:
        """A place for the steps if a file shows them."""
        from specdebug.campaign.loops.steplog import Recording
        from specdebug.report.formats import report_format

        return Recording() if any(report_format(name).shows_steps for name, _ in self.wanted()) else None


class PageOptions(JsonOptions):
    """The document, and a page."""

    panel = "Output"

    html: Path | None = option("Write a self-contained page into this file, whatever the verdict.", metavar="FILE")


class ResultOptions(PageOptions):
    """The document, and files in the formats of ``report/formats.py``."""

    panel = "Output"

    junit: Path | None = option("Write JUnit XML into this file.", metavar="FILE")
    report: list[str] | None = option(
        "Write the report into a file in this format, ours or an installed package's (repeatable).",
        metavar="FORMAT=FILE",
    )


class RunOptions(Command):
    """The number of workers that run arms, and the time each may take."""

    panel = "Machine"

    jobs: int = jobs_option()
    timeout: float | None = option("Give each arm so long, whatever the scenario says.", metavar="SECONDS")


class BaselineOptions(Command):
    """The baseline that accept lengths are held against, and the one that they are written to."""

    panel = "Baselines"

    baseline: Path | None = baseline_option()
    save_baseline: Path | None = option("Write accept lengths into this file; its other entries stay.", metavar="FILE")

    def open_baseline(self) -> Baseline | None:
        """The baseline to hold against. Raises ContentError, OutputError if the other could not be written."""
        from specdebug.campaign.loops.baseline import Baseline

        if self.save_baseline is not None:
            check_writable(self.save_baseline)
            if self.save_baseline.exists():
                Baseline.read(self.save_baseline)
        return None if self.baseline is None else Baseline.read(self.baseline)

    def save_to_baseline(self, results: Sequence[ArmResult]) -> None:
        """Write what these accepted, and say so on stderr. Raises SpecDebugError."""
        if self.save_baseline is not None:
            from specdebug.campaign.loops.baseline import save

            for line in save(self.save_baseline, results):
                note(line)


class ClusterOptions(Command):
    """Where trials run."""

    panel = "Machine"

    executor: Executor = option("Run trials here, or on a Ray cluster, as many as it has CPUs.", default=Executor.LOCAL)
    ray_address: str | None = option(
        "Use the Ray cluster at this address, or auto; else RAY_ADDRESS, else this machine alone.", metavar="HOST:PORT"
    )

    @property
    def on_ray(self) -> bool:
        """Trials run on a cluster. Raises SpecDebugError for a cluster's address without a cluster."""
        if self.ray_address is not None and self.executor is not Executor.RAY:
            raise SpecDebugError("--ray-address is of no use without --executor ray")
        return self.executor is Executor.RAY


class ResumeOption(Command):
    """Going on with trials of another state."""

    panel = "Journal"

    resume_anyway: bool = option("Go on with what was kept, though what it ran has changed since.", default=False)


class JournalOptions(ResumeOption):
    """The file that a search keeps its trials in."""

    panel = "Journal"

    journal: Path | None = option(
        "Keep the trials in this file; .specdebug/COMMAND-*.sqlite unless given.", metavar="FILE"
    )
    fresh: bool = option("Start over; the journal of before is kept as FILE.bak.", default=False)

    def journal_path(self, command: str, identity: str) -> Path:
        """The path of the journal; without one on the command line, in our own folder."""
        return self.journal or own_folder() / f"{command}-{identity}.sqlite"

    @contextlib.contextmanager
    def opened(self, path: Path, identity: str, about: str, state: State) -> Iterator[Journal]:
        """Open the journal; if another was put aside, say on stderr where and why. Raises SpecDebugError."""
        if self.fresh and self.resume_anyway:
            raise SpecDebugError("--fresh starts over, --resume-anyway goes on; give one of them")
        with Journal(path, identity, about, state=state, fresh=self.fresh, anyway=self.resume_anyway) as journal:
            if journal.kept is not None:
                note(f"the journal of before is kept as {journal.kept}")
            if (earlier := journal.earlier) is not None and earlier.trials:
                trials = counted(earlier.trials, "trial")
                begun = "goes on with the trials of this state" if earlier.back else "is another search, from nothing"
                again = f"--resume-anyway goes on with the {trials} of before, kept in {earlier.path}"
                another = f"{shortly(earlier.differs)}: this {begun}; {again}"
                note(gone_on(trials, earlier.differs) if earlier.adopted else another)
            yield journal


def gone_on(what: str, differs: Sequence[str]) -> str:
    """Say in one line that a search goes on with what it has of another state."""
    return f"going on with {what} of before a change, as --resume-anyway says ({shortly(differs)})"


class WithCommand(TyperCommand):
    """A command line that may end in ``-- CMD ...``; the words after the dashes are left as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command aside, parse the rest."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_WORDS] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


def words_after_dashes(ctx: typer.Context) -> tuple[str, ...]:
    """The words after ``--``, which :class:`WithCommand` put aside."""
    words: tuple[str, ...] = ctx.meta.get(_WORDS, ())
    return words


def run_line(command: Sequence[str], reverted: Iterable[str], content: Sequence[str] | None) -> str:
    """The line that runs a command with these fixes reverted, as a trial does: under the hook, with the words that name
    the folders of ``content``; of None by the variable."""
    numbers = reverts_text(reverted)
    if not numbers:
        return shlex.join(command)
    if content is None:
        return f"{REVERT_VARIABLE}={numbers} {shlex.join(command)}"
    return shlex.join(["specdebug", "run", "--revert", numbers, *content, "--", *command])


class CommandOptions(Command):
    """How a command after ``--`` is tried."""

    panel = "What is tried"
    after_dashes = True

    no_proof: bool = option(
        "Tell a command its fixes by SGLANG_DEBUG_REVERT_PR alone, where no hook can reach its Python.", default=False
    )
    timeout: float | None = option(
        "End a command that takes longer, which counts as a hang; an arm only if it stands still.", metavar="SECONDS"
    )

    def hooked(self, command: Sequence[str]) -> bool:
        """Trials of it run under the hook. Raises SpecDebugError for one that no hook can reach."""
        from specdebug.patching.hook.folder import refused

        if not self.no_proof and (why := refused(command)):
            raise SpecDebugError(f"{why}, or say --no-proof")
        return not self.no_proof


class TrialOptions(CommandOptions, JournalOptions, EngineOptions, ContentOptions):
    """Trials of a scenario, or of the command after ``--``."""

    panel = "What is tried"

    scenario: str | None = argument(
        "A scenario; or end with -- CMD ... to run a command.", metavar="SCENARIO", complete=complete.scenarios
    )
    arm: str | None = arm_option("Run this arm of the scenario; the first that reverts nothing unless given.")
    takes: Takes = option("Put one fix into SGLANG_DEBUG_REVERT_PR, as SGLang takes it, or a set.", default=Takes.ONE)

    def words(self) -> tuple[str, ...]:
        """The words after ``--``; empty where there is a scenario. Raises SpecDebugError for both, or neither."""
        words = words_after_dashes(self.ctx)
        name = self.ctx.command.name
        if self.scenario is not None and words:
            raise SpecDebugError(f"{name} takes a scenario or, after --, a command; not both")
        if self.scenario is None and not words:
            raise SpecDebugError(
                f"{name} needs a scenario or, after --, a command, as in: specdebug {name} -- ./test.sh"
            )
        return words

    def looked(self, command: Sequence[str], registry: Registry, journal: Path) -> Look:
        """A command's look, that of before where nothing has changed since. Raises SpecDebugError for one that no hook
        can reach, or that cannot be run."""
        from specdebug.campaign.trials.hooked import HookedSource, keep_look, kept_look

        self.hooked(command)
        check_place(journal)
        with contextlib.closing(HookedSource(command, registry, timeout_s=self.timeout)) as source, interrupts.held():
            state = source.state()
            look = None if self.fresh else kept_look(journal, state)
            if look is None:
                note("looking at what the command imports: one run with nothing reverted")
                look = source.look()
                keep_look(journal, state, look)
        return look

    def overrides(self) -> dict[str, str | int | float]:
        """As of any engine; a command has none. Raises SpecDebugError for one named then."""
        if self.scenario is not None:
            return super().overrides()
        if flag := self.named(EngineOptions):
            raise SpecDebugError(f"{flag} is for a scenario; a command has none")
        return {}
