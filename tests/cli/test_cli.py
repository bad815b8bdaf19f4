"""The command line as a user meets it: what it prints where, and how every kind of trouble ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from specdebug import __version__
from specdebug.cli import main as entry
from specdebug.cli.main import run
from specdebug.cli.options import Command, argument, enter, option
from specdebug.cli.output import write
from tests.cli.command import COMMAND

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def spawn(*argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([*COMMAND, *argv], cwd=ROOT, timeout=120, check=False, **options)


def every_command() -> list[tuple[str, type[Command]]]:
    named = [(name, kind) for name, (kind, _) in entry.COMMANDS.items()]
    return named + [
        (f"{group} {name}", kind) for group, (_, below) in entry.GROUPS.items() for name, kind in below.items()
    ]


def command_named(name: str) -> Any:
    command: Any = typer.main.get_command(entry.app)
    for word in name.split():
        command = command.commands[word]
    return command


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_every_command_has_an_example_which_is_a_command_line(name: str) -> None:
    command = command_named(name)
    example = re.search(r"^Example: specdebug (.+)", command.help, re.MULTILINE)
    assert example is not None
    words = shlex.split(example[1])
    assert words[: len(name.split())] == name.replace("minimize", "minimise").split()
    command.make_context(name, words[len(name.split()) :], resilient_parsing=False)


VERBS = re.compile(
    "(?:Over [a-z ]+: )?(?i:Accept|Add|Ask|Begin|Capture|Change|Compute|Count|Decide|Divide|Do|Draft|Draw|End|Exit|"
    "Expect|Fill|Follow|Give|Go|Hold|Inject|Install|Keep|Kill|Let|Listen|List|Look|Make|Match|Name|Overwrite|Prefill|"
    "Print|Put|Read|Refuse|Revert|Run|Search|Serve|Set|Show|Spend|Start|State|Stop|Stream|Suspect|Switch|Take|Tell|Try|Use|"
    "Verify|Wait|Where|Write) "
)
"""What an option's text begins with, for it is a sentence that says what the option does; "Where ..., do it" is one."""


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_the_text_of_every_option_is_a_sentence(name: str) -> None:
    texts = {one.opts[0]: one.help or "" for one in command_named(name).params if one.param_type_name == "option"}
    assert {flag: text for flag, text in texts.items() if not VERBS.match(text) or not text.endswith(".")} == {}


def test_options_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    run(["bisect", "--help"])
    told = capsys.readouterr().out
    for panel in ("What is tried", "Output", "Journal", "Engine", "Machine", "Content", "Example: specdebug bisect"):
        assert panel in told


def test_a_quiet_command_prints_its_verdict_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(Path(__file__).with_name("mini.yaml")), "--arm", "fixed", "-q"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    assert run(["replay", str(Path(__file__).with_name("mini.yaml")), "--arm", "fixed", "-v"]) == 0
    assert "Requests (" in capsys.readouterr().out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"specdebug {__version__}\n"
    assert run([]) == 0
    everything = capsys.readouterr().out
    for command in ("replay", "compare", "toggles", "probes", "scenarios", "doctor"):
        assert command in everything
        assert run([command, "--help"]) == 0
        assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["scenarios", "list"],
        ["scenarios", "validate", "cache_hit"],
        ["toggles", "list"],
        ["probes", "list"],
    ],
    ids=" ".join,
)
def test_listings_need_no_torch(argv: list[str]) -> None:
    code = (
        "import sys; from specdebug.cli.main import run; "
        f"code = run({argv!r}); sys.exit(code or 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    assert ended.returncode == 0


BAD_FILES = {
    "unknown key": b"name: x\nengine: {modle: tiny}\nworkload: [{prompt: {text: x}}]\n",
    "unclosed": b"name: [unclosed\n",
    "code": b'!!python/object/apply:os.system ["touch pwned"]\n',
    "empty": b"",
    "binary": bytes(range(256)) * 16,
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("command", ["replay", "compare", "validate"])
def test_a_malformed_scenario_is_one_line_with_its_place(
    kind: str, command: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(BAD_FILES[kind])
    argv = ["scenarios", "validate", str(file)] if command == "validate" else [command, str(file)]
    assert str(file) in refused(*argv)
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["replay", "scenarios/missing.yaml"], "missing.yaml"),
        (["replay", "cache_hitt"], "did you mean 'cache_hit'"),
        (["replay", "cache_hit", "--revert", "99999"], "no toggle reverts 99999"),
        (["replay", "cache_hit", "--revert", "nine"], "'nine' is not a pull request's number"),
        (["replay", "cache_hit", "--arm", "recompte"], "did you mean 'recompute'"),
        (["replay", "cache_hit", "--probes", "defualt"], "did you mean 'default'"),
        (["replay", "cache_hit", "--timeout", "0"], "--timeout must be above 0"),
        (["replay", "cache_hit", "--ready-timeout", "0"], "--ready-timeout must be above 0 seconds, got 0"),
        (["replay", "cache_hit", "--ready-timeout", "5"], "none of its arms starts a server"),
        (["replay", "cache_hit", "--mode", "loud"], "loud"),
        (["replay", "cache_hit", "--seed", "-1"], "--seed"),
        (["replay", "cache_hit", "--junit", "no/such/folder/x.xml"], "no folder no/such/folder"),
        (["replay", "cache_hit", "--junit", "/"], "is a folder"),
        (["replay", "cache_hit", "--content", "no-such-folder"], "no-such-folder"),
        (["replay", "cache_hit", "--device", "gpu"], "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["replay", "cache_hit", "--dtype", "float8"], "float8"),
        (["compare", "cache_hit", "--backend", "fa4"], "fa4"),
        (["toggles", "verify", "--device", "cuda:"], "--device must be"),
        (["replay"], "FILE"),
        (["replay", "cache_hit", "--colour"], "--colour"),
        (["replai", "cache_hit"], "replai"),
        (["toggles"], "command"),
        (["toggles", "show", "1"], "no toggle reverts 1"),
        (["toggles", "verify", "1"], "no toggle reverts 1"),
        (["toggles", "verify", "--seeds", "0"], "seeds"),
        (["compare", "cache_hit", "--arm", "recompute"], "two different arms"),
        (["compare", "cache_hit", "--arm", "recompute", "--arm", "recompute"], "two different arms"),
        (["scenarios", "schema", "--output", "no/such/folder/x"], "no folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_user_got_wrong_is_one_line(argv: list[str], words: str, refused: Callable[..., str]) -> None:
    assert words in refused(*argv)


def test_a_bad_revert_variable_is_named(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "27338;27360")
    assert refused("replay", "cache_hit").startswith("SGLANG_DEBUG_REVERT_PR: ")
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "4")
    assert "no toggle reverts 4" in refused("replay", "cache_hit")


def test_a_fault_of_our_own_is_exit_3_and_a_traceback_only_on_demand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    def broken(content: object) -> None:
        raise ZeroDivisionError("of the\nworst kind")

    monkeypatch.setattr("specdebug.cli.options.Library", broken)
    line = refused("toggles", "list", code=entry.INTERNAL_ERROR)
    assert line.startswith("internal error: ZeroDivisionError: of the worst kind (--debug shows where")
    assert run(["toggles", "list", "--debug"]) == entry.INTERNAL_ERROR
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: internal error: ZeroDivisionError: of the worst kind\n")
    refused("toggles", "list", code=entry.INTERNAL_ERROR)  # --debug does not stick


def test_listings_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenarios", "list", "--json"]) == 0
    scenarios = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert scenarios["cache-hit"]["arms"] == ["recompute", "zero_fill", "reverted"]
    assert run(["toggles", "list", "--json"]) == 0
    toggles = {item["pr"]: item for item in json.loads(capsys.readouterr().out)}
    assert len(toggles) >= 10
    assert toggles[26329]["aliases"] == [26800]
    assert run(["toggles", "show", "26800"]) == 0
    assert capsys.readouterr().out.startswith("26329  ")
    assert run(["probes", "list", "--json"]) == 0
    probes = json.loads(capsys.readouterr().out)
    site = next(item for item in probes["sites"] if item["site"] == "draft_graph.replay.topk_index")
    assert site["kinds"] == ["oob"]
    assert {"default", "assert", "graph"} <= set(site["packs"])
    assert "numerics" not in site["packs"]
    assert site["workers"] == ["EAGLE v2", "EAGLE v1", "MLA"]
    for listing in (["scenarios", "list"], ["toggles", "list"], ["probes", "list"]):
        assert run(listing) == 0
        assert len(capsys.readouterr().out.splitlines()) > 5


def test_the_schema_is_json_and_can_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenarios", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert run(["scenarios", "schema", "-o", str(tmp_path / "s.json")]) == 0
    assert json.loads((tmp_path / "s.json").read_text()) == schema


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), MemoryError("no 64 bytes"), RuntimeError("can't start new thread")],
)
def test_a_machine_that_fails_the_command_itself_is_no_verdict(
    error: Exception, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    def broken(content: object) -> None:
        raise error

    monkeypatch.setattr("specdebug.cli.options.Library", broken)
    line = refused("toggles", "list", code=125)
    assert line.startswith("machine: ")
    assert str(error) in line


def test_own_content_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]) -> None:
    (tmp_path / "scenarios").mkdir()
    text = Path("scenarios/chunk_tail.yaml").read_text().replace("name: chunk-tail", "name: mine")
    (tmp_path / "scenarios" / "mine.yaml").write_text(text)
    assert run(["scenarios", "validate", "mine", "--content", str(tmp_path)]) == 0
    capsys.readouterr()
    assert "no scenario of this name" in refused("scenarios", "validate", "mine")


def test_a_reader_that_has_gone_is_nobody_s_error() -> None:
    read, out = os.pipe()
    os.close(read)
    ended = spawn("scenarios", "schema", stdout=out)
    os.close(out)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("argv", [("scenarios", "schema"), ("toggles", "list")], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_an_error_not_a_silent_loss(argv: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        ended = spawn(*argv, stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert ended.returncode == 125
    assert ended.stderr == b"error: cannot write to stdout: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_survived(closed: str) -> None:
    line = f'exec "$0" -c "from specdebug.cli.main import main; main()" scenarios validate cache_hit {closed}'
    assert subprocess.run(["bash", "-c", line, sys.executable], cwd=ROOT, timeout=60).returncode == 0


def test_write_without_a_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    write("nobody hears this")


def test_nothing_in_an_error_reaches_the_terminal_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "\x1b]0;title\x07\nerror: not this.yaml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert [char for char in said.rstrip("\n") if not char.isprintable()] == []


def test_a_description_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scenarios").mkdir()
    text = (
        (ROOT / "tests/cli/mini.yaml")
        .read_text()
        .replace("name: mini", 'name: mini\ndescription: "\\e]0;T\\a\\e[31mred"')
    )
    (tmp_path / "scenarios" / "odd.yaml").write_text(text)
    assert run(["scenarios", "list", "--content", str(tmp_path)]) == 0
    assert r"\x1b]0;T\x07\x1b[31mred" in capsys.readouterr().out


def test_every_mistake_of_a_scenario_is_an_error_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\nengine: {model: tinny}\nworkload: [{prompt: {text: x}}]\nseed: -1\nprobes: [defualt]\n")
    wanted = ["2:10: engine.model", "4:7: seed", "5:10: no probe pack 'defualt'"]
    for command in (["scenarios", "validate", str(bad), "cache_hit"], ["replay", str(bad)]):
        assert run(command) == 2
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert len(lines) == len(wanted)
        assert all(f"error: {bad}:{said}" in line for line, said in zip(lines, wanted, strict=True))
        assert out.endswith("cache_hit.yaml: ok, 3 arms\n") == (command[0] == "scenarios")


class LoudOption(Command):
    """Shared."""

    loud: bool = option("Cry it.", default=False)
    times_at_most: int = option("How often.", default=1, min=1)


class Greeting(LoudOption):
    """Say good
    day.

    Or night."""

    calls: ClassVar[list[Greeting]] = []
    name: str = argument("Whom to greet.", default=..., metavar="NAME")
    at: str = option("When.", "--at", "-a", default="noon")

    def run(self) -> int:
        self.calls.append(self)
        return 7


APP = typer.Typer()
enter(APP, "greet", Greeting)
enter(APP, "other", LoudOption)
GROUP = typer.main.get_command(APP)


def called_with(*argv: str, **settings: object) -> Greeting:
    Greeting.calls.clear()
    result = CliRunner().invoke(APP, ["greet", *argv], standalone_mode=False, default_map={"greet": settings})
    assert result.exception is None, result.output
    assert result.return_value == 7
    (call,) = Greeting.calls
    return call


def test_a_command_is_called_with_its_options_and_those_of_its_bases() -> None:
    assert called_with("Ada") == Greeting(name="Ada", at="noon", loud=False, times_at_most=1)
    told = called_with("--times-at-most", "3", "-a", "dawn", "--loud", "Ada")
    assert told == Greeting(name="Ada", at="dawn", loud=True, times_at_most=3)
    assert told.named(LoudOption) == "--loud"
    assert told.ctx.command.name == "greet"


def test_a_configuration_file_knows_a_field_by_its_name_and_is_not_the_command_line() -> None:
    told = called_with("Ada", times_at_most=4)
    assert (told.times_at_most, told.named(LoudOption)) == (4, None)


def test_own_fields_stand_first_and_the_docstring_is_the_help() -> None:
    command = GROUP.commands["greet"]  # type: ignore[attr-defined]
    assert [each.name for each in command.params if each.name != "help"] == [
        "name", "at", "loud", "times_at_most", "debug",
    ]  # fmt: skip
    assert command.help == "Say good day.\n\nOr night."


def test_a_field_without_a_default_is_required() -> None:
    result = CliRunner().invoke(APP, ["greet"])
    assert result.exit_code == 2
    assert "NAME" in result.output
