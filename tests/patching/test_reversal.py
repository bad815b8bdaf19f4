"""A fix's diff the other way round: edits that lead each module back, or a refusal."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.patching.reversal import Reversal, check, read_diff, reversals
from specdebug.patching.toggles import read_toggle
from specdebug.scenario.skeletons import patches_text

BEFORE = '''\
import math


class Pool:
    """Rows."""

    def width(self, page, topk):
        return page

    def height(self, page, topk):
        if page:
            page += 1
        return page


def twice(x):
    x = math.ceil(x)
    x = math.ceil(x)
    return x
'''
HEAD = "pr: 1\ntitle: t\nfamily: f\nsymptom: s\npatches:\n"


def diff_of(before: str, after: str, context: int, path: str = "toy/pool.py") -> str:
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}", n=context))


def package(text: str) -> Callable[[str], str | None]:
    return {"toy/__init__.py": "", "toy/pool.py": text}.get


@pytest.mark.parametrize("context", [0, 3])
@pytest.mark.parametrize(
    ("changes", "targets"),
    [
        ([("        return page\n\n", "        return page * topk\n\n")], ["toy.pool:Pool.width"]),
        ([("            page += 1\n", "            page += 1\n            topk += 1\n")], ["toy.pool:Pool.height"]),
        ([("            page += 1\n", "            pass\n")], ["toy.pool:Pool.height"]),
        ([("        if page:\n            page += 1\n", "")], ["toy.pool:Pool.height"]),
        ([("        if page:\n            page += 1\n", "        page += 1\n")], ["toy.pool:Pool.height"]),
        ([("    x = math.ceil(x)\n    return", "    return")], ["toy.pool:twice"]),
        (
            [("    x = math.ceil(x)\n    return", "    x = math.ceil(x)\n    x = math.ceil(x)\n    return")],
            ["toy.pool:twice"],
        ),
        (
            [("import math\n", "import math\nimport sys\n"), ("def twice(x)", "def twice(x, y=sys)")],
            ["toy.pool:twice", "toy.pool"],
        ),
        ([('"""Rows."""', '"""Rows of pages."""'), ("    return x\n", "    return -x\n")], ["toy.pool:twice"]),
        ([("\n\ndef twice", "\n\ndef once(x):\n    return x\n\n\ndef twice")], ["toy.pool"]),
        ([("    return x\n", "    return x\n\n\ndef last():\n    return 1\n")], ["toy.pool"]),
        ([("    def width(self, page, topk):\n        return page\n\n", "")], ["toy.pool:Pool"]),
    ],
)
def test_the_edits_lead_back(changes: list[tuple[str, str]], targets: list[str], context: int) -> None:
    after = BEFORE
    for old, new in changes:
        assert old in after
        after = after.replace(old, new, 1)
    made = list(reversals(read_diff(diff_of(BEFORE, after, context)), package(after)))
    (module,) = made
    assert isinstance(module, Reversal)
    assert module.before == BEFORE
    pairs = [(f"toy.pool:{name}" if name else "toy.pool", edits) for name, edits in module.edits.items()]
    assert sorted(name for name, _ in pairs) == sorted(targets)
    toggle = read_toggle(parse_yaml(HEAD + patches_text(pairs)))
    check([module], toggle.foreign["toy"][""])
    with pytest.raises(SpecDebugError):
        check([module], toggle.foreign["toy"][""][1:])


def test_what_cannot_be_taken_back_is_told() -> None:
    after = BEFORE.replace("return page\n\n", "return page * topk\n\n", 1)
    whole = diff_of(BEFORE, after, 3)
    removed = diff_of("x = 1\n", "", 0, "toy/old.py").replace("b/toy/old.py", "/dev/null")
    tests = diff_of("x = 1\n", "x = 2\n", 0, "toy/tests/test_pool.py")
    loose = diff_of("x = 1\n", "x = 2\n", 0, "setup.py")
    words = diff_of("# one\n", "# two\n", 0, "toy/words.py")
    files = {"toy/__init__.py": "", "toy/tests/__init__.py": "", "toy/pool.py": after, "toy/words.py": "# two\n"}
    made = list(reversals(read_diff(whole + removed + tests + loose + words), files.get))
    assert [each.source.name for each in made if isinstance(each, Reversal)] == ["toy.pool"]
    assert [each.partition(":")[0] for each in made if isinstance(each, str)] == [
        "toy/old.py",
        "toy/tests/test_pool.py",
        "setup.py",
        "toy/words.py",
    ]
    with pytest.raises(SpecDebugError, match=r"toy/pool\.py:8: the tree is not what the diff says"):
        list(reversals(read_diff(whole), package(BEFORE)))
    with pytest.raises(SpecDebugError, match="no such file"):
        list(reversals(read_diff(whole), {"toy/__init__.py": ""}.get))


@pytest.mark.parametrize("text", ["", "no diff\n", diff_of("x = 1\n", "x = 2\n", 0)[:-7]])
def test_what_is_no_diff_is_refused(text: str) -> None:
    with pytest.raises(SpecDebugError, match="the diff"):
        read_diff(text)


def test_a_folder_without_an_init_is_part_of_the_package_around_it() -> None:
    """As SGLang's ``srt`` and all below it are."""
    files = {"python/toy/__init__.py": "", "python/toy/deep/er/pool.py": "SIZE = 2\n", "lone/pool.py": "SIZE = 2\n"}
    diff = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-SIZE = 1\n+SIZE = 2\n"
    paths = ("python/toy/deep/er/pool.py", "lone/pool.py")
    made, left_out = reversals(read_diff("".join(diff.format(path) for path in paths)), files.get)
    assert isinstance(made, Reversal)
    assert made.source.name == "toy.deep.er.pool"
    assert left_out == "lone/pool.py: no module of a package"
