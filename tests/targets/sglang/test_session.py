"""SGLang's sessions over a fake scheduler: what enters it, what each step reports, who is told what in which order, and
how it fails."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.engine.config import SpeculativeConfig
from specdebug.events import BatchBegan, BatchEnded, Decided, Finishing, InVain, Prefilled, StepBegan, StepOver, Stepped
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.base import Asked, Busy, Opening, OverThere
from specdebug.targets.inside import guard
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.requests import CannotBeServed, Lost, NotShown, SessionFailed
from specdebug.targets.sglang import session as module
from specdebug.targets.sglang.build import build
from specdebug.targets.sglang.inside.probes import _NAME, PROBES
from specdebug.targets.sglang.inside.scheduler import Start
from specdebug.targets.sglang.inside.stages import StageSites
from specdebug.targets.sglang.session import SglangSession, _likeliest
from tests.targets.sglang.fake_sglang import EOS, AbortReq, import_fake

SPEC = SpeculativeConfig(num_steps=1, eagle_topk=1, num_draft_tokens=2)
LOGITS = torch.zeros(2, 64, dtype=torch.bfloat16)


class Look:
    """A look at the stages that sees the rows of each request: what is stored is numbered by ``launch``, and drafted
    from so ``late``. ``more``: seen of each verify."""

    def __init__(self) -> None:
        self.scheduler: Any = None
        self.late = 1.0
        self.more: dict[str, Any] = {}
        self._launch = 0

    def begin(self) -> None:
        self._launch += 1

    def _row(self, number: float) -> dict[str, Any]:
        names = ("topk_p", "topk_index", "hidden_states")
        return {"seq_len": 9, "bonus_tokens": torch.tensor(1)} | {name: torch.tensor([number]) for name in names}

    def seen(self) -> dict[str, dict[str, Any]]:
        batch = self.scheduler.now
        if batch.forward_mode.is_extend():
            return {each.rid: {"what": "prefilled", "stored": self._row(self._launch)} for each in batch.reqs}
        tree = {
            name: torch.zeros(2) for name in ("tokens", "positions", "retrieve_next_token", "retrieve_next_sibling")
        }
        event = {"what": "verified", "tree": tree | {"mask": torch.eye(2)}, "logits": LOGITS, "accepted": 2}
        event |= {"predict": torch.tensor([5, 6]), "accept_index": torch.tensor([0, 1]), "coins": None}
        event |= {"forwards": [[torch.tensor([3]), torch.tensor([0]), LOGITS[:1].float()]]}
        stored, stores = self._row(self._launch - self.late), self._row(self._launch)
        return {each.rid: {**event, "stored": stored, "stores": stores, **self.more} for each in batch.reqs}


class Told:
    """Hears some events; keeps for each its name, its request, and how many tokens that had."""

    hears = (Prefilled, Decided, Finishing)

    def __init__(self, at: Callable[[Any], None] = lambda event: None) -> None:
        self.told: list[tuple[str, str, int]] = []
        self.events: list[Any] = []
        self._at = at

    def on(self, event: Any) -> None:
        (request,) = event.requests if isinstance(event, Decided) else [event.request]
        self.told.append((type(event).__name__, request.rid, len(request.output_ids)))
        self.events.append(event)
        self._at(event)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[SglangSession, Any]]]:
    """Builds a fake scheduler; returns a session of it, and that. ``said``: grows by what the session says."""
    import_fake(monkeypatch)
    monkeypatch.setattr(guard, "LOST", lost := [])
    monkeypatch.setattr(module, "LOST", lost)
    monkeypatch.setattr(builtins, _NAME, None, raising=False)
    made: list[SglangSession] = []

    def serving(
        *, look: bool = False, shows: str = "", asked: Asked | None = None, said: list[str] | None = None
    ) -> tuple[SglangSession, Any]:
        built = build(Start.of(["--words"]), RankLayout(), 0, OverThere(), cpu=False, looks=False, states=False)
        if look:
            built.look = Look()  # type: ignore[assignment]
            built.look.scheduler = built.scheduler
        say: Any = lambda event, text: None if said is None else said.append(text)  # noqa: E731
        opening = Opening("a", say, Busy(say))
        session = SglangSession(built, asked or Asked("tiny"), frozenset(shows.split()), SPEC, opening)  # type: ignore[arg-type]
        made.append(session)
        return session, built.scheduler

    yield serving
    for each in made:
        each.close(True)


def add(session: SglangSession, rid: str, *prompt: int, most: int = 6, **more: Any) -> None:
    session.add(rid, prompt, RequestSampling(most, **more), speculative=True)


def ran(session: SglangSession) -> list[Stepped]:
    """The steps until there is no work."""
    steps = []
    while session.has_work:
        steps.append(session.advance())
        assert len(steps) < 20
    return steps


def test_a_scheduler_is_built_by_its_command_line_and_what_has_no_place_is_lost(serve: Any) -> None:
    session, scheduler = serve()
    assert (scheduler.words.words, scheduler.ranks, session.vocab_size) == (["--words"], (0, 0, None), 64)
    assert [(each.what, each.stand_in) for each in session.lost()] == [(PROBES, False)]


def test_requests_arrive_at_the_next_step_as_the_tokenizer_s(serve: Any) -> None:
    session, scheduler = serve()
    add(session, "a", 1, 2)
    assert (session.has_work, scheduler.arrived) == (True, [])
    session.advance()
    add(session, "b", 3, temperature=0.5, top_p=0.9)
    session.advance()
    a, b = scheduler.arrived
    assert (a.rid, list(a.input_ids), a.stream, a.return_logprob, a.lora_id) == ("a", [1, 2], True, False, None)
    assert (a.sampling_params.max_new_tokens, a.sampling_params.ignore_eos) == (6, True)
    assert (a.sampling_params.tokenizer, b.sampling_params.top_p) == ("the tokenizer", 0.9)


def test_each_step_tells_what_was_decided_in_it(serve: Any) -> None:
    session, _ = serve()
    add(session, "a", 1, 2, most=5)
    add(session, "b", 7, 8, 9, 10, 11, most=2)
    prefill, first, second = ran(session)
    assert prefill == Stepped(1, "prefill", ("a", "b"), {"a": [3], "b": [12]}, {}, {"b": 4})
    assert first == Stepped(2, "decode", ("a", "b"), {"a": [4, 5], "b": [13]}, {"a": 2, "b": 2}, {}, ("b",))
    assert second == Stepped(3, "decode", ("a",), {"a": [6, 7]}, {"a": 2}, {}, ("a",))
    a, b = session.request("a"), session.request("b")
    assert (a.output_ids, a.accept_lengths, a.finish_reason, a.kv_len) == ([3, 4, 5, 6, 7], [2, 2], "length", 6)
    assert (b.output_ids, b.cached_tokens, b.all_ids) == ([12, 13], 4, [7, 8, 9, 10, 11, 12, 13])
    assert session.advance() == Stepped(4, "idle")


def test_where_launches_overlap_a_step_is_of_the_batch_whose_results_it_takes(serve: Any) -> None:
    session, scheduler = serve()
    scheduler.overlaps = True
    add(session, "a", 1, 2, most=3)
    steps = ran(session)
    assert [(each.kind, each.rids, each.emitted, each.finished) for each in steps] == [
        ("idle", (), {}, ()),
        ("prefill", ("a",), {"a": [3]}, ()),
        ("decode", ("a",), {"a": [4, 5]}, ("a",)),
    ]
    assert scheduler.batches == 3, "a batch was launched before it was known that the request ends"
    assert session.advance() == Stepped(4, "decode"), "its results are of no request"
    assert session.request("a").accept_lengths == [2]


def test_a_stop_token_ends_the_output_and_the_model_s_own_is_one_of_the_request_s(serve: Any) -> None:
    session, _ = serve()
    add(session, "a", EOS - 2, stop_token_ids=(99,))
    assert [each.emitted["a"] for each in ran(session)] == [[EOS - 1], [EOS]]
    request = session.request("a")
    assert (request.finish_reason, request.matched_stop, request.output_ids[-1]) == ("stop", EOS, EOS)
    assert request.sampling.stop_token_ids == (99, EOS)


def test_a_request_that_is_taken_out_of_the_batch_is_told_and_goes_on(serve: Any) -> None:
    session, scheduler = serve()
    add(session, "a", 1, 2, most=5)
    add(session, "b", 3, most=8)
    scheduler.acts[3] = lambda: scheduler.retract("a")
    steps = ran(session)
    assert [each.retracted for each in steps] == [(), (), ("a",), *[()] * (len(steps) - 3)]
    assert (steps[2].rids, steps[3].kind, steps[3].rids) == (("b",), "prefill", ("a",))
    assert session.request("a").output_ids == [3, 4, 5, 6, 7]


def test_what_comes_of_an_aborted_request_counts_for_nothing(serve: Any) -> None:
    session, scheduler = serve(look=True)
    session.observers.add(told := Told())
    add(session, "a", 1, 2)
    session.advance()
    session.abort("a")
    request = session.request("a")
    assert (session.has_work, request.finish_reason, request.output_ids) == (False, "abort", [3])
    assert session.advance() == Stepped(2, "decode")
    assert isinstance(scheduler.arrived[-1], AbortReq)
    assert (request.finish_reason, request.output_ids, scheduler.running) == ("abort", [3], [])
    assert [name for name, *_ in told.told] == ["Prefilled"], "an abort is not told"


def test_a_declined_request_is_the_user_s_to_mend(serve: Any) -> None:
    session, _ = serve()
    add(session, "long", *range(40))
    with pytest.raises(CannotBeServed, match="declined by the engine: the prompt is too long") as declined:
        session.advance()
    assert declined.value.rid == "long"


def test_a_request_that_the_engine_aborts_while_it_serves_it_is_a_failure(serve: Any) -> None:
    session, scheduler = serve()
    add(session, "a", 1, most=20)
    scheduler.acts[2] = lambda: setattr(scheduler.running[0], "to_abort", True)
    with pytest.raises(SessionFailed, match="a was aborted by the engine while it was served") as failed:
        ran(session)
    assert failed.value.site == "engine.abort"


def test_a_prompt_that_leaves_drafts_no_room_is_declined_as_by_the_tokenizer(serve: Any) -> None:
    session, _ = serve(asked=Asked("tiny", context_length=8))
    with pytest.raises(CannotBeServed, match="have 8 tokens, drafts the rest; the prompt has 8"):
        add(session, "a", *range(8))


def test_outputs_end_with_the_context_and_that_is_said_once(serve: Any) -> None:
    session, _ = serve(asked=Asked("tiny", context_length=8), said=(said := []))
    for rid in "ab":
        session.add(rid, (1, 2, 3, 4, 5), RequestSampling(9), speculative=False)
    add(session, "c", 1, most=6)
    assert [session.request(rid).sampling.max_new_tokens for rid in "abc"] == [3, 3, 6]
    assert [text.partition(" ")[0] for text in said] == ["this", "outputs"]


def test_oracles_are_told_of_a_request_in_its_order(serve: Any) -> None:
    session, _ = serve(look=True)
    session.observers.add(told := Told())
    add(session, "a", 1, 2, most=4)
    add(session, "one", 3, most=1)
    ran(session)
    assert told.told == [
        ("Prefilled", "one", 1), ("Finishing", "one", 1), ("Prefilled", "a", 1), ("Decided", "a", 1),
        ("Decided", "a", 3), ("Finishing", "a", 4),
    ]  # fmt: skip
    decided = next(each for each in told.events if isinstance(each, Decided))
    assert (decided.logits.dtype, decided.tokens.shape, decided.mask.shape) == (torch.float32, (1, 2), (1, 2, 2))
    assert (decided.num_correct_drafts.tolist(), decided.accept_index.tolist()) == ([1], [[0, 1]])
    assert (decided.num_steps, decided.topk, decided.coins) == (1, 1, None)


def test_a_request_stores_what_it_was_drafted_from_while_a_verify_is_judged_and_then_what_comes_next(
    serve: Any,
) -> None:
    rows: list[float] = []
    session, _ = serve(look=True)
    session.observers.add(Told(lambda event: rows.append(stored()) if isinstance(event, Decided) else None))

    def stored() -> float:
        return float(session.draft_state([session.request("a")]).topk_index)

    add(session, "a", 1, 2, most=5)
    with pytest.raises(NotShown):
        stored()
    session.advance()
    assert stored() == 1.0
    session.advance()
    session.advance()
    assert (rows, stored()) == ([1.0, 2.0], 3.0)


def test_a_request_drafts_from_what_it_stored_and_goes_on_as_long_as_it_is(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "violated", lambda scheduler, ended: [])
    session, _ = serve(look=True, shows="pools")
    session._look.late, session._look.more = 0.5, {"told_length": 12}
    add(session, "a", 1, 2, most=4)
    session.advance()
    assert session.check_pools() == []
    session.advance()
    assert session.check_pools() == [
        "relay: a drafts from another topk_p than it stored",
        "lengths: a goes on with the length 12 after a verify that made it 11",
    ]


def test_kv_is_shown_while_slots_are_held_and_at_the_end_the_last_time(serve: Any) -> None:
    shapes: list[Any] = []
    session, scheduler = serve(look=True)
    session.observers.add(Told(lambda event: shapes.append(kv())))
    scheduler.req_to_token_pool.req_to_token[1, :4] = torch.tensor([4, 5, 8, 9])
    for layer, keys in enumerate(scheduler.token_to_kv_pool_allocator.get_kvcache().k_buffer):
        keys[:] = torch.arange(len(keys))[:, None, None] + 100 * layer

    def kv() -> list[Any]:
        request = session.request("a")
        (keys, values), (draft, _) = session.target_kv(request, 1, 3), session.draft_kv(request, 0, 3)
        assert (values.shape, draft.shape) == ((2, 2, 1, 4), (1, 3, 1, 4))
        return keys[:, :, 0, 0].tolist()

    add(session, "a", 1, 2, 3, most=2)
    with pytest.raises(NotShown):
        kv()
    ran(session)
    assert shapes == [[[5.0, 8.0], [105.0, 108.0]]] * 3
    with pytest.raises(NotShown):
        kv()


def test_nothing_inside_is_shown_that_is_not_looked_at(serve: Any) -> None:
    session, _ = serve()
    add(session, "a", 1, 2)
    session.advance()
    with pytest.raises(NotShown):
        session.target_kv(session.request("a"), 0, 1)


def test_faults_are_told_of_batches_and_see_what_runs(serve: Any) -> None:
    session, scheduler = serve()
    inside, told = session.inside, []

    class Faults:
        hears = (StepBegan, BatchBegan, BatchEnded, StepOver)

        def on(self, event: Any) -> None:
            running = [each.rid for each in inside.view.running]
            told.append((type(event).__name__, getattr(event, "kind", getattr(event, "step", None)), running))

    inside.observers.add(Faults())
    add(session, "a", 1, 2)
    session.advance()
    assert told == [
        ("StepBegan", 1, ["a"]), ("BatchBegan", "prefill", ["a"]), ("BatchEnded", "prefill", ["a"]),
        ("StepOver", None, ["a"]),
    ]  # fmt: skip
    del told[:]
    scheduler.acts[2] = lambda: 1 // 0
    with pytest.raises(SessionFailed):
        session.advance()
    assert [name for name, *_ in told] == ["StepBegan", "BatchBegan", "BatchEnded"]


def test_a_recorder_is_told_of_rows_sites_and_what_was_in_vain(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sites, told, passed = StageSites(), list[Any](), list[str]()
    monkeypatch.setattr(module, "record", lambda: sites)
    session, scheduler = serve()
    scheduler.overlaps = True

    class Recorder:
        hears = (BatchBegan, InVain)

        def on(self, event: Any) -> None:
            told.append(event)

    session.record()
    inside = session.inside
    inside.observers.add(Recorder())
    inside.sites.hear = lambda site, tensor: passed.append(site)
    scheduler.acts[1] = lambda: sites.add("target_prefill.input_ids", torch.zeros(2))
    add(session, "a", 7, 2, 3, 4, 5, 6, most=3)
    add(session, "b", 1, 2, most=5)
    ran(session)
    sites.add("verify.logits", torch.zeros(2))
    assert passed == ["target_prefill.input_ids"], "between two batches nothing passes that counts"
    assert (told[0].kind, told[0].lens, told[0].starts) == ("prefill", (2, 2), (4, 0))
    assert [(event.step, event.rids) for event in told if isinstance(event, InVain)] == [(3, ("a",))]
    session.close(True)
    assert [(event.step, event.rids) for event in told[-1:]] == [(4, ("b",))], "of a batch whose results nothing took"


def test_each_broken_law_is_a_problem_once(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = serve(shows="pools")
    broken: list[list[str]] = [[], ["rows: one"], ["rows: one", "locks: two"]]
    monkeypatch.setattr(module, "violated", lambda scheduler, ended: broken[scheduler.batches - 1])
    add(session, "a", 1, 2, most=5)
    found = []
    while session.has_work:
        session.advance()
        found.append([*session.check_pools()])
    assert found == [[], ["rows: one"], ["locks: two"]]


def test_a_flush_waits_for_results_that_are_on_their_way(serve: Any) -> None:
    session, scheduler = serve()
    scheduler.waits = 2
    session.flush_cache()
    assert scheduler.flushed == 0, "its loop has not begun, so nothing is cached"
    add(session, "a", 1, 2, most=3)
    ran(session)
    session.flush_cache()
    assert scheduler.flushed == 3
    scheduler.waits = 99
    with pytest.raises(SessionFailed, match="does not come to rest") as failed:
        session.flush_cache()
    assert failed.value.site == "scheduler.flush_cache"


PLACE = "/env/lib/python3.11/site-packages/sglang/srt/managers/schedule_batch.py"


def in_sglang(source: str) -> Callable[[], None]:
    """A function of SGLang's, by its traceback."""
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(f"def prepare_for_decode():\n    {source}\n", PLACE, "exec"), scope)
    function: Callable[[], None] = scope["prepare_for_decode"]
    return function


def failing(serve: Any, act: Callable[[], None]) -> SglangSession:
    session: SglangSession
    session, scheduler = serve()
    scheduler.acts[2] = act
    add(session, "a", 1, 2)
    session.advance()
    return session


@pytest.mark.parametrize(
    ("source", "kind", "site"),
    [
        ("raise ValueError('no  more\\n rows')", "error", "server.error.ValueError.schedule_batch.prepare_for_decode"),
        ("assert False, 'rows must be equal'", "assert", "server.rows-must-be-equal"),
    ],
)
def test_an_exception_of_the_engine_s_fails_the_session_by_the_name_that_a_log_has(
    source: str, kind: str, site: str, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    session = failing(serve, in_sglang(source))
    with pytest.raises(SessionFailed) as failed:
        session.advance()
    assert (failed.value.kind, failed.value.site) == (kind, site)
    assert "\n" not in str(failed.value)
    assert PLACE in capsys.readouterr().err


def test_what_a_probe_asserts_and_a_lost_device_are_told_as_they_are(serve: Any) -> None:
    async_probe.configure("assert")
    try:
        session = failing(serve, lambda: async_probe.maybe_detect_nan(torch.tensor(float("nan")), "draft.logits"))
        with pytest.raises(RuntimeError) as raised:
            session.advance()
    finally:
        async_probe.configure("off")
    told = async_probe.parse_message(str(raised.value))
    assert told is not None
    assert told.signature == "nan@draft.logits"
    lost = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    session = failing(serve, lambda: throw(lost))
    with pytest.raises(torch.AcceleratorError) as gone:
        session.advance()
    assert gone.value is lost


def throw(error: Exception) -> None:
    raise error


def test_a_loop_that_ends_by_itself_is_a_failure(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session, scheduler = serve()
    monkeypatch.setattr(scheduler, "run_event_loop", lambda: None)
    with pytest.raises(SessionFailed, match="ended by itself"):
        session.advance()


def test_losses_are_told_once(serve: Any) -> None:
    session, _ = serve()
    module.LOST.extend([Lost("graphs", "gone", "", True)] * 2)
    assert [each.what for each in session.lost()] == [PROBES, "graphs"]


def test_log_probabilities_that_fit_no_tokens_are_the_engine_s_failure() -> None:
    assert _likeliest("a", [7, 8], [-0.5, -1.5]) == {7: -0.5, 8: -1.5}
    with pytest.raises(SessionFailed, match=r"a was told 1 log probabilities of 2 tokens") as failed:
        _likeliest("a", [7, 8], [-0.5])
    assert failed.value.site == "logprobs.likeliest"
