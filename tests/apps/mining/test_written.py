"""What a mined toggle says is right as the registry reads it, and has the facts of its fix."""

from pathlib import Path

from specdebug.apps.mining.fix import fix_of
from specdebug.apps.mining.written import Shown, dimension, flags, toggle_text
from specdebug.base.yamlio import parse_yaml
from specdebug.patching.toggles import read_toggle
from tests.apps.mining.checkout import FIXED, checkout, commit

EDITS = {"toy.pool:room": [("return pages * page * topk", "return pages * page")]}


def test_a_mined_toggle_is_read_back_with_its_facts(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    fixed = commit(top, "pool.py", FIXED, 'Rows: "room" (#101)')
    fix = fix_of(top, fixed, lambda line: None)
    text = toggle_text(fix, Path("mined/toggles/101.yaml"), {"==1.0": EDITS, "==2.0": EDITS}, (), ["A note."])
    toggle = read_toggle(parse_yaml(text, "101.yaml"))
    assert (toggle.pr, toggle.title, toggle.family) == (101, 'Rows: "room" (#101)', "KV cache")
    for fact in (fixed, "File toy/pool.py.", "Function toy.pool:room.", "A note."):
        assert fact in toggle.description
    assert list(toggle.foreign["toy"]) == ["==1.0", "==2.0"]
    assert toggle.foreign["toy"]["==2.0"][0].edits[0].replacement.strip() == "return pages * page"


def test_what_shows_it_is_told(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    fix = fix_of(top, commit(top, "pool.py", FIXED, "Rows (#101)"), lambda line: None)
    text = toggle_text(fix, Path("101.yaml"), {"": EDITS}, [Shown("toy", "cache_hit", "oob@draft")])
    toggle = read_toggle(parse_yaml(text, "101.yaml"))
    assert toggle.detected_in["toy"].scenario == "cache_hit"
    assert toggle.detected_in["toy"].recognises("oob@draft")
    assert toggle.symptom == "oob@draft in cache_hit"


def test_options_that_its_functions_read_and_what_it_is_about_are_told(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    text = FIXED.replace("if width]", "if width > 1]")
    fix = fix_of(top, commit(top, "pool.py", text, "no number"), lambda line: None)
    assert flags(fix) == ("page_size",)
    assert dimension(fix) == "KV cache"
