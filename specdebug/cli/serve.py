"""``specdebug serve``: the embedded engine behind SGLang's HTTP interface."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdebug.base import interrupts
from specdebug.base.engine_flags import ENGINE_FLAGS, EngineFlag, flag_of, options_of, refusal
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.cli import complete
from specdebug.cli.log import BoundedLog
from specdebug.cli.options import ContentOptions, Faults, Help, Reverts, grouped, numbers_of

if TYPE_CHECKING:
    from specdebug.apps.serve.process import Launch
    from specdebug.apps.serve.run import Address
    from specdebug.apps.serve.state import Settings
    from specdebug.faults.model import Fault
    from specdebug.scenario.library import Library

LOOPBACK = "127.0.0.1"
PORT = 30000
_KEY = re.compile(r"[!-~]+")
_KINDS = {"text": str, "sizes": str, "whole": int, "number": float}


class LogLevel(StrEnum):
    """The least weight of what the front writes to its log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ProbeReaction(StrEnum):
    """The reaction of a probe that finds something: it ends the engine, or writes it down."""

    ASSERT = "assert"
    RECORD = "record"


def _declared(flag: EngineFlag) -> tuple[str, Any, Any]:
    """The flag as a field of a group of options."""
    if flag.kind == "switch":
        return flag.parameter, Annotated[bool, typer.Option(flag.name, help=flag.help)], False
    kind = _KINDS[flag.kind] if flag.into == ("model",) else _KINDS[flag.kind] | None
    default = "tiny" if flag.into == ("model",) else None
    return flag.parameter, Annotated[kind, typer.Option(flag.name, help=flag.help)], default


EngineFlags: Any = make_dataclass("EngineFlags", [_declared(flag) for flag in ENGINE_FLAGS], frozen=True)
"""The engine's flags, as the table has them."""


@dataclass(frozen=True)
class ServerFlags:
    """The server's own flags."""

    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; others than this machine's need a key.")
    ] = LOOPBACK
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = PORT
    api_key: Annotated[str | None, typer.Option("--api-key", help="Clients must send it as a bearer token.")] = None
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="The model's name for clients; else its path.")
    ] = None
    max_queued_requests: Annotated[
        int | None, typer.Option("--max-queued-requests", min=0, help="Requests that wait at most; others get a 503.")
    ] = None
    enable_metrics: Annotated[bool, typer.Option("--enable-metrics", help="Have /metrics for Prometheus.")] = False
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Write each request to the log.")] = False
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Of the HTTP server's own lines.")] = LogLevel.INFO
    watchdog_timeout: Annotated[
        float,
        typer.Option("--watchdog-timeout", help="Seconds after which a silent engine with work is killed: hang."),
    ] = 300.0
    incremental_streaming_output: Annotated[
        bool,
        typer.Option(
            "--incremental-streaming-output", "--stream-output", help="/generate streams what is new, not all so far."
        ),
    ] = False


@grouped
@interrupts.held()
def serve(
    ctx: typer.Context,
    *,
    engine: EngineFlags,
    server: ServerFlags,
    revert: Annotated[Reverts, Help("Serve without these fixes.")] = None,
    fault: Annotated[Faults, Help("Inject this fault (repeatable).")] = None,
    probes: Annotated[
        list[str] | None,
        typer.Option("--probes", metavar="PACK", help="Probe packs, or none.", autocompletion=complete.packs),
    ] = None,
    mode: Annotated[ProbeReaction | None, typer.Option("--mode", help="Of every probe, over the packs'.")] = None,
    shared: ContentOptions,
) -> int:
    """Serve the embedded engine by SGLang's HTTP interface, until a signal comes.

    Flags have SGLang's names where it has the same; --revert, --fault and --probes are those of replay. A flag that
    is not known here is refused. The routes are in docs/serve.md.
    """
    if ctx.args:
        _refuse(ctx)
    options = options_of(asdict(engine))
    launch = _launch(options, revert, fault, probes, mode, shared.library())
    from specdebug.apps.serve.reverts import FrontReverts  # before what it edits is imported

    with FrontReverts(launch.toggles) as reverts:
        settings = _settings(engine, server)
        _check(options, launch.faults)
        from specdebug.apps.serve.run import serve

        with contextlib.closing(BoundedLog(2)) as log, log.of_loggers():
            serve(launch, settings, _address(server), reverts, say=log.say, pass_on=log.pass_on)
    return 0


def _settings(engine: Any, server: ServerFlags) -> Settings:
    """The server's settings. Raises SpecDebugError for a key that no client could send."""
    from specdebug.apps.serve.state import Settings

    key = server.api_key
    if key is not None and _KEY.fullmatch(key) is None:
        raise SpecDebugError("--api-key: a key is one or more visible ASCII characters, as HTTP headers carry them")
    return Settings(
        served_model_name=server.served_model_name or engine.model_path,
        api_key=key,
        hosts=None if key is not None else frozenset({"localhost", server.host.lower()}),
        max_queued_requests=server.max_queued_requests,
        incremental_output=server.incremental_streaming_output,
        enable_metrics=server.enable_metrics,
        log_requests=server.log_requests,
        arguments=_told(engine, server),
    )


def _address(server: ServerFlags) -> Address:
    """Where to listen. Raises SpecDebugError for a time that is none."""
    from specdebug.apps.serve.run import Address

    if not server.watchdog_timeout > 0:
        raise SpecDebugError(f"--watchdog-timeout must be above 0 seconds, got {server.watchdog_timeout:g}")
    return Address(server.host, server.port, server.watchdog_timeout, server.log_level.value)


def _launch(
    options: dict[str, Any],
    revert: Sequence[str] | None,
    fault: Sequence[str] | None,
    probes: Sequence[str] | None,
    mode: ProbeReaction | None,
    library: Library,
) -> Launch:
    """The order to start the engine. Raises SpecDebugError for a fix, fault or pack that there is not."""
    from specdebug.apps.serve.process import Launch
    from specdebug.faults.declare import parse_fault

    return Launch(
        options,
        library.toggles(numbers_of(revert)),
        tuple(library.checked_pack(name) for name in probes or () if name != "none"),
        tuple(parse_fault(text) for text in fault or ()),
        None if mode is None else mode.value,
    )


def _check(options: dict[str, Any], faults: Sequence[Fault]) -> None:
    """Raise SpecDebugError, with the flag at fault, for options that contradict each other or name no checkpoint, and
    for a fault that cannot act in such an engine."""
    from specdebug.base.assets import checkpoint_path
    from specdebug.targets.options import OURS

    try:
        checkpoints = tuple(OURS.checkpoints(options))
    except InvalidOption as error:
        flag = flag_of(error.key_path)
        raise SpecDebugError(f"{flag}: {error.reason}" if flag else str(error)) from None
    for fault in faults:
        OURS.check_fault(options, fault, "this server")
    for _, name in checkpoints:
        checkpoint_path(name)


def _refuse(ctx: typer.Context) -> None:
    """Raise SpecDebugError for what is left of the command line."""
    known = [name for param in ctx.command.params for name in param.opts]
    first = next((word for word in ctx.args if word.startswith("-")), None)
    if first is None:
        raise SpecDebugError(f"serve takes no argument, got {ctx.args[0]!r}; name the model with --model-path")
    raise SpecDebugError(refusal(first, known))


def _told(engine: Any, server: ServerFlags) -> dict[str, Any]:
    """All flags' values, for a client that asks; the key stays secret."""
    own = {field.name: getattr(server, field.name) for field in fields(server)}
    return {**asdict(engine), **own, "api_key": None if server.api_key is None else "***"}
