"""Words in names: the same in every run, short, and safe."""

import pytest

from specdebug.logs.rule import asserted_in, expression_of, message_of


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("shape '[12, -1, 64, 128]' is invalid for input of size 106496", "shape # is invalid for input of size #"),
        ("'chatcmpl-8f3ab1c2d3'", "chatcmpl-#"),
        ("'NoneType' object has no attribute 'draft_token'", "NoneType object has no attribute draft_token"),
        ("got 17 of 18 at 0x7ffe01", "got # of # at #"),
        ("429 Client Error for url: https://host/a?b=1", "# Client Error for url: URL"),
        ("no request 3f2a7c1e-1234-4bcd-9abc-0123456789ab", "no request #"),
        ("cannot read /data/models/abc/config.json", "cannot read config.json"),
        ("tokens [1, 2, 3] and [4]", "tokens (#) and (#)"),
        ("", ""),
    ],
)
def test_what_varies_in_a_message_is_left_out(message: str, words: str) -> None:
    assert message_of(message.encode()) == words


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("assert request.num_output_placeholders >= 0", "num_output_placeholders>=#"),
        ("assert (a.b == c.d), f'x {y}'", "b==d"),
        ("assert tokens.size() <= block  # why", "tokens.size()<=block"),
        ("assert len(self.reqs) == lens.shape[0], (1, 2)", "len(reqs)==lens.shape(#)"),
        ("assert x is not None", "x is not None"),
        ("self.assertGreater(a, b)", ""),
        ("assertion = 1", ""),
    ],
)
def test_an_asserted_expression_has_no_owners_and_no_message(statement: str, words: str) -> None:
    assert expression_of(asserted_in(statement.encode())) == words
