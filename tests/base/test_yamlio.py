"""yamlio: plain data, the place of everything, and one-line refusals whatever the bytes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base import yamlio
from specdebug.base.errors import ContentError, Where
from specdebug.base.yamlio import MAX_BYTES, MAX_DEPTH, as_json, load_yaml, parse_yaml

TEXT = """\
# a comment
name: x
engine:
  page_size: 4
  speculative: {num_steps: 3, eagle_topk: 2}
workload:
  - requests: 6
  - {requests: 2, "after": g0}
patch: |
  first
  second
"""


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ((), (2, 1), (2, 1)),
        (("name",), (2, 7), (2, 1)),
        (("engine", "page_size"), (4, 14), (4, 3)),
        (("engine", "speculative", "eagle_topk"), (5, 43), (5, 31)),
        (("workload", 1), (8, 5), (8, 5)),
        (("workload", 1, "after"), (8, 28), (8, 19)),
        (("engine", "dtype"), (4, 3), (4, 3)),  # absent: the mapping that lacks it
        (("engine", "page_size", "deeper"), (4, 14), (4, 14)),
        (("workload", 7, "requests"), (7, 3), (7, 3)),
    ],
)
def test_places(path, value, key):
    doc = parse_yaml(TEXT, "f.yaml")
    assert doc.where(*path) == Where("f.yaml", *value)
    assert doc.where_key(*path) == Where("f.yaml", *key)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("True", True),
        ("~", None),
        ("", None),
        ("0x1f", 31),
        ("0o17", 15),
        ("010", 10),
        ("-3", -3),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("'12'", "12"),
        ('"true"', "true"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_scalars_follow_the_core_schema(text, value):
    found = parse_yaml(f"a: {text}").data["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [unclosed\n", "f.yaml:2:1: not valid YAML"),
        ("a: !!python/object/apply:os.system [x]", "f.yaml:1:4: tags are not allowed: tag:yaml.org"),
        ("a: !x 1", "f.yaml:1:4: tags are not allowed: !x"),
        ("", "f.yaml:1:1: is empty"),
        ("# only a comment\n", "f.yaml:1:1: is empty"),
        ("a: 1\nb: 2\n'a': 3", "f.yaml:3:1: duplicate key 'a', first on line 1"),
        ("a: {b: 1, b: 2}", "f.yaml:1:11: duplicate key 'b', first on line 1"),
        ("1: x", "f.yaml:1:1: a key must be text: quote it, as in '1':"),
        ("? [a]\n: x", "f.yaml:1:3: a list or mapping cannot be a key"),
        ("a: &x []\n*x : 1", "f.yaml:2:1: a list or mapping cannot be a key"),
        ("a: &x [*x]", "f.yaml:1:8: alias *x would contain itself"),
        ("a: *y", "f.yaml:1:4: alias *y has no anchor &y before it"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: holds a second document"),
        ("a: " + "9" * 100, "f.yaml:1:4: a number of 100 digits"),
        ("ab: x\0y", "f.yaml:1:6: character U+0000"),
        ("- " * 5000, f"f.yaml:1:{2 * MAX_DEPTH + 1}: is nested more than {MAX_DEPTH} deep"),
    ],
)
@pytest.mark.parametrize("loader", ["default", "python"])
def test_refusals(text, message, loader, monkeypatch):
    if loader == "python":
        monkeypatch.setattr(yamlio, "_Loader", yaml.SafeLoader)
    with pytest.raises(ContentError) as error:
        parse_yaml(text, "f.yaml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_billion_laughs_are_refused_before_they_expand():
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    with pytest.raises(ContentError, match="aliases expand to more than"):
        parse_yaml("\n".join(lines))


def test_files(tmp_path: Path):
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\r\nb: 2\r\n")
    assert load_yaml(good).data == {"a": "é", "b": 2}
    assert load_yaml(good).where("b") == Where(str(good), 2, 4)

    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "huge.yaml").write_bytes(b"a: " + b"x" * MAX_BYTES)
    for name, message in {
        "missing.yaml": "missing.yaml: no such file",
        ".": ": is a folder, not a YAML file",
        "latin.yaml": "latin.yaml:2:7: byte 0xe9 is not UTF-8 text",
        "huge.yaml": "huge.yaml: is larger than 1 MiB",
        "x" * 5000: "cannot be read: File name too long",
        "nul\0": "no such file",
    }.items():
        with pytest.raises(ContentError) as error:
            load_yaml(tmp_path / name)
        assert message in str(error.value)
    with pytest.raises(ContentError, match="not a regular file"):
        load_yaml("/dev/zero")


def refused(call) -> str | None:
    """The refusal's text, None if there was none; any other exception passes through and fails the test."""
    try:
        call()
    except ContentError as error:
        return str(error)
    return None


@settings(max_examples=300)
@given(st.one_of(st.text(), st.text(alphabet="ab:-[]{}&*!|>'\"?#%@,~ \n\t0", max_size=80)))
def test_any_text_parses_or_is_refused_in_one_line(text):
    refusal = refused(lambda: parse_yaml(text, "f.yaml"))
    assert refusal is None or (refusal.startswith("f.yaml") and "\n" not in refusal)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("bytes") / "f.yaml"
    file.write_bytes(data)
    assert "\n" not in (refused(lambda: load_yaml(file)) or "")


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(alphabet="abc: #'\"\n-", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=12,
)


def test_imports_without_torch():
    modules = ["base.schema", "base.yamlio", "base.content", "patching.toggles"]
    code = "".join(f"import specdebug.{name}\n" for name in modules) + "import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.recursive(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-9, 9), st.lists, max_leaves=6))
def test_one_text_is_read_alike_as_json_and_as_yaml(data):
    text = as_json({"a": data})
    assert len(text.splitlines()) == 1
    assert json.loads(text) == parse_yaml(text).data == {"a": data}
