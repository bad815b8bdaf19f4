"""Multi-layer MTP: the text is the target's, and draft KV and drafts are those of the layers over the whole text."""

import json
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.base.attention_plans import SHIPPED
from specdebug.base.errors import InvalidOption
from specdebug.engine import Engine
from specdebug.engine.errors import EngineError
from specdebug.engine.textbook.request import Request, Status
from specdebug.reference.draft import mtp_draft, mtp_kv
from specdebug.reference.target import target_forward
from specdebug.reference.weights import load_draft, load_weights
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, merged, run
from tests.engine.oracle import NEAR_TIE
from tests.tolerance import layers_rounding

PROMPTS = [[3, 7, 1], [5], [2, 9, 2, 9, 2, 9, 4, 11, 6, 1, 8], [4, 4]]


def engine(lab: Lab, layers: int = 3, *, chained: bool = False, **changes: Any) -> Engine:
    speculative = {"algorithm": "MTP", "draft_model": str(lab.next_n(layers, chained=chained)), "num_steps": layers}
    base = {
        "model": str(lab.target),
        "context_length": 64,
        "max_running_requests": 4,
        "cuda_graph": {"max_bs": 4, "capture_bs": [2, 4]},
        "memory": {"num_slots": 512, "fill": "nan", "guards": True},
        "speculative": speculative,
    }
    return build(merged(base, changes))


class Dense:
    """The reference's layers of a checkpoint over whole texts."""

    def __init__(self, lab: Lab, layers: int = 3, *, chained: bool = False) -> None:
        folder = lab.next_n(layers, chained=chained)
        self.weights, self.target = load_weights(lab.target)
        self.head: Any = load_draft(folder, self.weights, self.target)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.depth = lab.model.config.num_hidden_layers + layers

    @torch.no_grad()
    def check(self, served: Engine, request: Request) -> None:
        """What a running request holds for its drafts, against the layers over its whole text."""
        ids = torch.tensor(request.all_ids)
        hidden = target_forward(self.weights, self.target, ids)[1]
        rounding = layers_rounding(self.config, len(ids), times=self.depth)
        found = served.draft_kv(request, 0, request.kv_len)
        for index, written in enumerate(mtp_kv(self.head, ids, hidden)):
            settled = min(request.kv_len, max(len(ids) - 1 - index, 0))
            for got, want in zip(found, written, strict=True):
                torch.testing.assert_close(got[index, :settled], want[:, :settled].transpose(0, 1), **rounding)
        drafts = mtp_draft(self.head, ids, hidden[:-1])
        stored = served.draft_state([request]).draft_tokens[0].tolist()
        for ours, theirs, logits in zip(stored, drafts.tokens.tolist(), drafts.logits, strict=True):
            best, next_best = logits.topk(2).values.tolist()
            if best - next_best < NEAR_TIE:
                return  # what follows is drafted from another token
            assert ours == theirs


def serve_checked(lab: Lab, served: Engine, dense: Dense, prompts: list[list[int]], count: int = 12) -> list[Request]:
    """Serve prompts that arrive two steps after one another, and look at every running request after every step."""
    waiting = list(enumerate(prompts))
    steps = 0
    made: list[Request] = []
    while waiting or served.has_work:
        if waiting and steps % 2 == 0:
            n, prompt = waiting.pop(0)
            made.append(served.add_request(f"r{n}", prompt, greedy(count + n)))
        run(served, steps=1)
        steps += 1
        for request in made:
            if request.status is Status.RUNNING:
                dense.check(served, request)
    for request in made:
        lab.oracle.check(request.prompt_ids, request.output_ids, request.sampling.max_new_tokens, ())
    return made


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize("graphs", [False, True])
def test_drafts_are_those_of_the_layers_over_the_whole_text(
    lab: Lab, recording: None, layers: int, chained: bool, graphs: bool
) -> None:
    served = engine(lab, layers, chained=chained, cuda_graph={"enabled": graphs})
    made = serve_checked(lab, served, Dense(lab, layers, chained=chained), PROMPTS)
    longest = max(length for request in made for length in request.accept_lengths)
    assert longest >= 3 if chained else longest == layers + 1


@pytest.mark.parametrize("chunk", [1, 2, 4, 5])
@pytest.mark.parametrize("chained", [False, True])
def test_a_chunk_ends_with_the_prompts_own_tokens_and_what_they_do_not_settle_is_done_again(
    lab: Lab, recording: None, chunk: int, chained: bool
) -> None:
    served = engine(lab, 3, chained=chained, chunked_prefill_size=chunk, page_size=4)
    serve_checked(lab, served, Dense(lab, chained=chained), PROMPTS, count=6)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("plan", [plan.name for plan in SHIPPED])
def test_a_hit_takes_only_what_no_later_token_changes(lab: Lab, recording: None, page_size: int, plan: str) -> None:
    served = engine(lab, 3, page_size=page_size, attention_backend=plan)
    trunk = [2, 9, 2, 9, 2, 9, 4, 11, 6, 1, 8, 3, 3, 5, 7, 10]
    dense = Dense(lab)
    hits = []
    for rest in ([1], [1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 9]):
        (request,) = serve_checked(lab, served, dense, [[*trunk, *rest]], count=5)
        hits.append(request.cached_tokens)
        served.forget_finished()
    # a slot is shared by prompts that agree on the three tokens after it
    shared = [0, 17 - 3, 18 - 3, 19 - 3]
    assert hits == [count // page_size * page_size for count in shared]


def test_a_step_may_be_begun_before_its_tokens_are_read(lab: Lab, recording: None) -> None:
    texts = []
    for ahead in (False, True):
        served = engine(lab, 3)
        served.view.eagle.drafts_ahead = ahead
        requests = [served.add_request(f"r{n}", prompt, greedy(8 + 3 * n)) for n, prompt in enumerate(PROMPTS)]
        run(served)
        texts.append([(request.output_ids, request.accept_lengths) for request in requests])
    assert texts[0] == texts[1]
    assert async_probe.drain() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 2}, r"speculative\.num_steps: must be 3, one for each layer of .*, got 2"),
        ({"eagle_topk": 2, "num_draft_tokens": 4}, r"speculative\.eagle_topk: must be 1 with algorithm MTP"),
        ({"num_draft_tokens": 3}, r"speculative\.num_draft_tokens: must be num_steps \+ 1 = 4"),
    ],
)
def test_a_step_that_the_layers_cannot_make_is_refused(lab: Lab, options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        engine(lab, 3, speculative=options)


def test_tools_that_ask_for_a_heads_state_are_told_that_there_is_none(lab: Lab) -> None:
    served = engine(lab, 3)
    assert served.view.draft_vocab_size == lab.vocab
    with pytest.raises(EngineError, match="no graph runner"):
        served.view.buffers("draft")
