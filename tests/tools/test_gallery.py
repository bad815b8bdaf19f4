"""The gallery's outputs are those of today, and its tool finds out when they are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.gallery import PAGE, Block, commands, main, parts, words

SMALL = """\
# Page

```sh job.sh
echo "ran in $COLUMNS columns"
exit 3
```

Prose.

```console
$ ./job.sh; echo "exit code $?"
ran in 100 columns
exit code 3
$ seq 2
7
8
```
"""


def test_a_page_is_prose_and_blocks() -> None:
    found = list(parts(SMALL))
    blocks = [part for part in found if isinstance(part, Block)]
    assert [block.info for block in blocks] == ["sh job.sh", "console"]
    assert commands(blocks[1]) == [
        ('./job.sh; echo "exit code $?"', ["ran in 100 columns", "exit code 3"]),
        ("seq 2", ["7", "8"]),
    ]
    assert [part for part in found if isinstance(part, str)] == ["# Page", "", "", "Prose.", ""]
    with pytest.raises(ValueError, match="does not end"):
        list(parts("```console\n$ true\n"))
    with pytest.raises(ValueError, match="before any command"):
        commands(Block("console", ("what", "$ true")))


def test_only_words_count() -> None:
    before = ["time 3.2 s  of 27338, hash " + "a" * 32, "journal: .specdebug/flake-0f3a.sqlite", "-1.5e-06 of 12%"]
    after = ["time 41 s of 27338, hash " + "b" * 32, "journal: .specdebug/flake-99.sqlite", "2 of 3.5%"]
    assert words(before) == words(after)
    assert words(["reverted 27338"]) != words(["reverted 27360"])
    assert words(["g0.1"]) != words(["g0.2"])  # a name
    assert words(["pass"]) != words(["fail"])
    assert words(["│ cached: 3; tokens/s: 4", "│   time: 9.9 s"]) == words(
        ["│ cached: 3", "│   tokens/s: 4; time: 10 s"]
    )
    assert words(["seen (once)"]) == words(["seen (3 times)"])


def test_what_has_changed_is_rewritten_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(SMALL)
    assert main(["--check", str(page)]) == 0  # other numbers are no change
    page.write_text(SMALL.replace("exit code 3", "exit status 3"))
    assert main(["--check", str(page)]) == 1
    assert "+exit code 3" in capsys.readouterr().out
    assert "exit status" in page.read_text()
    assert main([str(page)]) == 0
    assert page.read_text() == SMALL


def test_the_gallery_shows_every_command_a_user_runs_first() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^\$ .*?specdebug (\w+)", text, re.MULTILINE)
    first = ["replay", "toggles", "compare", "bisect", "flake", "minimise", "diverge", "triage", "faults", "bundle"]
    assert [name for name in dict.fromkeys(shown) if name in first] == first
    assert all(len(part.lines) > 1 for part in parts(text) if isinstance(part, Block))
    assert not re.search(r"/(?:tmp|home|root)/", text)


@pytest.mark.slow
def test_the_gallery_is_what_the_commands_print_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
