"""The census of upstream's fixes takes facts from checkouts, and renews only the rows of engines that are named."""

from pathlib import Path

import pytest

from tests.apps.mining.checkout import FIXED, checkout, commit
from tools.census import BEGIN, END, main

PAGE = f"""\
# Page

{BEGIN}

| engine | fix | day |
|---|---|---|
| tea | 7 | 2026-01-01 |
| toy | 8 | 2020-01-01 |

{END}

after
"""


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = checkout(tmp_path)
    commit(top, "draft_pool.py", FIXED, "Fix rows of the LoRA draft (#101)")
    commit(top, "pool.py", FIXED, "[Bugfix] EAGLE on a hybrid model (#102)")
    commit(top, "pool.py", FIXED + "\n", "Fix a page (#103)")
    commit(top, "draft_pool.py", FIXED + "\nX = 1\n", "Faster drafts (#104)")
    commit(top, "draft_pool.py", FIXED + "\nX = 2\n", "fix drafts without a number")
    commit(top, "test_draft.py", "def test_it():\n    pass\n", "fix a test of drafts (#105)")
    commit(top, "draft_pool.cu", "//\n", "fix the draft's kernel (#106)")
    return top


def test_fixes_of_speculative_decoding_become_rows_and_other_engines_keep_theirs(
    top: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert main([f"toy={top}", "--since", "2000-01-01", "-o", str(page)]) == 0
    assert capsys.readouterr().out == "toy: 2 fixes\n"
    table = [line for line in page.read_text().splitlines() if line.startswith("| t")]
    assert [line.split(" | ")[1] for line in table] == ["7", "102", "101"]
    assert table[1].endswith("| 1 | `toy/pool.py` | H |  |")
    assert table[2].endswith("| 1 | `toy/draft_pool.py` | L |  |")
    renewed = page.read_text()
    assert (renewed[:7], renewed.partition(END)[2]) == ("# Page\n", "\n\nafter\n")
    assert main([f"toy={top}", "--since", "2000-01-01", "-o", str(page)]) == 0
    assert page.read_text() == renewed
    assert "Fix rows" not in renewed


@pytest.mark.parametrize(
    ("page", "folder", "told"), [("no marks", "checkout", "needs a line"), (PAGE, "gone", "is no checkout")]
)
def test_what_cannot_be_renewed_is_told(
    top: Path, tmp_path: Path, page: str, folder: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.md"
    file.write_text(page)
    assert main([f"toy={tmp_path / folder}", "--since", "2000-01-01", "-o", str(file)]) == 2
    assert told in capsys.readouterr().err
    assert file.read_text() == page


def test_a_checkout_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["checkout", "--since", "2000-01-01"])
    assert "write NAME=DIR" in capsys.readouterr().err
