"""Keys and passwords, kept out of all that is written: reports, bundles, journals and messages.

A secret is known by its value (of a variable whose name says so), by the name in front of it, or by its issuer's
form.
"""

import html
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

MASK = "***"  # in the place of a secret

_SHORTEST = 6  # characters of a value that is looked for in texts; a shorter one stands in words that are no secrets
_ALWAYS = {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey", "apikeys"}
_LAST = _ALWAYS | {"key", "keys", "token", "pass", "pwd", "pat", "jwt", "cookie", "auth"}
_READ = {"bos", "cls", "eos", "first", "image", "last", "mask", "max", "min", "next", "pad", "sep", "stop", "unk"}
"""Words before ``token``: those that a model reads."""
_PLACES = {"dir", "file", "folder", "name", "path"}
_NO_SECRETS = {"", MASK, "none", "null", "true", "false", "empty"}
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_ISSUED = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|nvapi-[\w-]{16,}|A(?:KI|SI)A[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
_USER = re.compile(r"(?<=://)[^\s/?#@\"'<>]+(?=@)")
_BEARER = re.compile(r"(?<![\w-])((?:Bearer|Basic)\s+)[\w.~+/=-]{6,}")
_QUOTE = r"""(?:\\?["']|&(?:quot|apos|\#x27|\#39|\#34);)"""
_NAME_ENDS = re.compile(  # the first class is for speed: most characters of a text begin none of the words
    r"(?=[kKtTsSpPjJcCaA])(?i:keys?|token|secrets?|passw(?:or)?d|passphrase|pass|pwd|pat|jwt|cookie|auth|credentials?)"
    r"\d*(?=[\s=:\"'\\&])"
)
_SIGN = re.compile(rf"{_QUOTE}?\s*=\s*|{_QUOTE}\s*:\s*|\s*:\s*(?={_QUOTE})|\s+(?!-)")
_VALUE = re.compile(rf"""'[^'\n]*'|"[^"\n]*"|{_QUOTE}?(?:(?!{_QUOTE})[^\s,;)}}\]<>])+""")
_LONGEST_NAME = 80
_CERTAIN = re.compile(
    r"(?:\w+[_-])?(?:(?:access|account|admin|api|auth|client|encryption|github|hf|hub|master|private|refresh|secret|service"
    r"|session|signing)[_-]?(?:keys?|token)|api_?keys?|secret|password|passwd|passphrase)",
    re.IGNORECASE,
)
"""Names that say so wherever they stand; ``key``, ``pass`` and ``token`` have other meanings here."""

_known: set[str] = set()


def names_secret(name: str) -> bool:
    """Return True if the name of a variable or of a flag says that its value is a secret."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    if not parts or name in ("PWD", "OLDPWD"):
        return False
    if parts[-1] == "token" and len(parts) > 1 and parts[-2] in _READ:
        return False
    return parts[-1] in _LAST or (parts[-1] not in _PLACES and not _ALWAYS.isdisjoint(parts))


def hide(values: Iterable[str | None]) -> None:
    """Know some values as secrets, for all that this process writes from now on."""
    _known.update(value for value in values if value and _can_be_looked_for(value))


def hide_variables(variables: Mapping[str, str]) -> None:
    """Know those values whose variable's name says that it is a secret, and what the others hold of such."""
    for name, value in variables.items():
        if names_secret(name):
            hide([value])
        else:
            hide_words(split_words(value))


def hide_words(words: Sequence[str]) -> None:
    """Know the secrets among the words of a command, and in commands that are words of it."""
    hide(_secrets_in(words))


def split_words(text: str) -> list[str]:
    """The words of a command, as a shell would have them where it could."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def variables_without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables as they may be written."""
    return {name: MASK if names_secret(name) else redacted(value) for name, value in variables.items()}


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command as they may be written."""
    before = ["", *words][: len(words)]
    named = [
        each.startswith("-") and names_secret(each) and not word.startswith("-")
        for each, word in zip(before, words, strict=True)
    ]
    return [MASK if each else redacted(word) for each, word in zip(named, words, strict=True)]


def redacted(text: str) -> str:
    """The text with every secret masked."""
    known = [_known, {value for name, value in os.environ.items() if names_secret(name) and _can_be_looked_for(value)}]
    if values := {form for each in known for value in each for form in _forms(value) if form in text}:
        longest_first = sorted(values, key=len, reverse=True)
        text = re.sub("|".join(map(re.escape, longest_first)), MASK, text)
    text = _USER.sub(MASK, _ISSUED.sub(MASK, text)) if "@" in text else _ISSUED.sub(MASK, text)
    return _without_named(_BEARER.sub(rf"\g<1>{MASK}", text))


def redacted_plain(value: Any) -> Any:
    """Plain data, as of JSON, with every text in it as :func:`redacted` has it."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: redacted_plain(each) for key, each in value.items()}
    return [redacted_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _can_be_looked_for(value: str) -> bool:
    """Return False for a value that texts and numbers hold for other reasons."""
    return len(value) >= _SHORTEST and not value.isdigit() and value.lower() not in _NO_SECRETS


def _forms(value: str) -> set[str]:
    return {value, json.dumps(value)[1:-1], html.escape(value), html.escape(value, quote=False), quote(value, safe="")}


def _without_named(text: str) -> str:
    """The text without values that stand behind a name that says what they are."""
    parts, done = list[str](), 0
    for ends in _NAME_ENDS.finditer(text):
        sign = _SIGN.match(text, ends.end()) if ends.start() >= done else None
        if sign is None or not _says_so(_name_before(text, ends), sign[0]):
            continue
        value = _VALUE.match(text, sign.end())
        if value is None or value[0].strip("\"'\\").lower() in _NO_SECRETS:
            continue
        if ":" in sign[0] and value[0][0] in "{[":  # of JSON: what is in there has names of its own
            continue
        quotes = re.match(_QUOTE, value[0])
        closing = value[0][-1] if quotes and len(value[0]) > 1 and value[0][-1] in "\"'" else ""
        parts += [text[done : value.start()], quotes[0] if quotes else "", MASK, closing]
        done = value.end()
    return "".join([*parts, text[done:]])


def _name_before(text: str, ends: re.Match[str]) -> str:
    start = ends.start()
    while start > max(0, ends.start() - _LONGEST_NAME) and (text[start - 1].isalnum() or text[start - 1] in "_-"):
        start -= 1
    return text[start : ends.end()]


def _says_so(name: str, sign: str) -> bool:
    """Return True if what follows a name and a sign is a secret: of a flag, of a variable, or of any other name."""
    if name.startswith("-"):
        return ":" not in sign and names_secret(name)
    if name.isupper() and "=" in sign:
        return names_secret(name)
    return not sign.isspace() and _CERTAIN.fullmatch(name) is not None


def _secrets_in(words: Sequence[str]) -> Iterator[str]:
    for word, after in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if equals and names_secret(name):
            yield value
        elif word.startswith("-") and names_secret(word) and not after.startswith("-"):
            yield after
        if user := _USER.search(word):
            yield user[0]
            yield user[0].partition(":")[2]
        if bearer := re.search(r"(?:Bearer|Basic)\s+(\S+)", word):
            yield bearer[1]
        if any(map(str.isspace, word)):
            yield from _secrets_in(split_words(word))
