"""The recipes that are shipped, and the choice among them."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement

from specdebug.base.errors import SpecDebugError
from specdebug.targets.installs import recipe as module
from specdebug.targets.installs.recipe import Recipe, find_recipe, python_for, recipes
from specdebug.targets.installs.release import Release


@pytest.mark.parametrize("recipe", recipes(), ids=lambda each: f"{each.release}-{each.device}")
def test_every_package_has_one_version_and_the_engine_is_among_them(recipe: Recipe) -> None:
    required = [Requirement(each) for each in recipe.requirements]
    assert all(len(each.specifier) == 1 and str(each.specifier).startswith("==") for each in required)
    names = [each.name.lower() for each in required]
    assert len(names) == len(set(names))
    assert {f"{name}=={recipe.version}" for name in (recipe.engine, f"{recipe.engine}-cpu")} & set(recipe.requirements)
    assert set(recipe.first) <= set(recipe.requirements)
    assert not {name.lower() for name in recipe.left_out} & set(names)
    assert all(recipe.left_out.values())


def test_the_newest_is_meant_where_no_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(version: str) -> Recipe:
        return Recipe("sglang", version, "cpu", ("3.11",), ("torch==1",))

    monkeypatch.setattr(module, "recipes", lambda: (made("0.5.23"), made("0.5.13")))
    assert find_recipe(Release("sglang"), "cpu").version == "0.5.23"
    assert find_recipe(Release("sglang", "0.5.13"), "cpu").version == "0.5.13"
    assert made("1").digest != made("2").digest


def test_another_python_is_refused_before_anything_is_made() -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert python_for(Recipe("sglang", "1", "cpu", (own,), ("a==1",))) == sys.executable
    with pytest.raises(SpecDebugError, match=rf"was tried on Python 3\.2, and this is {own}; .*--python PATH"):
        python_for(Recipe("sglang", "1", "cpu", ("3.2",), ("a==1",)))
