"""The greedy text of a server without drafts as what is right."""

from __future__ import annotations

from typing import Any

from specdebug.events import Finishing
from specdebug.run.oracles.lossless import TIE_MARGIN, judge_output
from tests.heard import Heard
from tests.targets.http.fake import FakeServer, serving
from tests.targets.http.opened import add, drain, opened


def judged(settings: dict[str, Any], **switches: Any) -> Any:
    with serving(FakeServer(**switches)) as fake:
        if "plain" in settings:
            settings = {**settings, "plain": fake.url}
        session = opened(fake, **settings)
        add(session, "a", tokens=6)
        drain(session)
        request, reference = session.request("a"), session.reference
        assert reference is not None
        found = judge_output(reference, request.prompt_ids, request.output_ids, TIE_MARGIN["float32"])
        told = judge_output(reference, request.prompt_ids, request.output_ids, TIE_MARGIN["bfloat16"])
        session.close(True)
    return found, told, fake


def test_a_wrong_token_is_named_and_what_follows_is_judged_as_it_was_emitted() -> None:
    found, told, _ = judged({}, wrong_from=2)
    assert found.wrong == told.wrong == (2,)
    assert (found.choices[2], found.gaps[2]) == (15, 5.0)


def test_a_second_server_is_asked_without_the_switch() -> None:
    found, _, fake = judged({"plain": True}, switch=False)
    assert found.wrong == ()
    assert not any("speculative" in body for body in fake.served)


def test_a_server_s_own_text_is_asked_for_when_the_workload_is_over() -> None:
    """What it would cache meanwhile could be hit by requests to come."""

    heard = Heard(Finishing)
    with serving(FakeServer()) as fake:
        session = opened(fake)
        session.observers.add(heard)
        add(session, "a")
        drain(session)
        assert heard.events == []
        session.settle()
        assert [event.request.rid for event in heard.events] == ["a"]
        assert fake.flushes == 2
        session.close(True)
