"""The table of flags: every option of an engine has one, and a scenario's options survive a command line."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from specdebug.base.engine_flags import (
    ENGINE_FLAGS,
    NOT_SUPPORTED,
    EngineFlag,
    arguments_of,
    options_of,
    refusal,
)
from specdebug.base.errors import SpecDebugError
from specdebug.cli.main import app
from specdebug.cli.serve import ServerFlags
from specdebug.engine.config import CudaGraphConfig, EngineConfig, MemoryConfig, SpeculativeConfig
from specdebug.scenario.library import Library

NESTED = {"speculative": SpeculativeConfig, "cuda_graph": CudaGraphConfig, "memory": MemoryConfig}


def parsed(words: list[str]) -> dict[str, Any]:
    """The options that ``specdebug serve`` makes of a command line."""
    command: Any = typer.main.get_command(app)
    context = command.commands["serve"].make_context("serve", list(words))
    assert not context.args, context.args
    return options_of(context.params)


def options() -> Iterator[tuple[str, ...]]:
    for each in dataclasses.fields(EngineConfig):
        if each.name in NESTED:
            yield from ((each.name, inner.name) for inner in dataclasses.fields(NESTED[each.name]))
        else:
            yield (each.name,)


def test_every_option_has_one_flag() -> None:
    assert sorted(flag.into for flag in ENGINE_FLAGS) == sorted(options())


def shipped() -> Iterator[Any]:
    for scenario in Library().scenarios():
        for arm in scenario.arms:
            yield pytest.param(scenario.engine_of(arm), id=f"{scenario.name}-{arm}")


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"radix_cache": False, "chunked_prefill_size": None, "seed": 7},
        {"cuda_graph": {"enabled": False, "capture_bs": [1, 2, 4], "max_bs": 4}},
        {"memory": {"num_slots": 512, "fill": "nan", "guards": True}, "speculative": None},
        {"speculative": {"algorithm": "EAGLE3", "draft_kv_on_hit": "zero_fill", "threshold_single": 0.5}},
        {"speculative": {"worker": "v1", "num_steps": 2}},
    ],
)
def test_options_of_every_kind_do(engine: dict[str, Any]) -> None:
    assert EngineConfig.from_dict(parsed(arguments_of(engine))) == EngineConfig.from_dict(engine)


def test_an_option_without_a_flag_is_named() -> None:
    with pytest.raises(SpecDebugError, match=r"no flag for engine\.memory\.size"):
        arguments_of({"memory": {"size": 3}})


def test_sizes_are_whole_numbers() -> None:
    with pytest.raises(SpecDebugError, match="--cuda-graph-bs must be whole numbers"):
        options_of({"cuda_graph_bs": "1,two"})


def test_a_flag_that_is_not_supported_says_why() -> None:
    assert refusal("--tp-size=2", []) == f"--tp-size is not supported: {NOT_SUPPORTED['--tp-size']}"
    assert "did you mean '--page-size'" in refusal("--page-sizes", ["--page-size", "--port"])
    assert not {flag.name for flag in ENGINE_FLAGS} & NOT_SUPPORTED.keys()


PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")


@pytest.mark.parametrize("flag", ENGINE_FLAGS, ids=lambda flag: flag.name)
def test_the_page_has_every_flag(flag: EngineFlag) -> None:
    ours = "ours: " if flag.ours else ""
    assert f"| `{flag.name}` | `{'.'.join(flag.into)}` | {ours}{flag.help} |" in PAGE


def test_the_page_has_every_flag_of_the_server_and_every_refusal() -> None:
    missing = [
        field.name for field in dataclasses.fields(ServerFlags) if f"--{field.name.replace('_', '-')}" not in PAGE
    ]
    assert not missing
    refused = {name: why for name, why in NOT_SUPPORTED.items() if f"`{name.removeprefix('--')}`" not in PAGE}
    assert not refused
    assert all(f" | {why} |" in PAGE for why in NOT_SUPPORTED.values())
