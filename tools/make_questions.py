"""Write the shipped questions, specdebug/_assets/evaluations/code.jsonl: patterns of Python code, to be continued.

python tools/make_questions.py            # rewrite the file
python tools/make_questions.py --check    # say whether it would change, and write nothing; exit code 1 if so

A pattern is code with names left open, and the words with which whoever knows Python goes on. It is filled with several
pairs of names, a question each. The three wrong choices are words that hardly ever stand there. No model is asked, and
what is drawn depends on the question's text alone: the file is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "specdebug" / "_assets" / "evaluations" / "code.jsonl"

WRONG = (
    " lambda",
    " 3.14",
    "]",
    "}",
    " yield",
    " %",
    " @",
    " global",
    " <<",
    " nonlocal",
    " del",
    " async",
    " ~",
    " **=",
)
"""Words with which no pattern goes on."""

NAMES = (("value", "items"), ("name", "names"), ("line", "lines"), ("key", "result"))
PLACES = (("path", "data"), ("filename", "text"), ("source", "content"))
ERRORS = (("ParseError", "msg"), ("ReadError", "reason"))
CLASSES = (("Stack", "items"), ("Reader", "buffer"), ("Table", "rows"), ("Config", "options"))

_HELD = "class {a}:\n    def __init__(self, {b}):\n        self._{b} = {b}\n\n"
_COPY = "def copy({b}):\n    result = []\n    for {a} in {b}:\n        result"
_READ = "def read({a}):\n    f = open({a}, 'rb')\n    try:\n        "

PATTERNS: Sequence[tuple[str, str, Sequence[tuple[str, str]]]] = (
    # of modules
    ("import os\nimport sys\n\n\ndef main({a}):\n    print({a})\n\n\nif __name__ ==", ' "__main__"', NAMES),
    ("try:\n    import {a}\nexcept", " ImportError", (("json", ""), ("zlib", ""), ("ssl", ""), ("readline", ""))),
    ("import os\n\n{a} = os.path", ".", PLACES),
    ("from collections import", " namedtuple", (("", ""),)),
    # of classes
    ("class {a}:\n    def __init__(self, {b}):\n        self.{b} =", " {b}", CLASSES),
    ("class {a}:\n    def __init__(self, {b}):\n        self._{b} =", " {b}", CLASSES),
    (_HELD + "    def __len__(self):\n        return len", "(self", CLASSES),
    (_HELD + "    def __iter__(self):\n        return iter", "(self", CLASSES),
    ("class {a}:\n    def __init__", "(self", CLASSES),
    ("class {a}(Exception):\n    def __init__(self, {b}):\n        Exception.__init__", "(self", ERRORS),
    ("class {a}:\n    @property\n    def {b}", "(self", CLASSES),
    ("class {a}:\n    @classmethod\n    def from_{b}", "(cls", CLASSES),
    ("class {a}:\n    def __enter__(self):\n        return", " self", CLASSES),
    ("class {a}:\n    def __exit__(self, *args):\n        self", ".", CLASSES),
    ("class {a}:\n    def __eq__(self, other):\n        return self.{b} ==", " other", CLASSES),
    ("class {a}:\n    def __eq__(self, other):\n        if not isinstance", "(other", CLASSES),
    ("class {a}:\n    def close(self):\n        self.{b}", ".", CLASSES),
    ("class {a}:\n    def {b}(self):\n        raise", " NotImplementedError", CLASSES),
    # of functions
    ("def area({a}, {b}):\n    return {a} *", " {b}", (("width", "height"), ("rows", "columns"))),
    ("def first({b}):\n    for {a} in {b}:\n        return", " {a}", NAMES),
    ("def last({b}):\n    {a} = None\n    for {a} in {b}:\n        pass\n    return", " {a}", NAMES),
    (_COPY + ".append", "({a}", NAMES[:3]),
    (_COPY, ".", NAMES[:3]),
    (_COPY + ".append({a})\n    return", " result", NAMES[:3]),
    ("def size({b}):\n    count = 0\n    for {a} in {b}:\n        count +=", " 1", NAMES),
    ("def size({b}):\n    count = 0\n    for {a} in {b}:\n        count += 1\n    return", " count", NAMES),
    ("def keep({b}):\n    return [{a} for {a} in", " {b}", NAMES),
    ("def check({a}, {b}):\n    if {a} is", " None", NAMES),
    ("def check({a}, {b}):\n    if {a} not", " in", NAMES),
    ("def check({a}, {b}):\n    if not isinstance({a},", " str", NAMES),
    ("def check({a}, {b}):\n    if not {b}:\n        raise ValueError", "(", NAMES),
    ("def check({a}, {b}):\n    if {a} == {b}:\n        return True\n    return", " False", NAMES),
    ("def check({a}, {b}):\n    if {a} == {b}:\n        return True\n    else:\n        return", " False", NAMES),
    ("def search({a}, {b}):\n    for i in range", "(", NAMES),
    ("def search({a}, {b}):\n    for i in range(len", "({b}", NAMES),
    ("def search({a}, {b}):\n    for i, {a} in enumerate", "({b}", NAMES),
    ("def search({a}, {b}):\n    while True", ":", NAMES),
    ("def walk({b}):\n    for key, value in {b}.items", "()", NAMES[:3]),
    # of files and errors
    ("def read({a}):\n    with open({a}) as", " f", PLACES),
    ("def read({a}):\n    with open({a}) as f:\n        {b} = f", ".read", PLACES),
    ("def read({a}):\n    with open({a}) as f:\n        return f", ".read", PLACES),
    ("def read({a}):\n    with open({a}) as f:\n        for line in", " f", PLACES),
    ("def write({a}, {b}):\n    with open({a}, 'w') as f:\n        f", ".write", PLACES),
    ("def write({a}, {b}):\n    with open({a}, 'w') as f:\n        f.write", "({b}", PLACES),
    (_READ + "{b} = f.read()\n    finally:\n        f", ".close", PLACES),
    (_READ + "return f.read()\n    finally", ":", PLACES),
    ("def remove({a}):\n    try:\n        os.unlink({a})\n    except", " OSError", PLACES),
    ("def remove({a}):\n    try:\n        os.remove({a})\n    except OSError as", " e", PLACES),
    ("def there({a}):\n    return os.path", ".", PLACES),
    ("def number({a}):\n    try:\n        return int({a})\n    except", " ValueError", NAMES),
    ("def find({a}, {b}):\n    try:\n        return {b}[{a}]\n    except", " KeyError", NAMES),
)  # fmt: skip
"""Of each the code, how it goes on, and the names that stand for ``{a}`` and ``{b}``."""


def questions() -> Iterator[dict[str, object]]:
    """Every question, in order."""
    for code, right, fills in PATTERNS:
        for a, b in fills:
            # Not str.format: code has braces of its own.
            text, answer = (each.replace("{a}", a).replace("{b}", b) for each in (code, right))
            yield {"question": text, **_choices(text, answer)}


def _choices(text: str, right: str) -> dict[str, object]:
    """The right choice among three wrong ones, all drawn by the text's checksum."""
    drawn = zlib.crc32(text.encode())
    wrong = sorted(WRONG, key=lambda word: zlib.crc32(f"{drawn} {word}".encode()))[:3]
    place = drawn % 4
    return {"choices": [*wrong[:place], right, *wrong[place:]], "answer": place}


def written() -> str:
    """The file as it should be."""
    return "".join(f"{json.dumps(each)}\n" for each in questions())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the shipped questions.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the file would change")
    text = written()
    if not parser.parse_args(argv).check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{FILE} is not what this makes: run python tools/make_questions.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
