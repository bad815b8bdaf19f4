"""A stranger's bundle gets nothing unasked: no code, command, path, URL, variable or other package's part."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.base.schema import keys_of
from specdebug.bundle.content import SCENARIO, read_bundle
from specdebug.bundle.trust import HARMLESS, check_toggles_trusted, strangers, wishes
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.settings import HttpServer, LaunchedServer, ReleasedEngine
from tests.bundle.bundles import make_bundle, members_of, repacked

KNOWN = Library().all_toggles()
PLAIN: dict[str, Any] = {"name": "a", "workload": [{"prompt": {"token_ids": [1]}}]}
OTHER: dict[str, Any] = {
    "model": "/their/model",
    "dtype": "bfloat16",
    "plain": "http://their.host",
    "connections": 3,
    "request_timeout_s": 5.0,
    "api_key": "AWS_SECRET_ACCESS_KEY",
    "flush": False,
    "stream": False,
    "env": {"LD_PRELOAD": "/their/lib.so"},
    "ready": "/their/route",
    "ready_timeout_s": 5.0,
    "log": "/their/folder",
    "http": "http://their.host",
    "launch": "sh -c 'touch PWNED' {port}",
    "engine": "sglang==0.5.13",
    "store": "/their/store",
    "arguments": ["--their-flag"],
    "mends": False,
    "tree": "/their/checkout",
    "commit": "theirs",
    "runner": "v2",
}
"""A value of every key of every target, which is not its default."""
KEYS = [(server, key.name) for server in (HttpServer, LaunchedServer, ReleasedEngine) for key in keys_of(server)]


def asked(where: str = "scenario", **more: Any) -> list[str]:
    plain = {**PLAIN, **more} if where == "scenario" else {**PLAIN, "arms": {"base": more}}
    return list(wishes(Scenario.from_dict(plain)))


@pytest.mark.parametrize("where", ["scenario", "arm"])
@pytest.mark.parametrize(("server", "name"), KEYS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_every_key_of_every_target_is_asked_for(server: type, name: str, where: str) -> None:
    """But for those of a plain ``serve`` that are listed: a key that is new has to be entered in ``OTHER``."""
    first = {HttpServer: "http", LaunchedServer: "launch", ReleasedEngine: "engine"}[server]
    target = {first: "serve" if first == "launch" else OTHER[first], name: OTHER[name]}
    found = asked(where, target=target)
    assert [each for each in found if each.startswith(f"target.{name}: ")] or (name in HARMLESS), found
    if first != "launch":
        assert any(each.startswith(f"target.{first}: ") for each in found)


@pytest.mark.parametrize("where", ["scenario", "arm"])
@pytest.mark.parametrize(
    ("target", "named"),
    [
        ({"engine": "sglang==0.5.13"}, ["engine: sglang==0.5.13"]),
        ({"engine": "sglang==0.5.13", "mends": True, "arguments": []}, ["engine: sglang==0.5.13"]),
        ({"engine": "sglang==0.5.13", "mends": False}, ["mends: False", "engine: sglang==0.5.13"]),
        ({"http": "http://their.host", "api_key": "A"}, ["api_key: A", "http: http://their.host"]),
        ({"launch": "their {port}"}, ["launch: their {port}"]),
        ({"launch": "serve", "ready": "/health", "log": "/x"}, ["log: /x"]),
    ],
)
def test_what_the_stranger_did_not_ask_for_is_not_listed(target: dict[str, Any], named: list[str], where: str) -> None:
    assert sorted(asked(where, target=target)) == sorted(f"target.{each}" for each in named)


@pytest.mark.parametrize("where", ["scenario", "arm"])
@pytest.mark.parametrize("target", ["http://their.host", "sglang==0.5.13", "vllm", "their-target"])
def test_a_target_by_name_is_asked_for_unless_it_is_ours(target: str, where: str) -> None:
    assert asked(where, target=target)


@pytest.mark.parametrize("target", ["embedded", "reference", "serve", {"launch": "serve", "connections": 3}])
def test_what_only_computes_is_not_asked_for(target: Any) -> None:
    for where in ("scenario", "arm"):
        assert asked(where, target=target) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "/their/model"}, "engine.model: /their/model"),
        ({"model": "~/model"}, "engine.model: ~/model"),
        ({"speculative": {"draft_model": "./draft"}}, "engine.speculative.draft_model: ./draft"),
        ({"speculative": {"algorithm": "THEIRS"}}, "engine.speculative.algorithm: THEIRS"),
        ({"attention_backend": "theirs"}, "engine.attention_backend: theirs"),
        ({"device": "cuda:/x"}, "engine.device: cuda:/x"),
        ({"memory": {"fill": ["/x", "http://y"]}}, "engine.memory.fill: /x"),
    ],
)
def test_texts_among_engine_options_are_asked_for_unless_they_are_our_own_words(
    options: dict[str, Any], named: str
) -> None:
    for where in ("scenario", "arm"):
        assert named in asked(where, engine=options)


def test_every_shipped_scenario_is_a_stranger_s_to_send() -> None:
    """But for those of algorithms that only an installed engine has: they ask for that engine and its draft alone, and
    five for an option without which the engine does something else."""
    options = {
        "fixes-first-leaves": "target.arguments: ['--disable-overlap-schedule']",
        "fixes-sampled-blocks": (
            """target.arguments: ['--speculative-config', '{"draft_sample_method": "probabilistic"}']"""
        ),
        "fixes-told-logprobs-second": "target.runner: v2",
        "fixes-priorities": "target.arguments: ['--scheduling-policy', 'priority']",
        "dp2-eager-extend": "target.env: {'SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH': '1'}",
    }
    for scenario in Library().scenarios():
        asked_for = set(wishes(scenario))
        if scenario.target != DEFAULT:
            asked_for -= {f"target.engine: {str(scenario.target).partition('/')[0]}"}
            asked_for -= {f"engine.speculative.draft_model: tiny-{name}" for name in ("dflash", "dspark", "mtp-layer")}
        asked_for -= {options.get(scenario.name)}
        assert not asked_for, scenario.name


def poisoned(path: Path, **target: Any) -> Path:
    """A bundle whose stranger has also written the manifest."""
    members = members_of(make_bundle(path))
    plain = json.loads(members[SCENARIO])
    plain["target"] = target
    return repacked(path, {**members, SCENARIO: json.dumps(plain).encode()})


@pytest.mark.parametrize("target", [{"launch": OTHER["launch"]}, {"http": "http://x", "api_key": "HOME"}])
def test_nothing_is_asked_of_a_target_before_the_bundle_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]
) -> None:
    bundle = poisoned(tmp_path / "b.specdebug", **target)
    monkeypatch.setattr("specdebug.scenario.checks.find_target", lambda name: pytest.fail("asked a target"))
    with pytest.raises(SpecDebugError) as caught:
        read_bundle(bundle, KNOWN)
    assert f"{next(iter(target.values()))}" in str(caught.value)
    assert "--trust" in str(caught.value)
    assert caught.value.exit_code == 2


def test_who_trusts_a_bundle_reads_it(tmp_path: Path) -> None:
    bundle = poisoned(tmp_path / "b.specdebug", launch="server {port}")
    assert isinstance(read_bundle(bundle, None).run.scenario.target, LaunchedServer)


def rewritten(toggle: Toggle, replacement: str) -> Toggle:
    """The toggle with other code in its last edit."""
    patch = toggle.patches[-1]
    edits = (*patch.edits[:-1], replace(patch.edits[-1], replacement=replacement))
    return replace(toggle, patches=(*toggle.patches[:-1], replace(patch, edits=edits)))


@pytest.mark.parametrize("toggle", KNOWN, ids=lambda toggle: str(toggle.pr))
def test_one_letter_makes_a_stranger(toggle: Toggle) -> None:
    old = toggle.patches[-1].edits[-1].replacement
    for changed in (
        rewritten(toggle, old + " "),
        replace(toggle, patches=(*toggle.patches, toggle.patches[0])),
        replace(toggle, patches=(replace(toggle.patches[0], module="os"), *toggle.patches[1:])),
    ):
        assert strangers([changed], KNOWN) == (changed,)


def test_the_refusal_names_the_toggles_and_the_option() -> None:
    one, other = (rewritten(toggle, "import os") for toggle in KNOWN[:2])
    with pytest.raises(SpecDebugError) as caught:
        check_toggles_trusted([one, other, KNOWN[2]], KNOWN, "b.specdebug")
    message = str(caught.value)
    assert message.startswith(f"b.specdebug: its toggles {one.pr}, {other.pr} hold code")
    assert "--trust" in message
    assert str(KNOWN[2].pr) not in message
    assert caught.value.exit_code == 2
