"""Stored draft state and drafted trees: mistakes of the engine that are seen, and rounding that is not."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.base.assets import checkpoint_path
from specdebug.engine.model.models import Eagle3Draft
from specdebug.engine.textbook.speculative import tree as selection
from specdebug.engine.textbook.speculative.draft import DraftLoop, ExtendForward
from specdebug.engine.textbook.speculative.eagle import EagleDrafter
from specdebug.engine.textbook.speculative.tree import TreeBuilder, VerifyTree
from specdebug.events import Aborting, AfterStep, Decided, Finishing, Prefilled
from specdebug.reference.draft import AssistantHead, MTPHead, assistant_logits, assistant_pass, frozen_kv, mtp_draft
from specdebug.run.dense import DenseReference
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.draft_state import DraftStateOracle
from specdebug.verdict.outcome import Violation
from tests.run.fakes import oracle_settings
from tests.run.oracles.watched import EAGLE, TREE, Watched, prompts, text

Patch = pytest.MonkeyPatch


def changed(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Have ``change`` called with the function that it stands in for, and its arguments."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: change(original, *args, **options))


def first(found: list[Violation]) -> tuple[str, str]:
    """Signature and tensor of the first violation."""
    ordered = sorted(found, key=Violation.order)
    assert ordered, "nothing was found"
    return ordered[0].signature, ordered[0].data["tensor"]


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_sound_engine_is_silent(algorithm: str, shape: dict[str, Any]) -> None:
    watched = Watched({**shape, "algorithm": algorithm}, chunked_prefill_size=32)
    found = watched.serve(prompts(40, 75, 20), 14, temperatures=(0.0, 0.8))
    again = prompts(40, 75, 20)
    found += watched.serve([[*again[1], 7, 8], again[0]], 6)
    assert found == []
    assert watched.judge.bench.looks["draft_state"] == 5
    assert max(request.cached_tokens for request in watched.engine.requests.values()) > 30


def test_a_sound_engine_in_bfloat16_is_silent() -> None:
    assert Watched(TREE, dtype="bfloat16").serve(prompts(40, 75), 14) == []


def test_requests_that_are_retracted_are_compared_in_both_their_lives() -> None:
    watched = Watched(TREE, memory={"num_slots": 190}, radix_cache=False)
    assert watched.serve(prompts(40, 45, 35), 40) == []
    assert sum(request.retractions for request in watched.engine.requests.values())


def test_zero_filled_prefixes_are_read_as_zeros() -> None:
    watched = Watched({**TREE, "draft_kv_on_hit": "zero_fill"}, memory={"num_slots": 2048, "fill": "nan"})
    (piece,) = prompts(60)
    watched.serve([piece], 2, speculative=False)
    found = watched.serve([[*piece, 5, 6]], 12)
    assert watched.engine.requests["r1"].cached_tokens > 50
    assert found == []
    assert watched.judge.bench.looks["draft_state"] == 1


def test_a_zeroed_prefix_that_another_request_mends_is_read_as_mended_from_then_on() -> None:
    """The tree takes in draft KV that it lacks from the request that computed it, also under readers of zeros."""
    watched = Watched({**TREE, "draft_kv_on_hit": "zero_fill"}, memory={"num_slots": 2048, "fill": "nan"})
    (piece,) = prompts(20)
    watched.serve([piece], 30, speculative=False)
    text_of_both = list(watched.session.request("r0").all_ids)

    def zeros() -> int:
        keys, _ = watched.session.draft_kv(watched.session.request("r1"), 0, 45)
        return int((keys == 0).flatten(2).all(-1).all(0).sum())

    watched.serve([text_of_both[:46]], 60, until=lambda: len(watched.session.request("r1").output_ids) > 8)
    assert zeros() == 45
    watched.serve([piece], 12, until=lambda: watched.session.request("r2").finish_reason is not None)
    assert list(watched.session.request("r2").all_ids) == text_of_both[:32]
    assert zeros() < 40, "nothing was mended"
    assert len(watched.session.request("r1").output_ids) < 50, "it has ended before that"
    assert watched.serve([]) == []


def wrong_row(original: Any, self: ExtendForward, inputs: Any, *rest: Any) -> Any:
    return original(self, replace(inputs, accept_lengths=(inputs.accept_lengths - 1).clamp_min(1)), *rest)


def other_request(original: Any, self: EagleDrafter, rows: Tensor, start: Any) -> None:
    original(self, rows, replace(start, hidden_states=start.hidden_states.roll(1, 0)))


def stale(original: Any, self: EagleDrafter, rows: Tensor, start: Any) -> None:
    kept = self.state.gather(rows)
    original(self, rows, replace(start, topk_index=kept.topk_index) if bool(kept.topk_p.any()) else start)


@pytest.mark.parametrize(
    ("owner", "name", "change", "tensor"),
    [
        (ExtendForward, "run", wrong_row, "hidden_states"),
        (EagleDrafter, "keep", other_request, "hidden_states"),
        (EagleDrafter, "keep", stale, "topk_index"),
    ],
)
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_wrong_state_is_named(
    monkeypatch: Patch, owner: Any, name: str, change: Any, tensor: str, shape: dict[str, Any]
) -> None:
    changed(monkeypatch, owner, name, change)
    found = Watched(shape).serve(prompts(40, 75), 14)
    assert first(found) == ("mismatch@draft_state", tensor)
    assert all(each.data["rid"] in each.detail and each.step for each in found)


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (lambda state: {"hidden_states": state.hidden_states[:, :0]}, r"hidden_states: shape \[0\], expected \[256\]"),
        (lambda state: {"topk_index": state.topk_index[:, :1]}, r"topk_index: shape \[1\], expected \[[2-9]\]"),
    ],
    ids=["no hidden state", "a draft less"],
)
def test_a_state_of_another_shape_is_named(monkeypatch: Patch, cut: Any, told: str) -> None:
    watched = Watched(TREE)
    look = watched.session.draft_state

    def later_states_are_cut(requests: Sequence[Any]) -> Any:
        state = look(requests)
        parts = {name: getattr(state, name) for name in ("seq_lens", "bonus", "topk_p", "topk_index", "hidden_states")}
        late = all(len(request.output_ids) > 8 for request in requests)
        return SimpleNamespace(**parts | (cut(state) if late else {}))

    monkeypatch.setattr(watched.session, "draft_state", later_states_are_cut)
    found = watched.serve(prompts(40, 75), 24)
    assert {each.site for each in found} == {"draft_state"}
    assert len(found) == 2
    assert all(re.search(told, each.detail) for each in found)


def untranslated(original: Any, self: Eagle3Draft, draft_ids: Tensor) -> Tensor:
    return draft_ids


@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_draft_vocabulary_that_is_not_translated_is_seen(monkeypatch: Patch, shape: dict[str, Any]) -> None:
    changed(monkeypatch, Eagle3Draft, "to_target_ids", untranslated)
    found = Watched({**shape, "algorithm": "EAGLE3"}).serve(prompts(40, 75), 14)
    assert first(found) == ("mismatch@draft_tree", "tokens")


def other_parent(original: Any, self: DraftLoop, step: int, tokens: Tensor, hidden: Tensor, *rest: Any) -> Any:
    return original(self, step, tokens, hidden.roll(1, 0) if step else hidden, *rest)


def test_another_parents_hidden_state_in_the_draft_loop_is_seen(monkeypatch: Patch) -> None:
    changed(monkeypatch, DraftLoop, "_forward", other_parent)
    assert first(Watched(TREE).serve(prompts(40, 75), 14)) == ("mismatch@draft_tree", "tokens")


def with_tree(**change: Callable[[VerifyTree], Tensor]) -> Callable[..., VerifyTree]:
    def built(original: Any, *args: Any) -> VerifyTree:
        tree: VerifyTree = original(*args)
        return replace(tree, **{name: make(tree) for name, make in change.items()})

    return built


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        (with_tree(positions=lambda tree: tree.positions + 1), "positions"),
        (with_tree(retrieve_next_sibling=lambda tree: torch.full_like(tree.tokens, -1)), "links"),
        (with_tree(retrieve_next_token=lambda tree: torch.full_like(tree.tokens, -1)), "links"),
        (with_tree(mask=lambda tree: tree.mask.roll(1, 1)), "mask"),
        (with_tree(tokens=lambda tree: tree.tokens + torch.eye(10, dtype=torch.int64)[3]), "tokens"),
        (with_tree(tokens=lambda tree: tree.tokens.roll(1, 0)), "bonus"),
    ],
)
def test_a_tree_that_does_not_hold_together_is_named(monkeypatch: Patch, change: Any, tensor: str) -> None:
    changed(monkeypatch, TreeBuilder, "build", change)
    watched = Watched(TREE)
    assert first(watched.serve(prompts(40, 75), 14)) == ("mismatch@draft_tree", tensor)


def worst_first(original: Any, logits: Tensor, k: int) -> Any:
    probs, ids = original(logits, k)
    return probs.flip(1), ids.flip(1)


def test_siblings_that_are_not_best_first_are_seen(monkeypatch: Patch) -> None:
    changed(monkeypatch, selection, "top_k_probs", worst_first)
    assert first(Watched(TREE).serve(prompts(40, 75), 14)) == ("mismatch@draft_tree", "order")


def test_requests_under_way_are_compared_when_a_run_fails_or_they_are_aborted(monkeypatch: Patch) -> None:
    changed(monkeypatch, EagleDrafter, "keep", other_request)
    watched = Watched(EAGLE)
    watched.serve(prompts(40, 75), 14, until=lambda: watched.steps == 3)
    assert watched.found == []
    watched.judge.on(Aborting(watched.engine.requests["r0"]))
    watched.engine.abort("r0")
    assert [each.data["rid"] for each in watched.found] == ["r0"]
    watched.judge.inspect(watched.steps, failed=True)
    assert [(each.data["rid"], each.step) for each in watched.found] == [("r0", 1), ("r1", 1)]


V1 = {**EAGLE, "worker": "v1"}
MTP = {"algorithm": "MTP", "num_steps": 3}
ASSISTANT = {"algorithm": "FROZEN_KV_MTP", "num_steps": 3}
WORKERS = {"v2": EAGLE, "v1": V1, "mtp": MTP, "frozen-kv": ASSISTANT}
LOOKS = {"lossless": True, "draft_kv": True}


@pytest.fixture
def chained(tmp_path: Path) -> str:
    """The shipped next-n layers, each to read the one before it."""
    shipped = checkpoint_path("tiny-mtp")
    config = json.loads((shipped / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mtp_chain_hidden_states": True}))
    (tmp_path / "model.safetensors").symlink_to(shipped / "model.safetensors")
    return str(tmp_path)


def retractions(watched: Watched) -> int:
    return sum(request.retractions for request in watched.engine.requests.values())


@pytest.mark.parametrize("worker", WORKERS)
def test_a_request_that_is_prefilled_again_in_part_is_not_judged_by_what_it_stored_before(worker: str) -> None:
    watched = Watched(
        WORKERS[worker],
        spec={**LOOKS, "each_step": True},
        context_length=96,
        page_size=2,
        chunked_prefill_size=3,
        memory={"num_slots": 60},
    )
    assert watched.serve(prompts(12, 12, 12, 12), 30) == []
    assert retractions(watched) > 0


def zero_filled(worker: dict[str, Any], *, num_slots: int, **options: Any) -> Watched:
    """Serve a text without drafts, then texts that begin like it with drafts: their prefixes have draft KV of zeros."""
    watched = Watched(
        {**worker, "draft_kv_on_hit": "zero_fill"},
        spec=LOOKS,
        context_length=128,
        max_running_requests=4,
        memory={"num_slots": num_slots},
        **options,
    )
    (piece,) = prompts(24)
    watched.serve([piece], 8, speculative=False)
    watched.serve([piece, piece[:19], piece[:15]], 30)
    return watched


@pytest.mark.parametrize("worker", ["v2", "v1", "mtp"])
def test_output_that_comes_out_of_the_cache_again_may_have_draft_kv_of_zeros(worker: str) -> None:
    watched = zero_filled(WORKERS[worker], num_slots=86)
    assert watched.found == []
    assert retractions(watched) > 0
    assert any(request.hit_len > request.cached_tokens for request in watched.engine.requests.values())


def test_chained_layers_write_other_kv_behind_zeros(chained: str) -> None:
    watched = zero_filled({**MTP, "draft_model": chained}, num_slots=512)
    assert watched.found == []
    assert max(request.cached_tokens for request in watched.engine.requests.values()) > 0


PROMPT, STEPS = 9, 6
IDS = list(text()[300 : 300 + PROMPT + STEPS + 1])
CHAIN = torch.ones(4, 4, dtype=torch.bool).tril()
NEXT = torch.tensor([1, 2, 3, -1])


class Drafting:
    """Accepts nothing but the root of each chain, so that a request grows along the text by one token a step."""

    def __init__(self, draft: str, algorithm: str) -> None:
        self.reference = DenseReference("tiny", draft, algorithm)
        self.hidden = self.reference.features(IDS)
        self.request = SimpleNamespace(
            rid="a", speculative=True, prompt_ids=IDS[:PROMPT], output_ids=[IDS[PROMPT]], kv_len=PROMPT,
            all_ids=IDS[: PROMPT + 1], accept_lengths=[1],
        )  # fmt: skip
        self.drafts = self.layers if isinstance(self.reference.head, MTPHead) else self.assistant

    def layers(self, length: int) -> tuple[list[int], Tensor]:
        """The chain behind a prefix, and what is stored for it."""
        assert isinstance(self.reference.head, MTPHead)
        found = mtp_draft(self.reference.head, torch.tensor(IDS[: length + 1]), self.hidden[:length])
        return found.tokens.tolist(), self.hidden[length - 2 : length]

    def assistant(self, length: int) -> tuple[list[int], Tensor]:
        """As of layers."""
        head = self.reference.head
        assert isinstance(head, AssistantHead)
        cache = self.reference._states(IDS).cache
        kv = [(k[0, :, :length], v[0, :, :length]) for k, v in frozen_kv(head, cache)]
        token, state, chain = IDS[length], self.hidden[length - 1 : length], []
        for _ in range(3):
            state = assistant_pass(head, torch.tensor([token]), state, torch.tensor([length - 1]), kv)
            token = int(assistant_logits(head, state[0]).argmax())
            chain.append(token)
        return chain, self.hidden[length - 1]

    def draft_state(self, requests: Sequence[Any]) -> SimpleNamespace:
        length = self.request.kv_len
        return SimpleNamespace(
            seq_lens=torch.tensor([length]), bonus=torch.tensor([IDS[length]]), topk_p=None, topk_index=None,
            hidden_states=self.drafts(length)[1][None].clone(),
        )  # fmt: skip

    def decision(self) -> Decided:
        length = self.request.kv_len
        tokens = torch.tensor([IDS[length], *self.drafts(length)[0]])
        nothing = torch.empty(0)
        return Decided(
            [self.request], tokens[None], (torch.arange(4) + length)[None], CHAIN[None], NEXT[None],
            torch.full((1, 4), -1), torch.zeros(4, 2048), nothing, nothing, nothing, None,
            topk=1, num_steps=3, threshold_single=1.0, threshold_acc=1.0,
        )  # fmt: skip

    def grow(self) -> None:
        """One token is accepted."""
        self.request.kv_len += 1
        self.request.output_ids.append(IDS[self.request.kv_len])
        self.request.all_ids = IDS[: self.request.kv_len + 1]


def served(engine: Any) -> tuple[list[Violation], dict[str, int]]:
    """Serve the text to its end with the oracle looking on."""
    found: list[Violation] = []
    settings = oracle_settings(draft_state=True)
    bench = Bench(settings, engine, engine.reference, found.append, lambda rid, tie: None, str)
    oracle = DraftStateOracle(bench)
    oracle.on(Prefilled(engine.request))
    for step in range(STEPS - 1):
        bench.step = step
        oracle.on(engine.decision())
        oracle.on(AfterStep(step))
        engine.grow()
    oracle.on(Finishing(engine.request))
    return found, bench.looks


KINDS = pytest.mark.parametrize(
    ("draft", "algorithm"), [("tiny-mtp", "MTP"), ("tiny-assistant", "FROZEN_KV_MTP")], ids=["layers", "assistant"]
)


@KINDS
def test_what_is_right_is_silent(draft: str, algorithm: str) -> None:
    assert served(Drafting(draft, algorithm)) == ([], {"draft_state": 1})


@KINDS
@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_draft_that_the_model_does_not_make_is_named(draft: str, algorithm: str, node: int) -> None:
    class Wrong(Drafting):
        def decision(self) -> Decided:
            made = super().decision()
            if self.request.kv_len == PROMPT + 2:
                made.tokens[0, node] ^= 1
            return made

    (violation,), _ = served(Wrong(draft, algorithm))
    assert (violation.signature, violation.step, violation.data["tensor"]) == ("mismatch@draft_tree", 2, "tokens")
    assert violation.data["node"] == node


def test_a_state_that_is_nan_is_wrong_and_one_that_no_text_has_is_not_looked_at() -> None:
    class Short(Drafting):
        def __init__(self) -> None:
            super().__init__("tiny-mtp", "MTP")
            self.request.prompt_ids, self.request.output_ids = IDS[:1], IDS[1:2]
            self.request.kv_len, self.request.all_ids = 1, IDS[:2]

        def layers(self, length: int) -> tuple[list[int], Tensor]:
            drafts, stored = super().layers(length)
            before_the_text = torch.full((1, 256), 7.0)
            return drafts, stored if length > 1 else torch.cat([before_the_text, self.hidden[:1]])

    assert served(Short())[0] == []

    class Nan(Short):
        def draft_state(self, requests: Sequence[Any]) -> SimpleNamespace:
            stored = super().draft_state(requests)
            stored.hidden_states[0, 1, 5] = float("nan")
            return stored

    (violation,), _ = served(Nan())
    assert violation.data["position"] == 1
