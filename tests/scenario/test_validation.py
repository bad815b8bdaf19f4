"""All that is wrong with a scenario is said at once, each thing once and at its place."""

from pathlib import Path

import pytest

from specdebug.base.content import KINDS, Kind, content_files
from specdebug.base.errors import ContentErrors
from specdebug.base.yamlio import load_yaml, parse_yaml
from specdebug.scenario.checks import KnownNames, load_scenario, scenario_of
from specdebug.scenario.library import Library
from specdebug.scenario.validation import GRAMMARS, validate

KNOWN = KnownNames((27338, 27360), ("default",), checkpoints=True)

BAD = """\
name: Bad Name
description: 3
engine:
  model: tinny
  page_sice: 4
  context_length: lots
  speculative: {algorithm: EAGLEE, num_steps: 3, eagle_topk: 4, num_draft_tokens: 8}
workload:
  - {id: a, requests: 0, promt: {text: x}}
  - {id: b, prompt: {corpus: stdlb, tokens: [9, 3]}, arrive: {after: q}, temperature: hot}
  - {id: a, prompt: {corpus: stdlib, tokens: 9}}
probes: [defualt]
faults:
  - {fault: nan_logit}
  - {fault: nan_logits, step: 0, row: 900}
  - {fault: nan_logits, request: b.7}
arms:
  fixed: {engine: {memory: {fil: nan}}}
  reverted: {revert: [27339, 27339], mode: asert}
expect:
  fxed: {verdict: fail, signature: nan@x}
  reverted: {verdict: fial}
limits: {timeout_s: 0}
seed: -1
seed: 4
"""

SAID = {
    (1, 7): "name 'Bad Name' does not fit",
    (2, 14): "description must be text",
    (4, 3): "engine.model: no checkpoint 'tinny': neither a folder nor a shipped name; did you mean 'tiny'?",
    (5, 3): "engine.page_sice: unknown key 'page_sice'; did you mean 'page_size'?",
    (6, 3): "engine.context_length: must be a whole number",
    (7, 17): "engine.speculative.algorithm: cannot be '",
    (9, 23): "workload[0].requests must be a whole number",
    (9, 26): "unknown key 'promt' in workload[0]; did you mean 'prompt'?",
    (10, 30): "workload[1].prompt.corpus cannot be 'stdlb'; did you mean 'stdlib'?",
    (10, 45): "workload[1].prompt.tokens is a range from 9 down to 3",
    (10, 70): "no group 'q' to arrive after",
    (10, 87): "workload[1].temperature must be a number",
    (11, 10): "group id 'a' is already that of workload[0]",
    (12, 10): "no probe pack 'defualt'; did you mean 'default'?",
    (14, 13): "no fault 'nan_logit'; did you mean 'nan_logits'?",
    (15, 31): "faults[1].step must be a whole number",
    (15, 39): "faults[1].row must be a whole number",
    (18, 29): "engine.memory.fil: unknown key 'fil' in memory; did you mean 'fill'?",
    (19, 23): "no toggle for PR 27339",
    (19, 30): "PR 27339 is listed twice",
    (19, 44): "arms.reverted.mode cannot be 'asert'; did you mean 'assert'?",
    (21, 3): "expect names no arm 'fxed'; did you mean 'fixed'?",
    (22, 23): "expect.reverted.verdict cannot be 'fial'; did you mean 'fail'?",
    (23, 21): "limits.timeout_s must be above 0",
    (25, 1): "duplicate key 'seed', first on line 24",
}
"""By line and column, how each complaint begins. The request of the third fault is not held against it: whether there
is a ``b.7`` depends on engines that cannot be built."""


def problems(text: str) -> list[tuple[tuple[int, int], str]]:
    with pytest.raises(ContentErrors) as caught:
        scenario_of(parse_yaml(text, "s.yaml"), KNOWN)
    assert str(caught.value) == str(caught.value.problems[0])
    return [((p.where.line, p.where.column), p.message) for p in caught.value.problems if p.where is not None]


def test_everything_is_said_at_once_and_in_order(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    (checked,) = validate(Library(), "scenarios", [str(file)])
    assert checked.parts == ()
    said = {(each["line"], each["column"]): each["message"] for each in checked.to_dict()["problems"]}
    assert list(said) == sorted(SAID)
    assert len(checked.problems) == len(SAID)
    for place, message in SAID.items():
        assert said[place].startswith(message), said[place]
    document = checked.to_dict()
    assert (document["ok"], document["arms"], len(document["problems"])) == (False, [], len(SAID))
    first = {"file": str(file), "line": 1, "column": 7, "message": said[1, 7]}
    assert document["problems"][0] == first
    assert str(checked.problems[0]) == f"{file}:1:7: {said[1, 7]}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("nmae: x\nworkload: [{prompt: {text: x}}]\n", 1),  # and not that the name is missing
        ("name: x\nworkload: [{promt: {text: x}}]\n", 1),
        ("name: x\nworkload: [{id: a.b, prompt: {text: x}}, {prompt: {text: y}, arrive: {after: a.b}}]\n", 1),
        ("name: x\nworkload: 3\nexpect: {base: {verdict: fail, signature: accept-drop@g0}}\n", 1),
        ("name: x\nworkload: [{prompt: {text: x}}]\narms: 3\nexpect: {fixed: {verdict: fail}}\n", 1),
        (
            "name: x\nworkload: [{prompt: {text: x}}]\nfaults: [{fault: nan_draft_kv_in_use}]\n"
            "arms: {a: {engine: 3}}\n",
            1,
        ),
        ("name: x\nengine: 3\nworkload: [{prompt: {corpus: stdlib, tokens: 9000}}]\narms: {a: , b: }\n", 1),
        ("name: x\nworkload: [{prompt: {corpus: stdlib, tokens: hm}}]\nengine: {context_length: 16}\n", 1),
        ("name: x\nworkload: [{prompt: {text: x}}]\nexpect: {base: {verdict: bad, signature: nan@x}}\n", 1),
        ("name: x\nengine: {model: tinny}\nworkload: [{prompt: {text: x}}]\narms: {a: , b: , c: }\n", 1),
        ("name: x\nengine: {model: tinny, page_size: 0}\nworkload: [{prompt: {text: x}}]\narms: {a: , b: }\n", 2),
        ("name: x\nworkload: [{prompt: {text: x}}]\narms: {a.b: {mode: recrod}}\nexpect: {a.b: {verdict: fail}}\n", 2),
        ("workload: [{prompt: {text: x}}]\nnmae: x\nseed: x\nlimits: {max_steps: x, memory_mb: x}\n", 4),
    ],
)
def test_one_mistake_is_one_problem(text: str, count: int) -> None:
    found = problems(text)
    assert len(found) == count, found


def test_duplicates_hide_nothing(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("name: x\nname: y\nworkload: [{prompt: {text: x}}]\nworkload: [{promt: {text: x}}]\nseed: -1\n")
    with pytest.raises(ContentErrors) as caught:
        load_scenario(file, KNOWN)
    assert [problem.where.line for problem in caught.value.problems if problem.where] == [2, 4, 4, 5]


def test_a_pack_that_is_wrong_is_told_by_who_names_it(tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    pack = tmp_path / "probes" / "mine.yaml"
    pack.write_text("name: mine\nmode: record\nsites: [{glob: 'nothing.like.it', kinds: [nan]}]\n")
    file = tmp_path / "s.yaml"
    file.write_text("name: x\nworkload: [{prompt: {text: x}}]\nprobes: [mine]\n")
    ((problem,),) = (each.problems for each in validate(Library([tmp_path]), "scenarios", [str(file)]))
    assert problem.where is not None
    assert (Path(problem.where.path).name, problem.where.line) == ("mine.yaml", 3)


BAD_TOGGLE = """\
pr: 501
aliases: [27338]
titel: a row has room
url: ftp://x
family: topk > 1
symptom: s
detected_by: [{scenario: cache_hit, signature: []}, {scenaro: cache_hit, signature: a}]
patches:
  specdebug:
    - target: a b
      edits: [{match: "", replacement: ""}, {match: x, replacemnt: y}]
  toy spec: []
  other: {"1.0": [], ">=2": [{target: a, edits: []}]}
mends: [vllm]
"""


def places(kind: Kind, file: Path, *content: Path) -> list[tuple[int, int]]:
    (checked,) = validate(Library(content), kind, [str(file)])
    assert checked.to_dict()["ok"] is (not checked.problems)
    return [(each.where.line, each.where.column) for each in checked.problems if each.where is not None]


def test_all_that_is_wrong_with_a_toggle_is_said(tmp_path: Path) -> None:
    file = tmp_path / "501.yaml"
    file.write_text(BAD_TOGGLE)
    found = [(3, 1), (4, 6), (7, 48), (7, 54), (10, 15), (11, 23), (11, 56)]
    found += [(12, 3), (13, 11), (13, 18), (13, 49), (14, 9)]
    assert places("toggles", file) == found


def test_a_toggle_of_our_engine_must_fit_it(tmp_path: Path) -> None:
    text = (content_files("toggles")["27338"]).read_text()
    file = tmp_path / "1.yaml"
    lines = text.splitlines()
    at = {word: next(n for n, line in enumerate(lines, 1) if word in line) for word in ("scenario:", "match: |")}
    assert places("toggles", content_files("toggles")["27338"]) == []
    file.write_text(text)
    assert places("toggles", file) == [(1, 5)]  # another file has its number
    lines[at["match: |"]] = lines[at["match: |"]].replace("=", "==", 1) + " + nothing_like_it"
    text = "\n".join(lines).replace("pr: 27338", "pr: 1").replace("scenario: ", "scenario: no_")
    file.write_text(text)
    assert [line for line, _ in places("toggles", file)] == [at["scenario:"], at["match: |"] + 1]


def test_two_files_of_one_number_are_told(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.yaml" for name in "ab"]
    for file in files:
        file.write_text(
            "pr: 501\ntitle: t\nfamily: f\nsymptom: s\n"
            "patches: {toyspec: [{target: a, edits: [{match: a, replacement: b}]}]}\n"
        )
    first, second = validate(Library(), "toggles", list(map(str, files)))
    assert (first.problems, first.parts) == ((), ("a",))
    assert [str(each) for each in second.problems] == [f"{files[1]}:1:5: 501 is taken by {files[0]} already"]


def test_all_that_is_wrong_with_a_pack_is_said(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: My Pack\nmode: rec\nsites: [{glob: a b}, {kinds: [nann, inf]}]\nkernels: [{glob: '*', mode: of}]\n"
    )
    assert places("probes", file) == [(1, 7), (2, 7), (3, 16), (3, 22), (3, 31), (4, 29)]
    file.write_text("name: p\nmode: record\nsites: [{glob: 'a.*'}, {glob: '*'}, {glob: 'verify.ids', kinds: [nan]}]\n")
    assert [line for line, _ in places("probes", file)] == [3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_shipped_content_is_right_and_fits_its_schema(kind: Kind) -> None:
    schema = pytest.importorskip("jsonschema").Draft202012Validator(GRAMMARS[kind].json_schema())
    schema.check_schema(schema.schema)
    checked = list(validate(Library(), kind))
    assert len(checked) == len(content_files(kind)) > 5
    for each in checked:
        assert each.problems == ()
        assert each.parts
        schema.validate(load_yaml(each.file).data)


@pytest.mark.parametrize(("kind", "text"), [("toggles", BAD_TOGGLE), ("probes", "name: x\nmode: record\n")])
def test_the_schema_refuses_what_the_reader_refuses(kind: Kind, text: str) -> None:
    schema = pytest.importorskip("jsonschema").Draft202012Validator(GRAMMARS[kind].json_schema())
    assert not schema.is_valid(parse_yaml(text).data)
