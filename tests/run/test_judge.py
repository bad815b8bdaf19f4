"""What the oracles call right, wrong and a tie; and that the dense reference reuses prefixes soundly."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.events import Finishing, Prefilled, Stepped
from specdebug.reference.target import target_forward
from specdebug.run import dense as dense_module
from specdebug.run.dense import DenseReference
from specdebug.run.judge import Judge
from specdebug.run.oracles.lossless import TIE_MARGIN, judge_output
from specdebug.verdict.outcome import Tie, Violation
from tests.run.fakes import FakeEngine, FakeReference, FakeRequest, FakeSession, oracle_settings

GREEDY = SimpleNamespace(temperature=0.0, max_new_tokens=8)


def judge_of(
    reference: FakeReference | None = None, *, engine: FakeEngine | None = None, **settings: Any
) -> tuple[Judge, list[Violation], list[tuple[str, Tie]]]:
    found: list[Violation] = []
    ties: list[tuple[str, Tie]] = []
    judge = Judge(
        oracle_settings(**{"ends": False, "work": False, **settings}),
        FakeSession(engine or FakeEngine()),
        reference or FakeReference(),
        report=found.append,
        tie=lambda rid, tie: ties.append((rid, tie)),
        decode=lambda ids: " ".join(f"t{token}" for token in ids),
    )
    judge.bench.step = 9
    return judge, found, ties


def stepped(judge: Judge, emitted: dict[str, list[int]], *requests: FakeRequest) -> None:
    """A step decided this of these requests."""
    judge.bench.session.inside.requests |= {each.rid: each for each in requests}
    judge.stepped(Stepped(1, "decode", tuple(each.rid for each in requests), emitted))


def request(output: Sequence[int] = (11, 12, 13, 14), **changed: Any) -> FakeRequest:
    fields: dict[str, Any] = {"prompt_ids": list(range(11)), "output_ids": list(output), "kv_len": 14}
    return FakeRequest("a.0", **{"sampling": GREEDY, **fields, **changed})


def test_a_wrong_token_is_named_with_what_should_have_been() -> None:
    judge, found, _ = judge_of()
    stepped(judge, {"a.0": [11]})
    judge.bench.step = 10
    stepped(judge, {"a.0": [12, 40, 14]})
    judge.bench.step = 30
    judge.on(Finishing(request((11, 12, 40, 14))))
    (violation,) = found
    assert violation.signature == "mismatch@request"
    assert violation.step == 10  # the step that emitted it, not the one in which it was noticed
    said = {"rid": "a.0", "position": 2, "got": 40, "expected": 13, "margin": 5.0, "allowed": pytest.approx(1e-3)}
    assert violation.data == said
    told = "got 40 't40', expected 13 't13' by 5 logits (0.001 is a tie; 2 of 4 tokens differ)"
    assert told in violation.detail


def test_a_near_tie_is_reported_with_its_margin_and_is_no_failure() -> None:
    reference = FakeReference()
    reference.margin = 0.0009
    judge, found, ties = judge_of(reference)
    judge.on(Finishing(request((11, 12, 40, 41))))
    assert found == []
    assert ties == [("a.0", Tie(2, 0.0009, pytest.approx(1e-3), token=40, preferred=13))]
    reference.margin = 0.0011
    judge.on(Finishing(request((11, 12, 40, 41))))
    assert [violation.signature for violation in found] == ["mismatch@request"]


@pytest.mark.parametrize(("dtype", "margin"), [("float32", 1e-3), ("float16", 0.03), ("bfloat16", 0.25)])
def test_how_near_a_tie_must_be_depends_on_what_the_dtype_can_tell_apart(dtype: str, margin: float) -> None:
    reference = FakeReference()  # whose largest logit is 10
    judge, found, ties = judge_of(reference, dtype=dtype)
    reference.margin = 0.99 * margin
    judge.on(Finishing(request((11, 12, 40, 41))))
    assert (len(ties), found) == (1, [])
    reference.margin = 1.01 * margin
    judge.on(Finishing(request((11, 12, 40, 41))))
    assert [violation.signature for violation in found] == ["mismatch@request"]


def test_each_step_a_request_that_goes_on_is_judged_until_something_is_wrong_with_it() -> None:
    judge, found, ties = judge_of(each_step=True)
    going = request((11, 12))
    stepped(judge, {"a.0": [12]}, going)
    assert found == []
    going.output_ids += [40]
    stepped(judge, {}, going)  # a step gave it nothing
    assert found == []
    stepped(judge, {"a.0": [40]}, going)
    going.output_ids += [50]
    ended = replace(request((11, 40), finish_reason="length"), rid="b.0")
    stepped(judge, {"a.0": [50], "b.0": [40]}, going, ended)
    assert [(each.kind, each.data["position"]) for each in found] == [("mismatch", 2)]
    assert ties == []


@pytest.mark.parametrize("each_step", [True, False])
@pytest.mark.parametrize(("dtype", "signatures"), [("float32", ["mismatch@target_kv"]), ("bfloat16", [])])
def test_target_kv_is_compared_in_float32(dtype: str, signatures: list[str], each_step: bool) -> None:
    class Damaged(FakeEngine):
        def target_kv(self, request: FakeRequest, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = super().target_kv(request, start, stop)
            k[0, 5, 1, 3] += 1.0
            return k, v

    judge, found, _ = judge_of(each_step=each_step, dtype=dtype, engine=Damaged())
    stepped(judge, {"a.0": [13]}, request())
    assert [each.signature for each in found] == signatures * each_step
    judge.on(Finishing(request(finish_reason="length")))  # and in the step that is the last
    assert [each.signature for each in found] == signatures * (1 + each_step)
    assert all("target key of a.0 is off by" in each.detail and "position 5 of 14" in each.detail for each in found)


def test_sampled_requests_are_not_judged_by_the_argmax() -> None:
    judge, found, _ = judge_of()
    judge.on(Finishing(request((90, 91), sampling=SimpleNamespace(temperature=0.7), kv_len=0)))
    assert found == []


class BrokenDraft(FakeEngine):
    """Draft KV that is wrong at one position."""

    def __init__(self, position: int, value: float, side: int = 0) -> None:
        super().__init__()
        self.position, self.value, self.side = position, value, side

    def draft_kv(self, request: FakeRequest, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        both = super().draft_kv(request, start, stop)
        both[self.side][0, self.position] *= self.value
        return both


@pytest.mark.parametrize("value", [1.01, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_wrong_draft_kv_is_named_with_its_position(value: float, side: int) -> None:
    judge, found, _ = judge_of(engine=BrokenDraft(6, value, side))
    judge.on(Prefilled(request()))
    (violation,) = found
    assert (violation.signature, violation.step) == ("mismatch@draft_kv", 9)
    assert violation.data["position"] == 6
    assert ("draft value" if side else "draft key") in violation.detail


class TwoLayers(FakeReference):
    """The second layer's last position is not known yet."""

    def draft_kv(
        self, ids: Sequence[int], stop: int, zeroed: torch.Tensor | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self.target_kv(ids, stop), self.target_kv(ids, stop - 1)]


@pytest.mark.parametrize(("layer", "known"), [(0, 11), (1, 10)])
def test_every_layer_of_a_draft_is_compared_as_far_as_its_tokens_are_known(layer: int, known: int) -> None:
    class Layers(FakeEngine):
        def draft_kv(self, request: FakeRequest, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = (side.repeat(2, 1, 1, 1) for side in super().draft_kv(request, start, stop))
            k[layer, broken] = 0.0
            return k, v

    for broken in (known - 1, known):
        judge, found, _ = judge_of(TwoLayers(), engine=Layers())
        judge.on(Finishing(request(output=(90, 91, 92), kv_len=12)))
        seen = [(v.data["position"], v.data["layer"], v.detail.split(" of ")[0]) for v in found if "layer" in v.data]
        assert seen == ([(broken, layer, f"layer {layer}'s draft key")] if broken < known else [])


@pytest.mark.parametrize(
    ("position", "cached", "place"),
    [
        (6, 7, "the last of the cached prefix"),
        (2, 7, "inside the cached prefix"),
        (8, 7, "the last of a prefill chunk"),
        (9, 7, "in the prompt"),
        (11, 7, "in the output"),
    ],
)
def test_where_a_wrong_position_lies(position: int, cached: int, place: str) -> None:
    judge, found, _ = judge_of(engine=BrokenDraft(position, 2.0))
    stepped(judge, {}, request(output=(), kv_len=9))
    judge.on(Finishing(request(cached_tokens=cached)))
    assert found[0].detail.endswith(place)


def test_zero_filled_positions_are_counted_only_where_policy_put_them() -> None:
    judge, found, _ = judge_of(zero_fill=True, engine=BrokenDraft(3, 0.0))
    judge.on(Finishing(request(hit_len=7)))
    assert [v.data["position"] for v in found] == [3]  # a zero key with a live value was not zero-filled

    class Zeroed(FakeEngine):
        def draft_kv(self, request: FakeRequest, start: int, stop: int) -> Any:
            k, v = super().draft_kv(request, start, stop)
            k[0, 2:9], v[0, 2:9] = 0, 0
            return k, v

    judge, found, _ = judge_of(zero_fill=True, engine=Zeroed())
    judge.on(Finishing(request(hit_len=9)))
    assert found == []
    (note,) = judge.notes()
    assert "draft KV of 7 cached positions zero-filled" in note
    judge.on(Finishing(request(hit_len=7)))
    assert found[0].data["position"] == 7
    strict, found, _ = judge_of(zero_fill=False, engine=Zeroed())
    strict.on(Finishing(request(hit_len=9)))
    assert found[0].data["position"] == 2


def test_a_request_that_does_not_speculate_has_no_draft_kv_to_compare() -> None:
    judge, found, _ = judge_of(engine=BrokenDraft(3, 2.0))
    judge.on(Prefilled(request(speculative=False)))
    assert found == []


def test_an_oracle_that_cannot_judge_is_said_so_and_does_not_stop_the_engine() -> None:
    class Blind(FakeReference):
        def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float]]:
            raise IndexError("index out of range in self")

    judge, found, _ = judge_of(Blind())
    judge.on(Finishing(request()))
    assert [violation.signature for violation in found] == ["error@oracle"]
    assert "cannot judge a.0: IndexError" in found[0].detail


@pytest.fixture(scope="module")
def dense() -> DenseReference:
    return DenseReference("tiny", "tiny-eagle3")


def test_reused_prefixes_change_no_judgement(dense: DenseReference) -> None:
    torch.manual_seed(0)
    base = torch.randint(0, 2048, (90,)).tolist()
    sequences = [base, [*base[:60], 1, 2, 3], [*base[:60], 1, 2, 3, 4], base[:10], [7, *base[:20]], base]
    for ids in sequences:
        fresh, _, _ = target_forward(dense.weights, dense.config, torch.tensor(ids))
        choices, margins, sizes = dense.judge(ids, 5)
        assert choices == fresh[4:-1].argmax(-1).tolist()
        given = fresh[4:-1].gather(-1, torch.tensor(ids[5:])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(margins), fresh[4:-1].amax(-1) - given, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.tensor(sizes), fresh[4:-1].abs().amax(-1), atol=1e-4, rtol=1e-4)
        ((k, v),) = dense.draft_kv(ids, len(ids) - 1)
        (want,) = DenseReference("tiny", "tiny-eagle3").draft_kv(ids, len(ids) - 1)
        torch.testing.assert_close((k, v), want, atol=1e-4, rtol=1e-4)
        assert k.shape[0] == len(ids) - 1


def test_a_foreseen_text_needs_no_forward_and_another_is_judged_as_ever(
    dense: DenseReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [5, 9, 200, 31, 8]
    right = [*prompt, *greedy(dense, prompt, 6)]
    wrong = [*right[:7], right[7] ^ 1, *right[8:]]
    monkeypatch.setattr(dense_module, "_foreseen", {})
    dense_module.foresee(dense_module.Names("tiny", "tiny-eagle3"), [(prompt, 6)])
    knowing = DenseReference("tiny", "tiny-eagle3")
    for ids in (wrong, right):
        if ids is right:
            monkeypatch.setattr(dense_module, "target_forward", None)  # is not called
        (choices, gaps, sizes), want = knowing.judge(ids, 5), dense.judge(ids, 5)
        assert choices == want[0]
        torch.testing.assert_close(torch.tensor([gaps, sizes]), torch.tensor(want[1:]), atol=1e-4, rtol=1e-4)
        stop = len(ids) - 1
        torch.testing.assert_close(knowing.draft_kv(ids, stop), dense.draft_kv(ids, stop), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(knowing.target_kv(ids, stop), dense.target_kv(ids, stop), atol=1e-4, rtol=1e-4)


def greedy(dense: DenseReference, ids: Sequence[int], count: int) -> list[int]:
    """What the model says follows, token by token."""
    found: list[int] = []
    for _ in range(count):
        found += dense.judge([*ids, *found, 0], len(ids) + len(found))[0]
    return found


@pytest.fixture(scope="module")
def text(dense: DenseReference) -> tuple[list[int], list[int]]:
    """A prompt of 40 tokens and 60 tokens of greedy output."""
    torch.manual_seed(1)
    prompt = torch.randint(0, 2048, (40,)).tolist()
    return prompt, greedy(dense, prompt, 60)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_text_is_judged_by_what_precedes_each_token_whatever_was_chosen_before(
    dense: DenseReference, text: tuple[list[int], list[int]], dtype: str
) -> None:
    """Every runner-up in turn: a tie within the margin and a failure beyond it, and nothing after it is either's."""
    prompt, output = text
    margin = TIE_MARGIN[dtype]
    assert judge_output(dense, prompt, output, margin).wrong == ()
    logits, _, _ = target_forward(dense.weights, dense.config, torch.tensor([*prompt, *output]))
    rows = logits[len(prompt) - 1 : -1]
    best = rows.topk(2)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    allowed = (margin * rows.abs().amax(-1)).tolist()
    near, far = min(range(50), key=gaps.__getitem__), max(range(50), key=gaps.__getitem__)
    assert gaps[far] > 2 * max(allowed), "no token of this text is decided"
    assert dtype != "bfloat16" or gaps[near] <= allowed[near], "no token of this text is nearly a tie"
    for position in {near, far}:
        runner_up = int(best.indices[position, 1])
        start = [*output[:position], runner_up]
        found = judge_output(dense, prompt, [*start, *greedy(dense, [*prompt, *start], 8)], margin)
        if gaps[position] > allowed[position]:
            assert (found.wrong, found.ties) == ((position,), ())
            assert found.gaps[position] == pytest.approx(gaps[position], abs=1e-3)
        else:
            (tie,) = found.ties
            assert (tie.position, tie.token, tie.preferred) == (position, runner_up, output[position])
            assert tie.margin == pytest.approx(gaps[position], abs=1e-3)
            assert (found.wrong, tie.used < 1) == ((), True)
