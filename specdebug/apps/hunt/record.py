"""The record of a hunt: a file has a line for each scenario that was run, so that the same command goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from specdebug.base.errors import ContentError, one_line
from specdebug.base.files import replace_file
from specdebug.base.schema import Item
from specdebug.campaign.trials.state import SEVERAL, State, differences, read_state, shortly
from specdebug.verdict.outcome import Verdict
from specdebug.workers.records import LineRecord, Record, RecordError

RECORD = "hunt.jsonl"
FORMAT = 3
_STATE = "state"  # its key in the first line; a line with nothing else says the state that holds from there on
_ELSEWHERE = "name another folder with -o"


@dataclass(frozen=True)
class Judged:
    """A scenario that was run. ``verdict``: pass, fail, unknown, or ``refused`` where the engine cannot be asked for
    it. ``requests``: how many ended; ``tokens``: how many they emitted. ``not_engine_code``: what was not the engine's
    own code; in a record, what was not told before of another scenario. ``twin``: the relation in which it was served
    a second time, and the outputs compared; empty where it was not."""

    number: int
    verdict: str
    signature: str = ""
    detail: str = ""
    wall_s: float = 0.0
    requests: int = 0
    tokens: int = 0
    not_engine_code: tuple[str, ...] = ()
    twin: str = ""

    @classmethod
    def read(cls, item: Item) -> Judged:
        """Inverse of ``asdict``. Raises ContentError."""
        table = item.table(required=[each.name for each in fields(cls)])
        return cls(
            table["number"].integer(low=0),
            table["verdict"].text(choices=(*get_args(Verdict), "refused")),
            table["signature"].text(empty=True),
            table["detail"].text(empty=True),
            table["wall_s"].number(low=0),
            table["requests"].integer(low=0),
            table["tokens"].integer(low=0),
            tuple(part.text() for part in table["not_engine_code"].items()),
            table["twin"].text(empty=True),
        )


class HuntRecord:
    """The record in ``folder``, which no other hunt may use until this is closed. A context manager.

    Args:
        about: what it is of; one that is there must be of the same.
        state: that of what is hunted. Scenarios that were judged in another are refused, unless ``anyway`` goes on
            with them (see ``differs``); the record is then of several states.

    Attributes:
        judged: scenarios that were run, by number.
        differs: in words, how the state of what it was gone on with differs; empty where it does not.

    Raises RecordError.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], state: State, *, anyway: bool = False) -> None:
        self.folder = folder
        self.differs: list[str] = []
        self.judged: dict[int, Judged] = {}
        mend = "delete the line, and its scenario is run again"
        self._record = Record(folder / RECORD, "the record of a hunt", _ELSEWHERE, mend)
        self._lines = LineRecord(self._record)
        try:
            self._take({"format": FORMAT, **about}, dict(state), anyway)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> HuntRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another hunt have the folder. May be called more than once."""
        self._lines.close()

    def add(self, one: Judged) -> None:
        known = self.not_engine_code
        one = replace(one, not_engine_code=tuple(part for part in one.not_engine_code if part not in known))
        self._lines.add(asdict(one))
        self.judged[one.number] = one

    @property
    def not_engine_code(self) -> list[str]:
        """The parts of any scenario's run that were not the engine's own code."""
        return list(dict.fromkeys(part for one in self.judged.values() for part in one.not_engine_code))

    @property
    def findings(self) -> dict[str, list[Judged]]:
        found: dict[str, list[Judged]] = {}
        for number in sorted(self.judged):
            if (one := self.judged[number]).verdict == "fail":
                found.setdefault(one.signature, []).append(one)
        return found

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.judged.values())

    def write(self, name: str, text: str) -> None:
        """Write a file beside the record, whole or not at all. Raises RecordError."""
        beside = Record(self.folder / name, "a hunt's file", _ELSEWHERE)
        try:
            replace_file(beside.path, text.encode("utf-8"))
        except OSError as error:
            raise beside.not_written(error) from None

    def _take(self, about: dict[str, Any], state: dict[str, str], anyway: bool) -> None:
        if not self._lines.read:
            self._lines.add({**about, _STATE: state})
            return
        first, *others = self._lines.read
        of = dict(first.value) if isinstance(first.value, dict) else {}
        states = [of.pop(_STATE, None)]
        if of != about:
            told = one_line(", ".join(f"{name} {value}" for name, value in of.items()) or "unreadable", 200)
            raise RecordError(f"{self._record} is of another hunt ({told}); {_ELSEWHERE}")
        try:
            for item in others:
                if isinstance(item.value, dict) and item.value.keys() == {_STATE}:
                    states.append(item.value[_STATE])
                else:
                    one = Judged.read(item)
                    self.judged[one.number] = one
        except ContentError as error:
            raise self._record.damaged(error) from None
        self._settle(read_state(states[-1]), state, anyway)

    def _settle(self, kept: State | None, state: dict[str, str], anyway: bool) -> None:
        """Let what was judged in another state be gone on with, if it may. Raises RecordError."""
        if kept == state:
            return
        if self.judged:
            self.differs = differences(kept, state)
            if not anyway:
                again = (
                    f"--resume-anyway goes on with the {len(self.judged)} judged before, kept in {self._record.path}"
                )
                raise RecordError(f"{shortly(self.differs)}: this is another hunt; {again}; or {_ELSEWHERE}")
        if kept != SEVERAL:
            self._lines.add({_STATE: SEVERAL if self.judged else state})
