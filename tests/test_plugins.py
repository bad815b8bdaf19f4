"""Additions of other distributions are found by entry point, and what is wrong with one is said in a line."""

from __future__ import annotations

import pytest

from specdebug import plugins
from tests.seams.installing import Install, installing

__all__ = ["installing"]


def test_a_plugin_is_known_by_name_and_imported_when_it_is_asked_for(installing: Install) -> None:
    assert "stub" not in plugins.names("oracles")
    installing("stub_oracles", "VALUE = 7\n", {"oracles": {"stub": "stub_oracles:VALUE"}})
    assert "stub" in plugins.names("oracles")
    assert plugins.load("oracles", "stub") == 7
    with pytest.raises(KeyError):
        plugins.load("targets", "stub")


@pytest.mark.parametrize(
    ("source", "said"),
    [("import nothing_of_that_name\n", "ModuleNotFoundError"), ("", "AttributeError"), ("1 / 0\n", "ZeroDivision")],
)
def test_one_that_cannot_be_imported_is_named_with_its_group(source: str, said: str, installing: Install) -> None:
    installing("broken_plugin", source, {"reports": {"mine": "broken_plugin:Report"}})
    with pytest.raises(plugins.PluginError, match=said) as caught:
        plugins.load("reports", "mine")
    assert "broken_plugin:Report (plugin 'mine' of group specdebug.reports)" in str(caught.value)
