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


def test_getters_return_typed_values():
    assert item("name").text() == "x"
    assert item("size").integer(low=1, high=4) == 4
    assert item("rate").number() == 1.5
    assert item("size").number() == 4.0
    assert item("flag").boolean() is True
    assert [part.value for part in item("list").items()] == [1, "two"]
    assert [part.value for part in item("name").one_or_many()] == ["x"]
    assert item("sub").table(required=("a",))["a"].integer() == 1
    assert item("nothing").is_null


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


def test_unknown_keys_point_at_the_key_and_name_the_nearest():
    sub = item("sub")
    assert refusal(lambda: sub.table(optional=("b", "ab"))) == "f.yaml:7:3: unknown key 'a' in sub; did you mean 'ab'?"
    assert refusal(lambda: sub.table(required=("z",), optional=("a",))) == "f.yaml:7:3: sub lacks the key 'z'"
    root = parse_yaml(TEXT, "f.yaml").root
    assert refusal(lambda: root.table(optional=("nane",))).startswith(
        "f.yaml:1:1: unknown key 'name'; did you mean 'nane'?"
    )


def test_big_integers_do_not_overflow():
    huge = parse_yaml("n: " + "9" * 40, "f.yaml").root.entries()["n"]
    assert huge.number() == 1e40
    with pytest.raises(ContentError):
        huge.integer(high=5)
