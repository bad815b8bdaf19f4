"""Secrets are masked where they stand, and what only looks like one is left as it is."""

import html
import json
from urllib.parse import quote

import pytest

from specdebug.base import redaction
from specdebug.base.redaction import (
    hide,
    hide_variables,
    hide_words,
    names_secret,
    redacted,
    redacted_plain,
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())


@pytest.mark.parametrize(
    "name",
    [
        "PWD", "PATH", "TOKENIZERS_PARALLELISM", "--tokenizer", "--max-tokens", "--speculative-token-map",
        "--stop-token", "SSL_KEYFILE", "SECRET_FILE", "MONKEY", "KEYBOARD", "--pad-token", "CUDA_VISIBLE_DEVICES", "",
    ],
)  # fmt: skip
def test_names_that_do_not(name: str) -> None:
    assert not names_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "serve --api-key {} --port 1",
        "serve --api-key={}",
        'serve --api-key "{}"',
        "sh -c 'HF_TOKEN={} serve'",
        "export MY_KEY={}",
        "ServerArgs(port=1, api_key='{}', admin_api_key=None)",
        'ServerArgs(api_key="{}")',
        "ServerArgs(port=1, api_key='{}",  # cut short
        '{{"api_key": "{}", "port": 1}}',
        '{{\\"password\\": \\"{}\\"}}',
        "api_key=&#x27;{}&#x27;, port=1",
        "password=&quot;{}&quot;",
        "Authorization: Bearer {}",
        "https://me:{}@host/path",
        "https://{}@host/path",
    ],
)
def test_values_behind_what_says_so(text: str) -> None:
    said = redacted(text.format("hunter2-a"))
    assert "hunter2" not in said
    assert "***" in said
    assert said.replace("***", "hunter2-a") in (text.format("hunter2-a"), "https://hunter2-a@host/path")


@pytest.mark.parametrize(
    "token",
    ["sk-" + "a1B2" * 6, "hf_" + "a1B2" * 6, "ghp_" + "a1B2" * 6, "AKIA" + "ABCD" * 4, "xoxb-1234567890-abc"],
)
def test_keys_in_the_form_of_their_issuers(token: str) -> None:
    assert redacted(f"it said {token}, then ended") == "it said ***, then ended"


@pytest.mark.parametrize(
    "text",
    [
        "step 2, g0.1 output 3: token 630, now 563; the worse is 0.0384",
        "bonus_token=5 stop_token=7 key=abc pass=3 trace_key='x'",
        '{"key": "fixed", "pass": 3, "token": 630, "api_key": null}',
        "target.api_key: the environment variable AWS_SECRET_ACCESS_KEY is not set",
        "launch --tokenizer-path /x --speculative-token-map /y --ssl-keyfile /z",
        "api_key=None, api_key='', --api-key ***",
        "http://127.0.0.1:30000/v1, kind@site, guard@draft.kv_indices->draft.kv_indptr",
        "oob@draft_graph.replay.topk_index",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("value", ['hunter2"\\ä', "a&b<c>hunter", "with space/and?more"])
def test_a_known_value_is_masked_in_every_form(value: str) -> None:
    hide([value])
    for text in (value, json.dumps([value]), f"<td>{html.escape(value)}</td>", f"http://x/?a={quote(value, safe='')}"):
        said = redacted(text)
        assert "hunter" not in said
        assert "more" not in said
        assert "***" in said
    assert json.loads(redacted(json.dumps({"a": value, "b": 1}))) == {"a": "***", "b": 1}


def test_the_values_of_this_process_s_own_variables_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-a")
    monkeypatch.setenv("SOME_PLACE", "/some/place")
    assert redacted("it says hunter2-a of /some/place") == "it says *** of /some/place"


def test_what_a_command_or_its_variables_hold_is_known_from_then_on() -> None:
    hide_words(["server", "--api-key", "hunter-one", "--password=hunter-two", "Authorization: Bearer hunter-three"])
    hide_words(["sh", "-c", "MY_KEY='my four' server --token hunter-five", "https://me:hunter-six@host"])
    hide_variables({"A_SECRET": "hunter-seven", "ARGS": "--hf-token hunter-eight", "PLACE": "/hunter-none"})
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "none"]
    said = redacted(" ".join(f"[hunter-{word}]" for word in words).replace("hunter-four", "my four"))
    assert said == " ".join(["[***]"] * 8 + ["[hunter-none]"])


def test_plain_data_keeps_its_shape() -> None:
    hide(["hunter2"])
    assert redacted_plain({"a": ["hunter2", 1, None], "b": {"c": "x hunter2"}}) == {
        "a": ["***", 1, None], "b": {"c": "x ***"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "part", ["key", 'key = "', "key=", "key ", "://", "@://a", "Bearer ", "sk-", "eyJaaaaaaaa.", " "]
)
def test_a_text_takes_time_by_its_length(part: str) -> None:
    """Three hundred thousand of anything: what is quadratic would not end."""
    redacted(part * 300_000)


def test_structure_of_json_behind_such_a_name_is_no_secret() -> None:
    text = '{"api_key": {"type": "string"}, "password": ["a", {"b": 1}]}'
    assert redacted(text) == text
    assert redacted('{"api_key": "{abcdef}"}') == '{"api_key": "***"}'
