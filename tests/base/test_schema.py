"""schema: each getter takes its type and refuses all others at the right place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from specdebug.base.errors import ContentError, ContentErrors
from specdebug.base.schema import (
    FLAG,
    TEXT,
    Gather,
    Item,
    Key,
    Part,
    checked,
    choice,
    form,
    list_of,
    map_of,
    nested,
    nullable,
    one_of,
    one_or_many,
    overlay,
    real,
    simple,
    span,
    whole,
)
from specdebug.base.yamlio import parse_yaml

SOURCE = """\
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
    return parse_yaml(SOURCE, "f.yaml").root.entries()[key]


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


@dataclass(frozen=True)
class Door(Part):
    """A way in."""

    colour: Annotated[str, choice("red", "blue"), "of its paint"] = "red"
    open: Annotated[bool, FLAG, "whether one can walk in"] = False


@dataclass(frozen=True)
class Tent(Part):
    """A home of cloth."""

    cloth: Annotated[str, TEXT, "what it is made of"]


@dataclass(frozen=True)
class Hut(Part):
    """A home of wood."""

    wood: Annotated[int, whole(1, 9), "boards"]
    roof: Annotated[str | None, TEXT, "what is on it"] = None


@dataclass(frozen=True)
class Room(Part):
    """A part named by its place, one of whose keys limits another."""

    name: str
    size: Annotated[tuple[int, int], span(1, 20), "square metres"] = (9, 9)
    door: Annotated[Door | None, overlay(Door, "door"), "its own"] = None

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        return {"name": str(item.path[-1])}


@dataclass(frozen=True)
class House(Part):
    """A small grammar."""

    name: Annotated[str, form("[a-z]+"), "of the house"]
    rent: Annotated[float, real(0, 10, above=True), "a month", Key(name="price", required=True)] = 1.0
    door: Annotated[Door, nested(Door), "of every room"] = Door()
    rooms: Annotated[dict[str, Room], map_of(nested(Room, True), "room", "[a-z]+", 2, "rooms: {a: }"), ""] = ()
    years: Annotated[tuple[int, ...], list_of(whole(1, 99, 0), noun="year", unique=True), "of repairs"] = ()
    tags: Annotated[tuple[str, ...], one_or_many(TEXT, at_least=1), ""] = ()
    cat: Annotated[str | None, nullable(checked(lambda s: "barks" if s == "rex" else None, "cat", r"\S")), ""] = None
    shed: Annotated[Tent | Hut | None, one_of("a home", {"cloth": Tent, "wood": Hut}), ""] = None

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        if "shed" in table and "cat" not in table:
            gather.note(table["shed"].error("needs a cat"), table["shed"].path)


FULL = """\
name: mill
price: 2
door: {open: true}
rooms: {hall: {size: [3, 5], door: {colour: blue}}, attic: }
years: [7, 8]
tags: old
cat: null
shed: {wood: 3}
"""


def read(text: str) -> House:
    return House.read(parse_yaml(text, "h").root)


def problems(text: str) -> list[str]:
    with pytest.raises(ContentErrors) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_part_is_read_with_its_defaults():
    house = read(FULL)
    hall = Room("hall", (3, 5), Door("blue", True))
    assert house == House(
        "mill", 2.0, Door(open=True), {"hall": hall, "attic": Room("attic")}, (7, 8), ("old",), None, Hut(3)
    )
    assert read("name: a\nprice: 1\n") == House("a")


def test_everything_that_is_wrong_is_said_at_once_and_the_rest_is_kept():
    text = (
        "nmae: a\nprice: 0\ndoor: {colour: bleu}\nrooms: {A: 3, b: {size: [5, 3]}}\nyears: [4, x, 4]\nshed: {wood: 0}\n"
    )
    assert problems(text) == [
        "h:1:1: unknown key 'nmae'; did you mean 'name'?",
        "h:2:8: price must be above 0, not 0",
        "h:3:16: door.colour cannot be 'bleu'; did you mean 'blue'?",
        "h:4:9: room 'A' does not fit the form [a-z]+",
        "h:4:12: rooms.A must be a mapping, not 3",
        "h:4:25: rooms.b.size is a range from 5 down to 3; put the lower end first",
        "h:5:12: years[1] must be a whole number from 1 to 99, not 'x'",
        "h:5:15: year 4 is listed twice",
        "h:6:7: shed needs a cat",
        "h:6:14: shed.wood must be a whole number from 1 to 9, not 0",
    ]
    with pytest.raises(ContentErrors) as caught:
        read(text)
    assert caught.value.partial == House("", rooms={"A": Room("A"), "b": Room("b")}, years=(4, 0, 4), shed=Hut(1))
    assert ("rooms", "b", "size") in {problem.path for problem in caught.value.problems}


class Compared(str):
    """A text that counts how often it is compared with another."""

    comparisons = 0

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return str.__eq__(self, other)


def test_values_that_may_be_there_once_are_not_compared_each_with_each() -> None:
    kind = list_of(simple(lambda item: Compared(item.text()), {}, ""), unique=True)
    words = [f"w{number}" for number in range(500)]
    before = Compared.comparisons
    assert len(kind.read(parse_yaml(f"[{', '.join(words)}]").root)) == 500
    assert Compared.comparisons - before < 500  # each with each is 124,750
    with pytest.raises(ContentError, match="items w7 is listed twice"):
        kind.read(parse_yaml(f"[{', '.join([*words, 'w7'])}]").root)
