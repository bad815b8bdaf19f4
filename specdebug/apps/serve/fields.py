"""Bodies of requests, read field by field: whatever is wrong is told with the field's name, and nothing is ignored.

JSON's null counts as a field that is not there, as it does for SGLang and OpenAI.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from specdebug.base.errors import ContentError, did_you_mean, one_line
from specdebug.base.schema import Item, describe, real
from specdebug.base.yamlio import plain_doc

T = TypeVar("T")

MAX_NUMBER = 2**53
_BODY = plain_doc(None, "the body")


class Refusal(Exception):
    """A request that ends with an error, before anything of its answer was sent. ``param``: the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class BadField(Refusal):
    """A request is at fault. ``field`` is its path, such as ``sampling_params.top_k``; empty for the body itself."""

    def __init__(self, field: str, why: str, status: int = 400) -> None:
        super().__init__(status, f"{field}: {why}" if field else why, field or None)
        self.field = field


class ClientGone(Exception):
    """The client does not wait for the answer any more."""


def parse(body: bytes | bytearray) -> Any:
    """JSON as it stands in a body. Raises BadField for anything else, NaN included."""

    def no_constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON number")

    try:
        return json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else one_line(str(error), 100)
        raise BadField("", f"the body is not JSON: {why}") from None


class Fields:
    """An object of a body. Each field is asked for once; :meth:`close` refuses those that were not asked for."""

    def __init__(self, data: Any, path: str = "") -> None:
        if not isinstance(data, Mapping):
            raise BadField(path, f"must be an object, not {describe(data)}")
        self._data = data
        self._path = path
        self._asked: set[str] = set()

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def bad(self, name: str, why: str) -> BadField:
        """What to raise for a field."""
        return BadField(self.at(name), why)

    def get(self, name: str) -> Any:
        """A field as it is; None where it is not there."""
        self._asked.add(name)
        return self._data.get(name)

    def whole(self, name: str, default: int, least: int, most: int = MAX_NUMBER) -> int:
        """A whole number."""
        value = self.get(name)
        return default if value is None else whole(value, self.at(name), least, most)

    def number(self, name: str, default: float, least: int, most: int, *, above: bool = False) -> float:
        """A number; ``above``: greater than the least."""
        value = self.get(name)
        return default if value is None else read(value, self.at(name), real(least, most, above).read)

    def switch(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name)
        return default if value is None else read(value, self.at(name), Item.boolean)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.get(name)
        return None if value is None else text(value, self.at(name))

    def listed(self, name: str, most: int, reader: Callable[[Any, str], T]) -> list[T]:
        """A value or a list of at most so many."""
        value = self.get(name)
        given = value if isinstance(value, list) else [] if value is None else [value]
        if len(given) > most:
            raise self.bad(name, f"must hold {most} at most, got {len(given)}")
        return [reader(each, self.at(name)) for each in given]

    def close(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse every other field. ``neutral``: those of the interface that mean nothing here, each with the values
        that ask for nothing."""
        for name, value in self._data.items():
            if name in self._asked:
                continue
            if name in neutral:
                if value is None or any(type(value) is type(each) and value == each for each in neutral[name]):
                    continue
                raise self.bad(name, "is not supported by this server")
            shown = one_line(str(name)[:100], 60)
            hint = did_you_mean(shown, {*neutral, *self._asked})
            raise BadField(self.at(shown), f"unknown field{hint if 'did you mean' in hint else ''}")


def read(value: Any, path: str, reader: Callable[[Item], T]) -> T:
    """A value by a reader of the kit that files are read with (``base/schema.py``). Raises BadField."""
    try:
        return reader(Item(_BODY, (), value))
    except ContentError as error:
        raise BadField(path, error.reason) from None


def whole(value: Any, path: str, least: int, most: int) -> int:
    """A whole number; 3.0 is one. Raises BadField."""
    if type(value) is int and least <= value <= most:  # as nearly all of a prompt's tokens are
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return read(value, path, lambda item: item.integer(low=least, high=most))


def text(value: Any, path: str) -> str:
    """A string that can be written in UTF-8. Raises BadField."""
    found = read(value, path, lambda item: item.text(empty=True))
    try:
        found.encode()
    except UnicodeEncodeError:
        raise BadField(path, "holds half a surrogate pair, which is no character") from None
    return found
