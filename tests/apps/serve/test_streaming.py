"""Streams at the pace of who reads them."""

from __future__ import annotations

import asyncio

from specdebug.apps.serve.served import ServedRequest, Wish
from specdebug.apps.serve.streaming import Piece, PiecewiseRequest, merged
from specdebug.apps.serve.text import GrowingText, ModelText


def streamed(rid: str) -> PiecewiseRequest:
    request = ServedRequest(Wish(rid, [1], {"max_new_tokens": 9}), rid)
    return PiecewiseRequest(request, GrowingText(ModelText("tiny")), lambda piece: repr((rid, piece.since)).encode())


def grow(stream: PiecewiseRequest, *ids: int) -> None:
    stream.request.output_ids += ids
    stream.request.tell()


def test_what_comes_while_none_reads_is_one_event() -> None:
    async def main() -> None:
        made: list[Piece] = []
        request = ServedRequest(Wish("a", [1], {"max_new_tokens": 9}), "a")

        def make(piece: Piece) -> bytes:
            made.append(piece)
            return b"event"

        stream = PiecewiseRequest(request, GrowingText(ModelText("tiny")), make)
        grow(stream, 5)
        events = merged([stream], print)
        assert await anext(events) == b"event"
        for token in range(6, 1000):
            grow(stream, token)
        assert len(made) == 1, "none is made that is not asked for"
        await anext(events)
        assert [piece.since for piece in made] == [0, 1]
        request.end(reason="length")
        assert [each async for each in events] == [b"event"]
        assert [piece.since for piece in made] == [0, 1, 995]

    asyncio.run(main())


def test_streams_of_one_body_come_as_they_grow_and_end_apart() -> None:
    async def main() -> None:
        one, two = streamed("one"), streamed("two")
        events = merged([one, two], print)
        grow(one, 5)
        grow(two, 6, 7)
        assert [await anext(events), await anext(events)] == [b"('one', 0)", b"('two', 0)"]
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not coming.done()
        two.request.end(reason="length")
        assert await coming == b"('two', 2)"
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        grow(one, 8)
        assert await coming == b"('one', 1)"
        one.request.end(rejected="no")
        assert (await anext(events)).startswith(b'data: {"object":"error"')

    asyncio.run(main())


def test_an_error_of_ours_ends_one_stream_and_is_said() -> None:
    async def main() -> None:
        said: list[str] = []

        def make(piece: Piece) -> bytes:
            raise KeyError("ours")

        request = ServedRequest(Wish("a", [1], {"max_new_tokens": 9}), "a")
        bad, good = PiecewiseRequest(request, GrowingText(ModelText("tiny")), make), streamed("b")
        for each in (bad, good):
            grow(each, 5)
            each.request.end(reason="length")
        error, last = [each async for each in merged([bad, good], said.append)]
        assert b"internal error: KeyError" in error
        assert last == b"('b', 0)"
        assert "KeyError: 'ours'" in said[0]

    asyncio.run(main())
