"""toggles: reading, selecting and applying; whatever is wrong with a file is said in one line."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specdebug.base import content
from specdebug.base.errors import ContentError
from specdebug.patching import PatchError, apply, toggles
from specdebug.patching.toggles import (
    NOTHING,
    REVERT_VARIABLE,
    Detection,
    SelectionError,
    load_registry,
    load_toggle,
    reverts_from_environment,
)
from specdebug.report.toggles import toggle_list
from specdebug.scenario.library import Library
from specdebug.targets.installs.store import VARIABLE, Installed
from specdebug.targets.settings import ReleasedEngine
from tests.run.fakes import text_of

TOGGLE = """\
pr: 101
aliases: [102]
title: slice the table
url: https://example.org/pull/101
family: topk
symptom: wrong rows
description: |
  Longer text.
detected_by:
  scenario: rows
  signature: ["guard@rows*", "mismatch@request"]
patches:
  specdebug:
    - target: toy_engine:pick
      edits:
        - match: |
            row = rows[:width]
          replacement: |
            row = rows
        - match: return row
          replacement: return list(row)
    - target: toy_engine:Engine.step
      edits:
        - match: |
            self.count += 1
          replacement: ""
  sglang:
    ">=0.5.12,<0.5.14":
      - target: sglang.srt.layers:f
        edits: [{match: a, replacement: b}]
"""

ENGINE = """\
def pick(rows, width):
    row = rows[:width]
    return row


class Engine:
    count = 0

    def step(self):
        self.count += 1
        return self.count
"""

OTHER = """\
pr: 55
title: count
url: https://example.org/pull/55
family: counters
symptom: wrong count
detected_by: {scenario: rows, signature: "mismatch@request"}
patches:
  specdebug:
    - target: toy_engine:Engine.step
      edits:
        - {match: "return self.count", replacement: "return self.count + 1"}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A content root with two toggles, and the engine they patch, not imported."""
    (tmp_path / "toggles").mkdir()
    (tmp_path / "toggles" / "101.yaml").write_text(TOGGLE)
    (tmp_path / "toggles" / "55.yaml").write_text(OTHER)
    (tmp_path / "toy_engine.py").write_text(ENGINE)
    monkeypatch.setattr(content, "shipped_root", lambda: tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("toy_engine", None)


def load(tmp_path: Path, text: str):
    file = tmp_path / "t.yaml"
    file.write_text(text)
    return load_toggle(file)


def reverted(wanted, mode="import"):
    """The fixes of some numbers reverted in this process."""
    return apply([patch for toggle in load_registry().select(wanted) for patch in toggle.patches], mode)


def refusal(call, *args, error=ContentError) -> str:
    with pytest.raises(error) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_field(root):
    toggle = load_toggle(root / "toggles" / "101.yaml")
    assert toggle.numbers == (101, 102)
    assert (toggle.title, toggle.family, toggle.symptom) == ("slice the table", "topk", "wrong rows")
    assert toggle.url == "https://example.org/pull/101"
    assert toggle.description == "Longer text.\n"
    assert toggle.detected_by == Detection("rows", ("guard@rows*", "mismatch@request"))
    assert [patch.target for patch in toggle.patches] == ["toy_engine:pick", "toy_engine:Engine.step"]
    assert [edit.id for patch in toggle.patches for edit in patch.edits] == ["101#1", "101#2", "101#3"]
    assert toggle.foreign["sglang"][">=0.5.12,<0.5.14"][0].module == "sglang.srt.layers"
    first = toggle.patches[0].edits[0]
    assert (first.match_at.line, first.replacement_at.line) == (17, 19)
    assert first.replacement_line(1).line == 19
    second = toggle.patches[0].edits[1]
    assert (second.match_at.line, second.match_at.column) == (20, 18)


@pytest.mark.parametrize(
    ("detections", "message"),
    [
        ("[]", "detected_by needs at least 1 item"),
        ("[{scenario: a, signature: b}, {scenario: a, signature: c}]", "detected_by[1] repeats the scenario 'a'"),
        ("[{scenario: a}]", "detected_by[0] lacks the key 'signature'"),
    ],
)
def test_a_list_of_scenarios_that_makes_no_sense_is_refused(tmp_path, detections, message):
    text = OTHER.replace('{scenario: rows, signature: "mismatch@request"}', detections)
    assert message in refusal(load, tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pr: 101", "pr: one", "t.yaml:1:5: pr must be a whole number from 1 to 10000000, not 'one'"),
        ("pr: 101\n", "", "t.yaml:1:1: the file lacks the key 'pr'"),
        ("title:", "titel:", "t.yaml:3:1: unknown key 'titel'; did you mean 'title'?"),
        ("[102]", "[101]", "t.yaml:2:11: aliases[0] repeats 101"),
        ("[102]", "[102, 102]", "t.yaml:2:16: aliases[1] repeats 102"),
        ("[102]", "102", "t.yaml:2:10: aliases must be a list, not 102"),
        ("https:", "ftp:", "t.yaml:4:6: url 'ftp://example.org/pull/101' does not fit the form"),
        ("wrong rows", "''", "t.yaml:6:10: symptom must not be empty"),
        (
            "scenario: rows",
            "scenaro: rows",
            "t.yaml:10:3: unknown key 'scenaro' in detected_by; did you mean",
        ),
        ('["guard@rows*", "mismatch@request"]', "[]", "detected_by.signature needs at least 1 item"),
        ("  specdebug:", "  specdbug:", "patches lacks the key 'specdebug'; did you mean 'specdbug'?"),
        (
            "toy_engine:pick",
            "toy engine",
            "t.yaml:14:15: patches.specdebug[0].target is 'toy engine': a target is",
        ),
        ("toy_engine:pick", '"toy_engine:a b"', "a target is written 'package.module:Class.function'"),
        ("match: return row", "mtach: return row", "unknown key 'mtach' in patches.specdebug[0].edits[1]"),
        ("match: return row", "match: ''", "patches.specdebug[0].edits[1].match must not be empty"),
        ("replacement: return list(row)", "replacement: 1", "must be text, not 1; quote it"),
        ("replacement: return list(row)", "replacement:", "must be text, not nothing"),
        (">=0.5.12,<0.5.14", "0.5.12", "t.yaml:28:5: '0.5.12' is no version range; write for example"),
        ("  sglang:", "  'S G':", "t.yaml:27:3: 'S G' is no name of an engine"),
        ("  sglang:", "  sglang: 1\n  vllm:", "patches.sglang must be a mapping, not 1"),
        ("[{match: a, replacement: b}]", "[]", "edits needs at least 1 item"),
        ("pr: 101", "pr: 101\npr: 101", "t.yaml:2:1: duplicate key 'pr', first on line 1"),
    ],
)
def test_malformed_files(tmp_path, old, new, message):
    assert old in TOGGLE
    assert message in refusal(load, tmp_path, TOGGLE.replace(old, new, 1))


ELSEWHERE = """\
pr: 77
aliases: [78]
title: widen the rows
url: https://example.org/pull/77
family: rows
symptom: none here
patches:
  sglang:
    ">=0.5.13,<0.5.15.post1":
      - target: sglang.srt.layers:f
        edits: [{match: a, replacement: b}]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("symptom: none here\n", "symptom: s\ndetected_by: {scenario: a, signature: b}\n", "lacks the key 'specdebug'"),
        (
            "  sglang:\n",
            "  specdebug: [{target: a, edits: [{match: a, replacement: b}]}]\n  sglang:\n",
            "t.yaml:1:1: the file lacks the key 'detected_by'",
        ),
        (ELSEWHERE[ELSEWHERE.index("  sglang") :], "  {}\n", "patches lacks the key 'specdebug'"),
        (ELSEWHERE[ELSEWHERE.index("  sglang") :], "  sglang: {}\n", "patches.sglang needs a version range"),
        ("<0.5.15.post1", "<0.5.15beta", "is no version range"),
        ("<0.5.15.post1", "~=0.5", "is no version range"),
        ("patches:", "mends: [vllm]\npatches:", "'vllm' has no patches of its own here"),
        ("patches:", "mends: []\npatches:", "mends"),
        (
            "patches:",
            "mends: [sglang]\ndetected_in:\n  sglang: {scenario: a, signature: b}\npatches:",
            "'sglang' lacks this fix",
        ),
    ],
)
def test_malformed_files_of_another_engines_fix(tmp_path, old, new, message):
    assert old in ELSEWHERE
    assert message in refusal(load, tmp_path, ELSEWHERE.replace(old, new, 1))


def test_a_fix_of_another_engine_is_known_but_not_selected(root):
    (root / "toggles" / "77.yaml").write_text(ELSEWHERE)
    registry = load_registry()
    assert (list(registry.toggles), list(registry.elsewhere)) == ([55, 101], [77])
    assert [toggle.pr for toggle in registry.all] == [55, 77, 101]
    assert 78 not in registry.by_number
    found = registry.find("#78")
    assert (found.pr, found.patches, found.detected_by) == (77, (), NOTHING)
    said = (
        "77 is a fix in sglang; the embedded engine has no such code to revert, "
        "`specdebug run --revert 77 -- COMMAND` reverts it under any command"
    )
    for number in (77, 78, "55,77"):
        assert refusal(registry.select, number, error=SelectionError) == said
    assert [toggle.pr for toggle in registry.select("78,77", "sglang")] == [77]
    said = "55 is a fix in specdebug; sglang has no such code to revert"
    assert refusal(registry.select, 55, "sglang", error=SelectionError) == said
    assert refusal(registry.select, 7, "sglang", error=SelectionError) == "no toggle reverts 7; did you mean '78'?"
    assert registry.find("102").pr == 101
    assert refusal(registry.find, "103", error=SelectionError) == "no toggle reverts 103; did you mean '102'?"
    assert "is not one pull request's number" in refusal(registry.find, "55,77", error=SelectionError)


def test_a_fix_of_a_release_has_its_edits_and_what_shows_it_there(root):
    text = ELSEWHERE.replace("patches:", "detected_in:\n  sglang: {scenario: rows, signature: oob@rows}\npatches:")
    (root / "toggles" / "77.yaml").write_text(text)
    toggle = load_registry().find("77")
    there = toggle.of_release("sglang", "0.5.13")
    assert there is not None
    assert [patch.target for patch in there.patches] == ["sglang.srt.layers:f"]
    assert there.detected_by.recognises("oob@rows")
    assert toggle.of_release("sglang", "0.5.16") is None
    assert toggle.of_release("vllm", "0.5.13") is None
    (root / "toggles" / "77.yaml").write_text(text.replace("detected_in:\n  sglang", "detected_in:\n  vllm"))
    assert "'vllm' has no patches here" in refusal(load_registry)


def test_a_fix_that_an_engine_lacks_is_put_in_there(root):
    (root / "toggles" / "77.yaml").write_text(ELSEWHERE.replace("patches:", "mends: [sglang]\npatches:"))
    registry = load_registry()
    assert registry.find("77").mends == {"sglang"}
    assert [toggle.pr for toggle in registry.select("77", "sglang")] == [77]
    said = "77 mends sglang; the embedded engine has no such code to revert"
    assert refusal(registry.select, 77, error=SelectionError) == said
    assert 77 not in [toggle.pr for toggle in Library().all_toggles(ReleasedEngine(release="sglang==0.5.13"))]
    assert "mends sglang" in text_of(toggle_list([registry.find("77")]))


def test_an_installed_release_has_the_fixes_that_have_edits_for_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv(VARIABLE, str(store))
    (root / "toggles" / "77.yaml").write_text(ELSEWHERE)
    for version in ("0.5.13", "0.5.23"):
        made = Installed(store / f"sglang-{version}-cpu", "sglang", version, "cpu", sys.executable, False)
        replace(made, done=("installed",)).write()

    def numbers(release: str) -> list[int]:
        return [toggle.pr for toggle in Library().all_toggles(ReleasedEngine(release=release))]

    assert 77 in numbers("sglang==0.5.13")
    assert 77 not in numbers("sglang==0.5.23")
    assert 77 not in numbers("sglang"), "the newest that is installed"
    assert 77 in numbers("sglang==0.5.22"), "nothing is installed: the run will say so"


def test_one_number_in_two_files_names_both(root):
    (root / "toggles" / "103.yaml").write_text(TOGGLE.replace("pr: 101", "pr: 103"))
    text = refusal(load_registry)
    assert "103.yaml: 102 is taken by" in text
    assert "101.yaml already" in text


@pytest.mark.parametrize("wanted", ["x", "101,", ",", "1.5", "-5", "101 55", "٣", "9" * 30, "101;55", "1e3", "\n,"])
def test_what_is_no_number_is_refused(root, wanted):
    assert "is not a pull request's number" in refusal(load_registry().select, wanted, error=SelectionError)


def test_the_environment(root, monkeypatch):
    assert reverts_from_environment() == ()
    monkeypatch.setenv(REVERT_VARIABLE, "55,102")
    assert reverts_from_environment() == (55, 102)
    monkeypatch.setenv(REVERT_VARIABLE, "55,x")
    assert refusal(reverts_from_environment, error=SelectionError).startswith(f"{REVERT_VARIABLE}: 'x' is not")


def test_a_broken_replacement_points_at_its_own_line(root):
    text = TOGGLE.replace("            row = rows\n", "            row = 1\n\n            row = = 2\n")
    (root / "toggles" / "101.yaml").write_text(text)
    assert refusal(reverted, "101", error=PatchError).startswith(
        f"{root / 'toggles' / '101.yaml'}:21: toggle 101, edit 1 of 2 in toy_engine:pick does not compile: "
    )


def test_overlapping_toggles_are_refused_by_name(root):
    (root / "toggles" / "55.yaml").write_text(
        OTHER.replace('"return self.count"', '"self.count += 1\\nreturn self.count"')
    )
    text = refusal(reverted, "101,55", error=SelectionError)
    assert text == "101 and 55 edit the same line of toy_engine:Engine.step; revert one of them"
    assert [toggle.pr for toggle in load_registry([root]).listed("101,55")] == [101, 55]
    with reverted("55"):
        pass


def test_the_template_in_the_readme_is_a_toggle(tmp_path):
    readme = (Path(toggles.__file__).parents[2] / "toggles" / "README.md").read_text()
    template = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert template
    toggle = load(tmp_path, template.group(1))
    assert toggle.pr == 12345
    assert toggle.patches[0].edits[0].replacement == ""


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("101", [101]),
        (" 55 , #101 ", [55, 101]),
        ("102", [101]),
        ("102,101,102", [101]),
        ("", []),
        ("  ", []),
        (55, [55]),
        ([101, 55, 102], [101, 55]),
    ],
)
def test_select(root, wanted, chosen):
    assert [toggle.pr for toggle in load_registry().select(wanted)] == chosen


def test_patches_of_a_package_of_ones_own_may_be_for_every_version(tmp_path):
    url, ranges = "url: https://example.org/pull/77\n", '    ">=0.5.13,<0.5.15.post1":\n'
    toggle = load(tmp_path, ELSEWHERE.replace(url, "").replace(ranges, "").replace("sglang", "toyspec"))
    assert toggle.url == ""
    assert [edit.id for patch in toggle.foreign["toyspec"][""] for edit in patch.edits] == ["77#1"]
    assert toggle.is_in("toyspec")
