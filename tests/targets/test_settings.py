"""``target:`` in its forms: a name, a URL, ``serve``, and the mappings, in a file and on the command line."""

from __future__ import annotations

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.scenario.grammar import Scenario, read_scenario
from specdebug.targets.registry import find_target
from specdebug.targets.settings import HttpServer, LaunchedServer, ReleasedEngine, TargetChoice, parse_target

SCENARIO = "name: x\nworkload: [{prompt: {token_ids: [1]}}]\n"


def read(text: str) -> Scenario:
    return read_scenario(parse_yaml(f"{SCENARIO}target: {text}\n"))


@pytest.mark.parametrize(
    ("text", "choice", "name"),
    [
        ("embedded", "embedded", "embedded"),
        ("http://host:1", HttpServer(url="http://host:1"), "http"),
        ("{http: 'http://host:1', stream: false}", HttpServer(url="http://host:1", stream=False), "http"),
        ("serve", LaunchedServer(command="serve"), "launch"),
        ("{launch: 'run {port}', env: {A: b}}", LaunchedServer(command="run {port}", env={"A": "b"}), "launch"),
    ],
)
def test_a_target_is_read_alike_wherever_it_is_named(text: str, choice: TargetChoice, name: str) -> None:
    assert read(text).target == parse_target(text) == choice
    assert find_target(choice).traits.name == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ftp://host", "target is a url, and 'ftp://host' is none; write http://HOST:PORT"),
        ("http://host:1?x=y", "is none; write"),
        ("{htp: 'http://host:1'}", "target must be a target's name, a URL, 'serve', {http: URL, ...}, {launch:"),
        ("{http: 'http://host:1', conections: 3}", "did you mean 'connections'?"),
        ("{http: 'http://host:1', connections: 0}", "target.connections must be a whole number from 1"),
        ("{launch: 'run it'}", "command must hold {port}, which stands for a free port"),
        ("{launch: 'run {port}', env: {A: 1}}", "target.env.A must be text, not 1; quote it"),
        ("{launch: 'run {port}', ready: health}", "target.ready 'health' does not fit the form"),
        ("[", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(text: str, told: str) -> None:
    with pytest.raises(SpecDebugError) as caught:
        parse_target(text)
    assert str(caught.value).startswith("--target ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"), [("http", "needs to know which: write {http: ...}"), ("htp", "no target 'htp'")]
)
def test_a_name_that_is_none(name: str, told: str) -> None:
    with pytest.raises(SpecDebugError, match=told.replace("{", r"\{")):
        find_target(name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sglang==", "'sglang==' names no release; write sglang==VERSION"),
        ("sglang==one", "'one' is no version"),
        ("{engine: sgl}", "target.engine 'sgl' does not fit the form"),
    ],
)
def test_a_release_that_is_none(text: str, told: str) -> None:
    with pytest.raises(SpecDebugError) as caught:
        parse_target(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "runner", "name"),
    [
        ("vllm==0.32.0", None, "vllm==0.32.0"),
        ("vllm/v2==0.32.0", "v2", "vllm/v2==0.32.0"),
        ("{engine: vllm==0.32.0, runner: v1}", "v1", "vllm/v1==0.32.0"),
    ],
)
def test_a_model_runner_is_named_with_the_engine(text: str, runner: str | None, name: str) -> None:
    choice = parse_target(text)
    assert isinstance(choice, ReleasedEngine)
    assert (choice.release, choice.runner, str(choice)) == ("vllm==0.32.0", runner, name)
    assert parse_target(str(choice)) == choice


def test_a_model_runner_that_there_is_not() -> None:
    with pytest.raises(SpecDebugError, match=r"target\.runner cannot be 'v3'; known: v1, v2"):
        parse_target("{engine: vllm==0.32.0, runner: v3}")
    with pytest.raises(SpecDebugError, match="does not fit the form"):
        parse_target("sglang/v2==0.5.23")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("sglang@/a checkout", "/a checkout"),
        ("vllm==0.32.0@~/src", "~/src"),
        ("{engine: sglang, tree: b, commit: c}", "b"),
    ],
)
def test_a_checkout_in_the_place_of_a_release(text: str, tree: str) -> None:
    choice = parse_target(text)
    assert isinstance(choice, ReleasedEngine)
    assert choice.tree == tree
    assert parse_target(str(choice)) == choice or choice.commit is not None
    assert read(text).target == choice
