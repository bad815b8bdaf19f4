"""schema: each getter takes its type and refuses all others at the right place."""

from __future__ import annotations

import pytest

from specdebug.base.errors import ContentError
from specdebug.base.schema import Item
from specdebug.base.yamlio import parse_yaml

TEXT = """\
name: x
size: 4
rate: 1.5
flag: true
list: [1, two]
sub:
  a: 1
nothing:
blank: "  "
huge: .inf
"""


def item(key: str) -> Item:
    return parse_yaml(TEXT, "f.yaml").root.entries()[key]


def refusal(call) -> str:
    with pytest.raises(ContentError) as error:
        call()
    return str(error.value)


def test_refusals_say_what_where_and_what_instead():
    assert refusal(item("size").text) == "f.yaml:2:7: size must be text, not 4; quote it"
    assert refusal(item("flag").integer) == "f.yaml:4:7: flag must be a whole number, not true"
    assert (
        refusal(lambda: item("size").integer(low=5)) == "f.yaml:2:7: size must be a whole number of at least 5, not 4"
    )
    assert "from 5 to 9, not 4" in refusal(lambda: item("size").number(low=5, high=9))
    assert "of at most 3, not 4" in refusal(lambda: item("size").number(high=3))
    assert "must be a finite number" in refusal(item("huge").number)
    assert refusal(item("name").boolean) == "f.yaml:1:7: name must be true or false, not 'x'"
    assert refusal(item("nothing").items) == "f.yaml:8:9: nothing must be a list, not nothing"
    assert refusal(item("list").entries) == "f.yaml:5:7: list must be a mapping, not a list"
    assert refusal(item("blank").text) == "f.yaml:9:8: blank must not be empty"
    assert refusal(item("list").items()[1].integer) == "f.yaml:5:11: list[1] must be a whole number, not 'two'"
    assert refusal(lambda: item("list").items(at_least=3)) == "f.yaml:5:7: list needs at least 3 items"
    assert "cannot be 'x'; did you mean 'xy'?" in refusal(lambda: item("name").text(choices=["xy", "other"]))
    assert "does not fit the form [0-9]+" in refusal(lambda: item("name").text(pattern="[0-9]+"))
