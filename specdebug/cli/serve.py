"""``specdebug serve``: the embedded engine behind SGLang's HTTP interface, and the log of a server."""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specdebug.base.assets import checkpoint_path
from specdebug.base.engine_flags import ENGINE_FLAGS, EngineFlag, flag_of, options_of, refusal
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import set_quiet
from specdebug.faults.declare import parse_fault
from specdebug.report.words import shown, shown_lines
from specdebug.targets.options import OURS

if TYPE_CHECKING:
    from specdebug.apps.serve.process import Launch
    from specdebug.apps.serve.state import Settings
    from specdebug.faults.model import Fault

_KEY = re.compile(r"[!-~]+")
_KINDS = {"text": str, "sizes": str, "whole": int, "number": float}
ROOM_BYTES = 1 << 20
"""Bytes of the log that wait to be written at most."""
LINE_CHARS = 4000
"""Characters of one line at most; the rest is cut off."""
CLOSE_S = 1.0
"""Seconds that the last lines may take to be read."""


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


def _declared(flag: EngineFlag) -> tuple[Any, Any]:
    """The type of a flag's option, and the option."""
    if flag.kind == "switch":
        return bool, opt.option(flag.help, flag.name, default=False)
    model = flag.into == ("model",)
    kind = _KINDS[flag.kind] if model else _KINDS[flag.kind] | None
    return kind, opt.option(flag.help, flag.name, default="tiny" if model else None)


_FLAGS = {flag.parameter: _declared(flag) for flag in ENGINE_FLAGS}
_BODY = {"__annotations__": {name: kind for name, (kind, _) in _FLAGS.items()}, "__module__": __name__}
EngineFlags: Any = type("EngineFlags", (opt.Command,), _BODY | {name: option for name, (_, option) in _FLAGS.items()})
"""The engine's flags, as the table has them."""


class ServerFlags(opt.Command):
    """The server's own flags."""

    host: str = opt.option("Listen here; an address that others reach needs --api-key.", default="127.0.0.1")
    port: int = opt.option("Listen on this port; 0 takes one that is free.", default=30000, min=0, max=65535)
    api_key: str | None = opt.option("Refuse clients that do not send this key as a bearer token.")
    served_model_name: str | None = opt.option("Tell clients this name of the model; its path unless given.")
    max_queued_requests: int | None = opt.option("Let at most so many requests wait; further ones get a 503.", min=0)
    enable_metrics: bool = opt.option("Serve /metrics for Prometheus.", default=False)
    log_requests: bool = opt.option("Write each request to the log.", default=False)
    log_level: LogLevel = opt.option(
        "Write the HTTP server's own lines of this level and above.", default=LogLevel.INFO
    )
    watchdog_timeout: float = opt.option(
        "Kill an engine that has work and is silent for so many seconds: hang.", default=300.0
    )
    incremental_streaming_output: bool = opt.option(
        "Stream from /generate only what is new, not all the text so far.",
        "--incremental-streaming-output",
        "--stream-output",
        default=False,
    )


class ServeCommand(EngineFlags, ServerFlags, opt.ContentOptions):  # type: ignore[misc]
    """Serve the embedded engine by SGLang's HTTP interface, until a signal comes.

    Flags have SGLang's names where it has the same; --revert, --fault and --probes are those of replay. A flag that
    is not known here is refused. The routes are in docs/serve.md.
    """

    example = "serve --model-path tiny --port 30000"
    held = True
    revert: list[str] | None = opt.revert_option("Serve without these fixes.")
    fault: list[str] | None = opt.fault_option("Inject this fault (repeatable).")
    probes: list[str] | None = opt.packs_option("Switch on the probes of these packs (repeatable), or none.")
    mode: ProbeReaction | None = opt.option("Set the mode of every probe, over what the packs say.")

    def run(self) -> int:
        set_quiet(True)  # stderr is the server's log
        if self.ctx.args:
            self._refuse()
        engine = {flag.parameter: getattr(self, flag.parameter) for flag in ENGINE_FLAGS}
        options = options_of(engine)
        launch = self._launch(options)
        from specdebug.apps.serve.reverts import FrontReverts  # before what it edits is imported

        with FrontReverts(launch.toggles) as reverts:
            settings = self._settings(engine)
            _check(options, launch.faults)
            from specdebug.apps.serve.run import Address, serve

            timeout = opt.positive(self.watchdog_timeout, "--watchdog-timeout") or 0.0
            address = Address(self.host, self.port, timeout, self.log_level.value)
            with contextlib.closing(BoundedLog(2)) as log, log.of_loggers():
                serve(launch, settings, address, reverts, say=log.say, pass_on=log.pass_on)
        return 0

    def _settings(self, engine: dict[str, Any]) -> Settings:
        """The server's settings. Raises SpecDebugError for a key that no client could send."""
        from specdebug.apps.serve.state import Settings

        key = self.api_key
        if key is not None and _KEY.fullmatch(key) is None:
            raise SpecDebugError("--api-key: a key is one or more visible ASCII characters, as HTTP headers carry them")
        own = {one.name: getattr(self, one.name) for one in fields(ServerFlags) if one not in fields(opt.Command)}
        return Settings(
            served_model_name=self.served_model_name or engine["model_path"],
            api_key=key,
            hosts=None if key is not None else frozenset({"localhost", self.host.lower()}),
            max_queued_requests=self.max_queued_requests,
            incremental_output=self.incremental_streaming_output,
            enable_metrics=self.enable_metrics,
            log_requests=self.log_requests,
            arguments={**engine, **own, "api_key": None if key is None else "***"},
        )

    def _launch(self, options: dict[str, Any]) -> Launch:
        """The order to start the engine. Raises SpecDebugError for a fix, fault or pack that there is not."""
        from specdebug.apps.serve.process import Launch

        library = self.library()
        return Launch(
            options,
            library.toggles(opt.numbers_of(self.revert)),
            tuple(library.checked_pack(name) for name in self.probes or () if name != "none"),
            tuple(parse_fault(text) for text in self.fault or ()),
            None if self.mode is None else self.mode.value,
        )

    def _refuse(self) -> None:
        """Raise SpecDebugError for what is left of the command line."""
        known = [name for param in self.ctx.command.params for name in param.opts]
        first = next((word for word in self.ctx.args if word.startswith("-")), None)
        if first is None:
            left = self.ctx.args[0]
            raise SpecDebugError(f"serve takes no argument, got {left!r}; name the model with --model-path")
        raise SpecDebugError(refusal(first, known))


def _check(options: dict[str, Any], faults: Sequence[Fault]) -> None:
    """Raise SpecDebugError, with the flag at fault, for options that contradict each other or name no checkpoint, and
    for a fault that cannot act in such an engine."""
    try:
        checkpoints = tuple(OURS.checkpoints(options))
    except InvalidOption as error:
        flag = flag_of(error.key_path)
        raise SpecDebugError(f"{flag}: {error.reason}" if flag else str(error)) from None
    for fault in faults:
        OURS.check_fault(options, fault, "this server")
    for _, name in checkpoints:
        checkpoint_path(name)


class BoundedLog(logging.Handler):
    """A server's log on file descriptor ``fd``, written by a thread of its own until it is closed.

    A reader who stops reading (a pager, a full pipe) stops that thread and nothing else: what has no room is dropped,
    and how much that was is said once there is room again. Text of clients is among the lines, so control characters
    come out as escapes.
    """

    def __init__(self, fd: int, room: int = ROOM_BYTES) -> None:
        super().__init__()
        self._fd = fd
        self._room = room
        self._waiting: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._ended = False
        self._news = threading.Condition()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thread = threading.Thread(target=self._write, name="server log", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Write lines, each with the time."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        for line in text.splitlines():
            cut = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
            self._add(f"[{now}] {shown(cut)}\n")

    def pass_on(self, data: bytes) -> None:
        """Write what the engine printed, without a time."""
        self._add(shown_lines(self._decoder.decode(data)))

    def emit(self, record: logging.LogRecord) -> None:
        """Write what a logger says."""
        self.say(f"{record.levelname}: {self.format(record)}")

    @contextlib.contextmanager
    def of_loggers(self) -> Iterator[None]:
        """Take in what this process's loggers say, those of the HTTP server among them."""
        logging.getLogger().addHandler(self)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self)

    def close(self) -> None:
        """Write what waits. Where it is not read, the descriptor is given up, lest a last word of this process wait
        for that reader for ever."""
        with self._news:
            self._ended = True
            self._news.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._fd)
            os.close(null)
        super().close()

    def _add(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with self._news:
            if self._bytes + len(data) > self._room:
                self._dropped += 1
                return
            if self._dropped:
                note = f"[{self._dropped} lines are missing here: they were not read in time]\n".encode()
                data, self._dropped = note + data, 0
            self._waiting.append(data)
            self._bytes += len(data)
            self._news.notify()

    def _write(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                data = memoryview(self._waiting.popleft())
            size = len(data)
            with contextlib.suppress(OSError):  # the reader is gone, or the disk is full: there is nowhere to say so
                while data:
                    data = data[os.write(self._fd, data) :]
            with self._news:
                self._bytes -= size
