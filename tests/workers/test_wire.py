"""What passes between processes arrives as it was sent, whatever it holds and however it is cut."""

import json
import os
import socket
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdebug.workers.wire import JOB, LineReader, PipeSink, receive, send


def emitted(**fields: Any) -> dict[str, Any]:
    read, out = os.pipe()
    PipeSink(out).emit("e", **fields)
    os.close(out)
    with os.fdopen(read, "rb") as pipe:
        (message,) = LineReader().feed(pipe.read())
    return message


def test_numbers_that_json_has_no_word_for_become_text() -> None:
    message = emitted(a=float("nan"), b=[1.5, float("inf")], c={"d": (float("-inf"), 2)}, e=torch.tensor(3))
    assert message == {"event": "e", "a": "nan", "b": [1.5, "inf"], "c": {"d": ["-inf", 2]}, "e": 3}


def test_an_event_without_a_reader_is_an_error_to_its_writer() -> None:
    read, out = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError):
        PipeSink(out).emit("e")
    os.close(out)


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=3), max_size=6),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_lines_survive_any_cutting(messages: list[dict[str, Any]], cuts: list[int]) -> None:
    stream = b"".join(json.dumps(message).encode() + b"\n" for message in messages) + b'{"torn": '
    reader, got, start = LineReader(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        got += reader.feed(stream[start:cut])
        start = max(start, min(cut, len(stream)))
    assert got == messages


def test_requests_carry_their_payload_and_their_descriptors() -> None:
    here, there = socket.socketpair()
    read, out = os.pipe()
    with here, there:
        send(here, JOB, {"big": "x" * 50_000}, (read, out))
        send(here, JOB, [1, 2])
        tag, payload, fds = receive(there) or (b"", None, [])
        assert (tag, len(payload["big"]), len(fds)) == (JOB, 50_000, 2)
        os.write(fds[1], b"through")
        assert os.read(read, 10) == b"through"
        assert receive(there) == (JOB, [1, 2], [])
        here.close()
        assert receive(there) is None
    for fd in (*fds, read, out):
        os.close(fd)
