"""rewrite: every line that was not edited keeps its number, and counters land where the edit runs."""

from __future__ import annotations

import marshal
import subprocess
import sys
import traceback
from types import CodeType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.patching import Patch, PatchError
from specdebug.patching.hits import add_hits, hit, hits_of, new_counter, take_hits
from specdebug.patching.match import place
from specdebug.patching.rewrite import CodeTree, rewrite
from specdebug.patching.source import ModuleSource


def patched(text: str, *edits: tuple[str, str], target: str = ""):
    """Namespace of a text run with some edits, and the numbers of their counters."""
    source = ModuleSource("mod", "mod.py", text)
    patch = Patch.of("toggle 1", f"mod:{target}", *edits)
    placed = [place(source, patch, edit, new_counter()) for edit in patch.edits]
    names: dict = {"__name__": "mod"}
    exec(rewrite(source, placed).code, names)
    return names, [one.index for one in placed]


def line_of_error(call) -> int:
    try:
        call()
    except Exception as error:
        return traceback.extract_tb(error.__traceback__)[-1].lineno
    raise AssertionError("did not raise")


def lines_of(code: CodeType) -> set[int]:
    """Every line mentioned anywhere in a code object."""
    found: set[int] = set()
    work = [code]
    while work:
        one = work.pop()
        found |= {line for _, _, line in one.co_lines() if line}
        work.extend(const for const in one.co_consts if isinstance(const, CodeType))
    return found


TEXT = '''\
"""Doc."""
from __future__ import annotations


def first(x):
    """Doc of first."""
    y = x
    z = y
    return z


def second(x):
    y = (
        x,
        x,
    )
    raise ValueError(y)
'''


def test_docstrings_and_future_imports_survive_counters():
    names, counters = patched(TEXT, ("y = x", "y = 2"), target="first")
    assert names["first"].__doc__ == "Doc of first."
    assert names["first"].__annotations__ == {}
    names["first"](1)
    assert [hits_of(index) for index in counters] == [1]
    names, counters = patched(TEXT, ('"""Doc."""', '"""Other."""'))
    assert names["__doc__"] == "Other."
    assert hits_of(counters[0]) == 1


SITES = """\
def plain(x):
    y = x
    return y


def tries(x):
    try:
        y = 1 / x
    except ZeroDivisionError:
        y = 0
    else:
        y = 1
    finally:
        x = 0
    return y


def matches(x):
    match x:
        case 1:
            return "one"
        case _:
            return "other"


table = {
    "f":
        lambda x: (
            x
            + 1
        ),
}


class Box:
    def get(self, x=1):
        return x
"""


@pytest.mark.parametrize(
    ("target", "edit", "calls", "hits", "results"),
    [
        ("plain", ("y = x", "y = 5"), "plain(1), plain(2)", 2, (5, 5)),
        ("plain", ("y = x\nreturn y", "return 7"), "plain(1)", 1, (7,)),
        ("plain", ("def plain(x):\n    y = x", "def plain(x):\n    y = 9"), "plain(1), plain(1)", 2, (9, 9)),
        ("tries", ("except ZeroDivisionError:", "except ArithmeticError:"), "tries(0), tries(1)", 1, (0, 1)),
        ("tries", ("finally:\n    x = 0", "finally:\n    x = 1"), "tries(0), tries(1)", 2, (0, 1)),
        ("tries", ("else:\n    y = 1", "else:\n    y = 5"), "tries(0), tries(1)", 1, (0, 5)),
        ("tries", ("else:\n    y = 1", ""), "tries(2),", 1, (0.5,)),
        ("matches", ("case 1:", "case 2:"), "matches(1), matches(2)", 1, ("other", "one")),
        ("", ("+ 1", "+ 2"), "table['f'](1), table['f'](1)", 2, (3, 3)),
        ("Box.get", ("def get(self, x=1):", "def get(self, x=2):"), "Box().get(), Box().get()", 2, (2, 2)),
        ("Box", ("def get(self, x=1):", "def get(self, x=2):"), "Box().get()", 1, (2,)),
    ],
)
def test_the_counter_counts_runs_of_the_edited_lines(target, edit, calls, hits, results):
    names, (counter,) = patched(SITES, edit, target=target)
    text = calls if calls.endswith(",") else calls + ","
    assert eval(f"({text})", names) == results
    assert hits_of(counter) == hits


CONTEXT = """\
def deco(n):
    return lambda function: function


@deco(1)
def f(x, y=1):
    total = 0
    if x > 5:
        total = 1
        total += 1
    elif x < 0 and (
        y
        or x
    ):
        total = 2
    else:
        total = 3
    for i in range(x):
        if i == 7:
            total += 10
        total += i
    try:
        total += 1 // x
    except ZeroDivisionError:
        total = -1
    # told
    return sum(
        [
            total,
            y,
        ]
    )


class Box:
    size = 1

    def get(self):
        return self.size
"""
IF = "if x > 5:\n    total = 1\n    total += 1\n"
ELIF = "elif x < 0 and (\n    y\n    or x\n):\n"
LOOP = "for i in range(x):\n    if i == 7:\n        total += 10\n    total += i\n"
TRY = "try:\n    total += 1 // x\nexcept ZeroDivisionError:\n    total = -1\n"
RETURN = "return sum(\n    [\n        total,\n        y,\n    ]\n)"


@pytest.mark.parametrize(
    ("match", "replacement", "hits"),
    [
        # how often for f(0), f(1), f(6), f(9), f(-1)
        ("total = 0\n" + IF, "total = 0\n" + IF.replace("total = 1", "total = 5"), (0, 0, 1, 1, 0)),
        ("total = 0\n" + IF, "total = 0\n" + IF.replace("    total += 1\n", ""), (0, 0, 1, 1, 0)),
        ("total = 0\n" + IF, "total = 0\n" + IF + "    total = 9", (0, 0, 1, 1, 0)),
        ("total = 0\n" + IF, "total = 0\n" + IF.replace("5", "6"), (1, 1, 1, 1, 1)),
        ("total = 0\n" + IF + ELIF, "total = 0\n" + IF + ELIF.replace("or x", "or 1"), (1, 1, 0, 0, 1)),
        (IF + ELIF + "    total = 2", IF + ELIF + "    total = 4", (0, 0, 0, 0, 1)),
        (ELIF + "    total = 2\nelse:\n    total = 3", ELIF + "    total = 2", (1, 1, 0, 0, 0)),
        ("    total = 2\nelse:\n    total = 3", "    total = 4\nelse:\n    total = 5", (1, 1, 0, 0, 1)),
        (LOOP, LOOP.replace("10", "20"), (0, 0, 0, 1, 0)),
        (LOOP, LOOP.replace("    if i == 7:\n        total += 10\n", ""), (0, 1, 6, 9, 0)),
        (LOOP, LOOP.replace("    total += i\n", ""), (0, 1, 6, 9, 0)),
        (LOOP, LOOP.replace("+= i", "+= i; total += 1"), (0, 1, 6, 9, 0)),
        (LOOP, LOOP.replace("range(x)", "range(x + 0)"), (1, 1, 1, 1, 1)),
        (LOOP, "", (1, 1, 1, 1, 1)),
        (TRY, TRY.replace("-1", "-2"), (1, 0, 0, 0, 0)),
        (TRY, TRY.replace("ZeroDivisionError", "ArithmeticError"), (1, 0, 0, 0, 0)),
        (TRY, TRY.replace("except", "except KeyError:\n    pass\nexcept"), (0, 0, 0, 0, 0)),
        (TRY, TRY + "else:\n    total += 1", (0, 1, 1, 1, 1)),
        ("# told\n" + RETURN, "# untold\n" + RETURN.replace("y,", "y + 1,"), (1, 1, 1, 1, 1)),
        ("# told\n" + RETURN, "# untold\n\n" + RETURN, (0, 0, 0, 0, 0)),
        ("# told\n" + RETURN, "return sum([total, y])  # on one line", (0, 0, 0, 0, 0)),
        ("@deco(1)\ndef f(x, y=1):", "@deco(2)\ndef f(x, y=1):", (1, 1, 1, 1, 1)),
        ("@deco(1)\ndef f(x, y=1):\n    total = 0", "@deco(1)\ndef f(x, y=2):\n    total = 0", (1, 1, 1, 1, 1)),
        ("@deco(1)\ndef f(x, y=1):\n    total = 0", "@deco(1)\ndef f(x, y=1):\n    total = 1", (1, 1, 1, 1, 1)),
    ],
)
def test_context_does_not_count(match, replacement, hits):
    names, (counter,) = patched(CONTEXT, (match, replacement), target="f")
    seen = []
    for x in (0, 1, 6, 9, -1):
        before = hits_of(counter)
        names["f"](x)
        seen.append(hits_of(counter) - before)
    assert tuple(seen) == hits


GONE = """\
def f(x):
    y = 0
    z = 1

    def inner():
        return x

    try:
        y = 1 // x
    except ZeroDivisionError:
        y = 2
    except TypeError:
        y = 3
    return inner, y
"""


def test_what_was_taken_away_counts_in_its_place_and_not_in_what_followed():
    names, counters = patched(GONE, ("z = 1", ""), ("except ZeroDivisionError:\n    y = 2", ""), target="f")
    assert [hits_of(index) for index in counters] == [0, 0]
    inner, y = names["f"](None)
    assert ([hits_of(index) for index in counters], y) == ([1, 1], 3)
    inner()
    assert [hits_of(index) for index in counters] == [1, 1]


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ("y = (", "'(' was never closed: `y = (`"),
        ("y = 1\nz ==== 2", "invalid syntax: `z ==== 2`"),
        ("y = 1\n  z = 2", "unexpected indent"),
        ("nonlocal q", "no binding for nonlocal 'q' found"),
        ("await x", "'await' outside async function"),
        ("y = " + "(" * 3000, "too many nested parentheses"),
        ("y = " + "-" * 100_000 + "1", "does not compile"),
        ("break", "'break' outside loop"),
        ("y = " + "9" * 5000, "Exceeds the limit"),
    ],
)
def test_a_replacement_that_is_no_program_is_refused(replacement, message):
    with pytest.raises(PatchError) as error:
        patched(TEXT, ("y = x", replacement), target="first")
    assert message in str(error.value)
    assert "toggle 1, edit 1 of 1 in mod:first" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('z = """a\n  b"""', "a\n  b"),
        ('z = """a  \n\n  b \nc"""   ', "a  \n\n  b \nc"),
        ("    z = '''\na\n  \n'''\n    z += '#\"\"\"'", '\na\n  \n#"""'),
        ('z = f"""{x}  \n{\n  x}"""', "1  \n1"),
        ('z = (  # not """\n    r"""a\\\n b""")', "a\\\n b"),
        ("z = 'a\\\n  b'", "a  b"),
    ],
)
def test_the_lines_of_a_string_in_an_edit_stay_as_they_are_written(written, value):
    names, _ = patched(TEXT, ("z = y", written), target="first")
    assert names["first"](1) == value


@settings(max_examples=80)
@given(data=st.data())
def test_random_edits_move_no_other_line(data):
    """Edits of whole lines leave every other line's number as it was, in code and in tracebacks."""
    count = data.draw(st.integers(2, 25))
    body = [f"seen({n})" if data.draw(st.booleans()) else f"if seen({n}) is None: pass" for n in range(count)]
    text = "def f(seen):\n" + "".join(f"    {line}\n" for line in body) + "    raise ValueError\n"
    chosen = data.draw(st.sets(st.integers(0, count - 1)))
    edits = []
    for n in chosen:
        new = [f"seen({1000 + n})"] * data.draw(st.integers(0, 4))
        edits.append((body[n], "\n".join(new)))
    source = ModuleSource("mod", "mod.py", text)
    patch = Patch.of("toggle 1", "mod:f", *edits)
    placed = [place(source, patch, edit, new_counter()) for edit in patch.edits]
    result = rewrite(source, placed)
    names: dict = {}
    exec(result.code, names)
    lines = {}

    def seen(n):
        lines.setdefault(n, sys._getframe(1).f_lineno)

    assert line_of_error(lambda: names["f"](seen)) == count + 2
    for n, line in lines.items():
        assert line == (n - 1000 if n >= 1000 else n) + 2
    assert {n for n in lines if n < 1000} == set(range(count)) - chosen
    assert all(hits_of(one.index) == 1 for one in placed)
    assert lines_of(result.code) <= set(range(count + 3))


def test_without_edits_the_code_is_the_interpreters_own():
    source = ModuleSource("mod", "mod.py", SITES)
    own = compile(SITES, "mod.py", "exec", dont_inherit=True)
    assert rewrite(source, ()).code == own
    assert CodeTree(own).functions == rewrite(source, ()).functions.functions


LITERALS = '''\
def f(x):
    """Doc.

    More.
    """
    y = (
        """  a
  b
c""",
        x,
    )
    return y
'''


def test_a_string_that_the_match_has_too_stays_as_it_is_in_the_source():
    head = 'def f(x):\n    """Doc.\n\n    More.\n    """\n'
    for match, replacement in (
        (f"{head}    y = (", f"{head}    z = 1\n    y = ("),
        ('More.\n"""\ny = (', 'More.\n"""\nz = 1\ny = ('),
    ):
        names, (counter,) = patched(LITERALS, (match, replacement), target="f")
        assert names["f"].__doc__ == patched(LITERALS, ("return y", "return 0"))[0]["f"].__doc__
        assert (names["f"](1), hits_of(counter)) == (("  a\n  b\nc", 1), 1)
    inside = LITERALS.split("    y = ")[1].split("    return")[0]
    names, _ = patched(LITERALS, ("    y = " + inside, "    y = " + inside.replace("x,", "2,")), target="f")
    assert names["f"](1) == ("  a\n  b\nc", 2)
    with pytest.raises(PatchError, match="equals the match"):
        patched(LITERALS, (head, head + "\n"), target="f")


def test_code_that_is_sent_to_a_process_without_us_runs_there():
    edits = ("y = x\nreturn y", "y = x\nreturn y + 1"), ("+ 1", "+ 2")
    names, counters = patched(SITES, *edits)
    sent = [marshal.dumps(function.__code__) for function in (names["plain"], names["table"]["f"])]
    script = (
        "import marshal, types; codes = map(marshal.loads, {!r});"
        "print([types.FunctionType(code, {{}})(1) for code in codes])"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", script.format(sent)], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[2, 3]\n", "")
    assert [hits_of(index) for index in counters] == [0, 0]
    assert (names["plain"](1), names["table"]["f"](1)) == (2, 3)
    assert [hits_of(index) for index in counters] == [1, 1]


def test_passes_of_a_fork_are_taken_there_and_counted_here() -> None:
    counter = new_counter()
    hit(counter)
    taken = take_hits()
    assert (taken[counter], hits_of(counter)) == (1, 0)
    hit(counter)
    add_hits(taken)
    assert hits_of(counter) == 2
