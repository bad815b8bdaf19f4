"""``target:`` of a scenario: a target's name, or a server, which is there (``http``) or is started: by a command
(``launch``), or as a release of another engine that is installed here (``engine``). It is read alike in a file and on
the command line: a name, a URL, ``serve``, ``sglang==0.5.13``, ``sglang@CHECKOUT``, or the mapping, as YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from specdebug.base.errors import ContentError, SpecDebugError, one_line
from specdebug.base.redaction import (
    MASK,
    hide,
    hide_variables,
    hide_words,
    redacted,
    split_words,
    variables_without_secrets,
    words_without_secrets,
)
from specdebug.base.schema import (
    FLAG,
    TEXT,
    Gather,
    Item,
    Key,
    Kind,
    Part,
    checked,
    choice,
    form,
    list_of,
    map_of,
    real,
    whole,
)
from specdebug.base.yamlio import parse_yaml
from specdebug.patching.toggles import OWN_ENGINE
from specdebug.targets.installs.release import ENGINES, RELEASE, RUNNERS, Release, parse_release

SERVE = "serve"
"""In the place of a target's name, or of a command: our own server, with the scenario's engine options."""
DTYPES = ("float32", "bfloat16", "float16")
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"

_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_NAME = re.compile(r"[a-z0-9_.=-]+")


def _no_url(text: str) -> str | None:
    return None if _URL.fullmatch(text) else f"'{one_line(text, 80)}' is none; write http://HOST:PORT"


def _left_out(text: str) -> str | None:
    if MASK not in text:
        return None
    return f"holds {MASK}, for a secret is left out of what is written; have the server read it from a variable"


def _no_command(text: str) -> str | None:
    if wrong := _left_out(text):
        return wrong
    if text == SERVE or "{port}" in text:
        return None
    return f"must hold {{port}}, which stands for a free port (or be '{SERVE}', our own server)"


URL = checked(_no_url, "url", r"^https?://")


@dataclass(frozen=True)
class AnyServer(Part):
    """What can be said of any server."""

    model: Annotated[
        str | None,
        TEXT,
        "its checkpoint: a folder here, or a shipped name; its tokenizer makes the prompts, its weights the reference",
        Key(default="`engine.model`, which is also the reference if the server says that it serves that"),
    ] = None
    dtype: Annotated[
        str | None, choice(*DTYPES), "what it computes in: says what a near-tie is", Key(default="what it says")
    ] = None
    plain: Annotated[
        str | None, URL, "of a server without drafts, whose greedy text is the right one", Key(default="none")
    ] = None
    connections: Annotated[int, whole(1, 4096), "most requests under way; others wait here"] = 64
    request_timeout_s: Annotated[
        float, real(0, 10**6, above=True), "seconds in which something of each request must arrive"
    ] = 60.0
    api_key: Annotated[
        str | None, form(VARIABLE), "name of the environment variable that holds the key", Key(default="no key")
    ] = None
    flush: Annotated[bool, FLAG, "flush its cache before the run, as for an engine that has served nothing"] = True
    stream: Annotated[bool, FLAG, "false: answers come whole, and `ends` sees no streams"] = True

    def __post_init__(self) -> None:
        if self.api_key is not None:
            hide([os.environ.get(self.api_key)])


@dataclass(frozen=True)
class HttpServer(AnyServer):
    """A server that is there."""

    kind: ClassVar[str] = "http"
    written = ("http",)

    url: Annotated[str, URL, "where it listens, as `http://HOST:PORT`", Key(name="http", required=True)] = ""

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class Started(Part):
    """What can be said of anything that is started here."""

    env: Annotated[dict[str, str], map_of(TEXT, "variable", VARIABLE, at_most=256), "more environment variables"] = (
        field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        hide_variables(self.env)

    def to_dict(self) -> dict[str, Any]:
        """As any part, but for secrets: what is written may be given away."""
        return {**super().to_dict(), "env": variables_without_secrets(self.env)}

    @property
    def variables(self) -> dict[str, str]:
        """The variables that ``env`` sets; this process's own have the values that were left out of a file. Raises
        SpecDebugError for one that they have not."""
        for name, value in self.env.items():
            if value == MASK and name not in os.environ:
                raise SpecDebugError(
                    f"target.env: {name} is a secret, which is left out of bundles; set it and run again"
                )
        return {name: value for name, value in self.env.items() if value != MASK}


@dataclass(frozen=True)
class LaunchedServer(AnyServer, Started):
    """A server that a command starts, for each arm, or of a search for each set of reverts."""

    kind: ClassVar[str] = "launch"
    written = ("launch",)

    command: Annotated[
        str,
        checked(_no_command, "command", r"\{port\}|^serve$"),
        "how it is started, `{port}` being a free one; no shell reads it. `serve`: our own, with the engine's options",
        Key(name="launch", required=True),
    ] = ""
    ready: Annotated[str, form(r"/\S*"), "what is asked for until the answer is 200"] = "/health"
    ready_timeout_s: Annotated[float, real(0, 10**6, above=True), "seconds that this may take"] = 300.0
    log: Annotated[str | None, TEXT, "folder for its log", Key(default="that of temporary files")] = None

    def __post_init__(self) -> None:
        AnyServer.__post_init__(self)
        Started.__post_init__(self)
        hide_words(split_words(self.command))

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "launch": redacted(self.command)}

    def __str__(self) -> str:
        return SERVE if self.command == SERVE else f"launch: {one_line(redacted(self.command), 80)}"


@dataclass(frozen=True)
class ReleasedEngine(Started):
    """A release of another engine, which ``specdebug engines install`` put here, with the scenario's engine options."""

    written = ("engine",)

    release: Annotated[
        str,
        form(RELEASE),
        "`sglang==0.5.13`, or `sglang`, the newest that is installed",
        Key(name="engine", required=True),
    ] = ""
    store: Annotated[str | None, TEXT, "folder that it was installed into", Key(default="as `engines install` has")] = (
        None
    )
    arguments: Annotated[
        tuple[str, ...],
        list_of(checked(_left_out, "argument", r"\S")),
        "more words of its command line, after those of the engine's options",
    ] = ()
    runner: Annotated[
        str | None,
        choice(*sorted({each for names in RUNNERS.values() for each in names})),
        "which of vLLM's model runners serves; `vllm/v2==0.32.0` says the same in one word",
        Key(default="v1"),
    ] = None
    mends: Annotated[
        bool, FLAG, "fixes that the release lacks, and that are known (`mends` of toggles), are put into it"
    ] = True
    tree: Annotated[
        str | None,
        TEXT,
        "folder of a checkout, whose code runs in the place of the release's, beside the release's dependencies",
        Key(default="the release's own code"),
    ] = None
    commit: Annotated[str | None, TEXT, "a commit of `tree`", Key(default="its files as they are")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        hide_words(self.arguments)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "arguments": words_without_secrets(self.arguments)}

    @property
    def kind(self) -> str:
        return self.named.engine

    @property
    def named(self) -> Release:
        return parse_release(self.release)

    @property
    def runs(self) -> str:
        """The engine and the model runner that serves, as ``vllm/v2``; the engine alone, if it has but one."""
        runners = RUNNERS.get(self.kind)
        return self.kind if runners is None else f"{self.kind}/{self.runner or runners[0]}"

    def __str__(self) -> str:
        at = "" if self.commit is None else f" at {self.commit[:12]}"
        release = self.release if self.runner is None else self.release.replace(self.kind, self.runs, 1)
        return release if self.tree is None else f"{release}@{self.tree}{at}"


def engine_of(target: TargetChoice) -> str:
    """The engine whose source a target runs, as toggles name it; of a server that is another's own affair, ours."""
    return target.kind if isinstance(target, ReleasedEngine) else OWN_ENGINE


def ready_within(target: TargetChoice | None, seconds: float) -> Any:
    """A target with so many seconds to be ready; one that is not started as it is."""
    return replace(target, ready_timeout_s=seconds) if isinstance(target, LaunchedServer) else target


def place_of(target: TargetChoice) -> str:
    """The host and port of a server that is there; empty for a target that is not one."""
    if not isinstance(target, HttpServer):
        return ""
    parts = urlsplit(target.url)
    host = "localhost" if parts.hostname in ("127.0.0.1", "::1") else parts.hostname
    port = re.search(r":(\d+)$", parts.netloc)
    return f"{host}:{port[1] if port else parts.scheme}"


def is_of_others(target: TargetChoice) -> bool:
    """Return True for a server that is not ours, nor a release that we look into: what it makes of fixes that it is to
    leave out, and of a scenario's engine options, is its own affair."""
    return isinstance(target, HttpServer) or (isinstance(target, LaunchedServer) and target.command != SERVE)


Server = HttpServer | LaunchedServer | ReleasedEngine
TargetChoice = str | Server
"""A target's name, or a server."""
_SERVERS: Mapping[str, type[HttpServer] | type[LaunchedServer] | type[ReleasedEngine]] = {
    "http": HttpServer,
    "launch": LaunchedServer,
    "engine": ReleasedEngine,
}


def _read(item: Item) -> TargetChoice:
    if isinstance(item.value, dict):
        entries = item.entries()
        for key, server in _SERVERS.items():
            if key in entries:
                return server.read(item)
        Gather().table(item, optional=tuple(_SERVERS))
        raise item.error(
            "must be a target's name, a URL, 'serve', {http: URL, ...}, {launch: COMMAND, ...} or "
            "{engine: RELEASE, ...}"
        )
    text = item.text()
    if text == SERVE:
        return LaunchedServer(command=SERVE)
    release, _, tree = text.partition("@")
    runs = release.partition("==")[0]
    engine, _, runner = runs.partition("/")
    if engine in ENGINES and (not runner or runner in RUNNERS.get(engine, ())):
        try:
            named = parse_release(engine + release.removeprefix(runs))
            return ReleasedEngine(release=str(named), tree=tree or None, runner=runner or None)
        except SpecDebugError as error:
            raise item.error(str(error)) from None
    if "://" in text:
        if wrong := _no_url(text):
            raise item.error(f"is a url, and {wrong}")
        return HttpServer(url=text)
    return item.text(pattern=_NAME.pattern)


def _schema(defs: dict[str, Any]) -> dict[str, Any]:
    name = {"type": "string", "pattern": f"^({_NAME.pattern}|({'|'.join(ENGINES)})[^@]*(@.+)?|https?://.*)$"}
    return {"anyOf": [name, *(server.table(defs) for server in _SERVERS.values())]}


def _plain(choice: TargetChoice) -> Any:
    if isinstance(choice, str):
        return choice
    written = choice.to_dict()
    return {key: value for key, value in written.items() if value not in (None, {}, [])}


TARGET = Kind(_read, _schema, lambda item: "", _plain)


def parse_target(text: str, option: str = "--target") -> TargetChoice:
    """The target that an option names: a name, a URL, ``serve``, or a mapping as in a file. Raises SpecDebugError."""
    try:
        table = parse_yaml(f"target: {text}", option).root.table(required=("target",))
        read: TargetChoice = TARGET.read(table["target"])
    except ContentError as error:
        raise SpecDebugError(f"{option} {one_line(text, 80)}: {error.message}") from None
    return read
