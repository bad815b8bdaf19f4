"""The life of requests: what is refused, how they end, what they leave behind, and the corners of all sizes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine import Engine
from specdebug.engine.errors import RequestRejected
from specdebug.events import Finishing
from specdebug.targets.laws import broken_laws
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run, serve
from tests.heard import Heard

BACKENDS = tuple(plan.name for plan in SHIPPED)
SHAPES = {
    "plain": None,
    "chain": {"num_steps": 4, "eagle_topk": 1},
    "tree": {"num_steps": 3, "eagle_topk": 3, "num_draft_tokens": 10},
    "one-step-chain": {"num_steps": 1, "eagle_topk": 1},
    "one-step-tree": {"num_steps": 1, "eagle_topk": 4, "num_draft_tokens": 3},
    "small-tree": {"num_steps": 5, "eagle_topk": 2, "num_draft_tokens": 3},
}


def base(lab: Lab, shape: str = "tree", algorithm: str = "EAGLE", **config: Any) -> dict[str, Any]:
    spec = SHAPES[shape]
    return {
        "model": str(lab.target),
        "context_length": 192,
        "memory": {"num_slots": 4096, "fill": "nan", "guards": True},
        "speculative": spec and {"algorithm": algorithm, "draft_model": str(lab.draft(algorithm)), **spec},
        **config,
    }


def prompt_of(lab: Lab, n: int, length: int = 24) -> list[int]:
    return [(3 * i * i + 5 * i + 7 * n + i // 5) % lab.vocab for i in range(length)]


# What is refused.


def test_impossible_requests_are_refused_in_one_line_that_names_them(lab: Lab) -> None:
    engine = build(base(lab, memory={"num_slots": 119}, page_size=1, context_length=100))
    engine.add_request("r0", [1, 2], greedy(4))
    refused = {
        "exists already": ("r0", [1], greedy(1)),
        "empty prompt": ("r1", [], greedy(1)),
        r"outside \[0, 24\)": ("r1", [3, lab.vocab], greedy(1)),
        "outside": ("r1", [-1], greedy(1)),
        "needs 101 positions, context_length is 100": ("r1", [1] * 51, greedy(50)),
        r"needs \d+ KV slots .* memory.num_slots gives 119": ("r1", [1] * 60, greedy(40)),
    }
    for message, (rid, prompt, sampling) in refused.items():
        with pytest.raises(RequestRejected, match=message) as error:
            engine.add_request(rid, prompt, sampling)
        assert repr(rid) in str(error.value)
        assert "\n" not in str(error.value)
        assert error.value.exit_code == 2
    assert list(engine.requests) == ["r0"]
    run(engine)
    lab.oracle.check([1, 2], engine.requests["r0"].output_ids, 4)


def test_a_config_that_contradicts_the_checkpoint_is_refused(lab: Lab) -> None:
    with pytest.raises(InvalidOption, match=r"engine\.context_length: .*4096 positions"):
        build(base(lab, context_length=4096))
    wide = {"num_steps": 1, "eagle_topk": 20, "num_draft_tokens": 4}
    with pytest.raises(InvalidOption, match=r"engine\.speculative\.eagle_topk: 20 exceeds .* 18"):
        build(base(lab, algorithm="EAGLE3"), speculative=wide)
    with pytest.raises(CheckpointError, match="no checkpoint 'nowhere'"):
        build(base(lab, model="nowhere"))


# Corners of all sizes.


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("shape", ["plain", "chain", "tree", "small-tree"])
def test_a_request_may_fill_the_context_to_its_last_position(lab: Lab, shape: str, page_size: int) -> None:
    for backend, length in zip(BACKENDS, (40, 41, 43), strict=True):
        config = base(lab, shape, context_length=length + 24, page_size=page_size, attention_backend=backend)
        engine = build(config, max_running_requests=2, cuda_graph={"max_bs": 2})
        outputs = serve(engine, [prompt_of(lab, n, length) for n in range(3)], 24)
        for n, output in enumerate(outputs):
            lab.oracle.check(prompt_of(lab, n, length), output, 24)


# Stopping.


@pytest.fixture
def lettered(lab: Lab, tmp_path: Path) -> str:
    """The lab's target with a tokenizer, token n being the letter n."""
    folder = shutil.copytree(lab.target, tmp_path / "lettered")
    tokenizer = Tokenizer(models.BPE(vocab={chr(97 + n): n for n in range(lab.vocab)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def test_a_request_with_stop_strings_is_refused_where_no_tokenizer_is(lab: Lab) -> None:
    engine = build(base(lab))
    with pytest.raises(RequestRejected, match=r"'r' has stop strings, and they need a tokenizer: .*tokenizer\.json is"):
        engine.add_request("r", [1, 2], greedy(4, stop=("x",)))
    assert not engine.has_work
    assert not engine.requests


@pytest.mark.parametrize("by", ["token", "string"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_stop_ends_a_request_wherever_in_an_accepted_run_it_lies(
    lab: Lab, lettered: str, shape: str, page_size: int, by: str
) -> None:
    """What a verify committed behind the stop must not be cached: a later prompt that goes on otherwise would
    hit it (issue 35694). So every stopped text is continued, with the same and with other tokens.
    """
    cut_short = 0
    committed: list[int] = []

    def note(event: Finishing) -> None:
        committed.append(event.request.kv_len)

    for n in range(3):
        prompt = prompt_of(lab, n)
        text = lab.oracle.greedy(prompt).tokens
        for stop in dict.fromkeys(text):
            engine = build(base(lab, shape, model=lettered), page_size=page_size)
            stopping = {"stop_token_ids": (stop,)} if by == "token" else {"stop": ("no letters", chr(97 + stop))}
            engine.observers.add(Heard(Finishing, then=note))
            request = engine.add_request("r", prompt, greedy(24, **stopping))
            reports = run(engine)
            assert committed.pop() == len(request.all_ids) - 1
            expected = list(text[: text.index(stop) + 1])
            assert request.output_ids == expected
            assert request.finish_reason == "stop"
            assert request.matched_stop == (stop if by == "token" else chr(97 + stop))
            accepted = reports[-1].accept_lengths.get("r", 1)
            cut_short += len(reports[-1].emitted["r"]) < accepted
            whole = prompt + expected
            cached = engine._cache.radix.total_size
            assert cached <= len(whole) - 1, "a slot is cached only when the token after it was emitted"
            for rid, extra in (("same", list(text[len(expected) :][:3])), ("other", [stop, 1, stop])):
                engine.add_request(rid, whole + extra, greedy(4))
                run(engine)
                assert engine.requests[rid].cached_tokens >= (len(whole) - 1) // page_size * page_size
                lab.oracle.check(whole + extra, engine.requests[rid].output_ids, 4)
    assert cut_short > 1, "no run was cut in the middle"


# Aborting.


@pytest.mark.parametrize(("backend", "page_size"), [("flashinfer", 1), ("fa3", 4), ("triton", 16)])
def test_aborting_at_any_step_frees_everything_and_disturbs_nobody(lab: Lab, backend: str, page_size: int) -> None:
    """Including the retry: the same prompt again right after the abort (issue 23392)."""
    config = base(lab, attention_backend=backend, page_size=page_size, chunked_prefill_size=10)
    prompts = [prompt_of(lab, n, 17 + n) for n in (0, 1, 3)]

    def start() -> Engine:
        engine = build(config, max_running_requests=2)
        for n, prompt in enumerate(prompts):
            engine.add_request(f"r{n}", prompt, greedy(5))
        return engine

    total = len(run(start()))
    for step in range(total + 1):
        for victim in range(3):
            engine = start()
            run(engine, steps=step)
            done = engine.requests[f"r{victim}"].finished
            cached = engine._cache.radix.total_size
            engine.abort(f"r{victim}")
            assert engine._cache.radix.total_size == cached, "its slots are free, not cached"
            assert engine.requests[f"r{victim}"].finish_reason == ("length" if done else "abort")
            assert engine.requests[f"r{victim}"].row == 0
            assert broken_laws(engine) == []
            engine.add_request("retry", prompts[victim], greedy(5))
            run(engine)
            for n, prompt in enumerate(prompts):
                output = engine.requests[f"r{n}"].output_ids
                lab.oracle.check(prompt, output, len(output) if n == victim else 5)
            lab.oracle.check(prompts[victim], engine.requests["retry"].output_ids, 5)
            engine.flush_cache()
            assert engine._memory.allocator.num_free == engine.config.usable_slots


# The prefix cache.


@pytest.mark.parametrize(("limit", "cached"), [(0, 0), (3, 0), (4, 4), (9, 8), (None, 20)])
@pytest.mark.parametrize("speculative", [True, False])
def test_no_more_comes_from_the_cache_than_may(lab: Lab, limit: int | None, cached: int, speculative: bool) -> None:
    engine = build(base(lab), page_size=4)
    prompt = prompt_of(lab, 2)
    for rid in ("first", "again", "whole"):
        own = limit if rid == "again" else None
        engine.add_request(rid, prompt, greedy(8), speculative=speculative, cache_limit=own)
        run(engine)
        lab.oracle.check(prompt, engine.requests[rid].output_ids, 8)
        assert broken_laws(engine) == []
    assert engine.requests["again"].cached_tokens == cached
    assert engine.requests["whole"].cached_tokens == 20


# Memory pressure.


# Steps and what is told of them.


def test_reports_add_up_to_the_outputs(lab: Lab) -> None:
    engine = build(base(lab), max_running_requests=2, chunked_prefill_size=20)
    for n in range(4):
        engine.add_request(f"r{n}", prompt_of(lab, n % 3), greedy(7), speculative=n != 2)
    reports = run(engine)
    assert [report.step for report in reports] == list(range(1, len(reports) + 1))
    assert all(len(report.rids) <= 2 for report in reports if report.kind == "decode")
    for rid, request in engine.requests.items():
        assert [t for report in reports for t in report.emitted.get(rid, [])] == request.output_ids
        assert [rid in report.finished for report in reports].count(True) == 1
        cached = [report.cached[rid] for report in reports if rid in report.cached]
        assert cached == [request.cached_tokens]
    assert engine.requests["r3"].cached_tokens == 23
    idle = engine.step()
    assert (idle.kind, idle.rids, idle.emitted) == ("idle", (), {})


def test_records_of_ended_requests_are_kept_until_they_are_forgotten(lab: Lab) -> None:
    engine = build(base(lab))
    for rid, length in (("done", 3), ("aborted", 20), ("running", 20)):
        engine.add_request(rid, prompt_of(lab, len(rid)), greedy(length))
    while not engine.requests["done"].finished:
        engine.step()
    engine.abort("aborted")
    assert list(engine.requests) == ["done", "aborted", "running"]
    engine.forget_finished()
    assert list(engine.requests) == ["running"]
    engine.add_request("done", prompt_of(lab, 1), greedy(5))
    run(engine)
    lab.oracle.check(prompt_of(lab, 1), engine.requests["done"].output_ids, 5)
    lab.oracle.check(prompt_of(lab, len("running")), engine.requests["running"].output_ids, 20)
