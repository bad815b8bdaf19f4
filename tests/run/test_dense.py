"""The dense reference by model and algorithm: which draft it reads, and what that has written."""

import pytest
import torch
from torch import Tensor

from specdebug.base.errors import CheckpointError
from specdebug.reference.draft import (
    AssistantHead,
    DraftHead,
    MTPHead,
    assistant_logits,
    assistant_unroll,
    draft_kv,
    frozen_kv,
    mtp_draft,
    mtp_kv,
)
from specdebug.reference.drafting import DraftedText, Guide, TreeShape
from specdebug.reference.target import DenseCache, target_forward
from specdebug.run.dense import DenseReference
from tests.run.oracles.watched import text

IDS = list(text()[200:230])
NEAR = {"rtol": 1e-4, "atol": 1e-4}  # sums of the same products over another number of rows


def chain(read: DraftedText, length: int, num_steps: int) -> list[int]:
    """The chain that is drafted behind a prefix."""
    lengths, none = torch.tensor([length]), torch.zeros(1, num_steps + 1, dtype=torch.int64)
    guide = Guide(none, torch.full_like(none, -1), 0.0)
    grown = read.grow(lengths, read.outputs(lengths), TreeShape(1, num_steps, num_steps + 1), guide)
    return max(grown.paths[0].tolist(), key=lambda path: sum(token >= 0 for token in path))


def states(reference: DenseReference) -> tuple[Tensor, DenseCache]:
    cache = DenseCache(reference.config, len(IDS), batch=(1,))
    _, hidden, _ = target_forward(reference.weights, reference.config, torch.tensor([IDS]), cache=cache)
    return hidden[0], cache


@pytest.mark.parametrize(
    ("draft", "algorithm", "kind"),
    [
        ("tiny-eagle", "EAGLE", DraftHead),
        ("tiny-eagle3", None, DraftHead),
        ("tiny-mtp", "MTP", MTPHead),
        ("tiny-mtp", None, MTPHead),
        ("tiny-mtp", "EAGLE", DraftHead),  # the first of the layers, used as a head
        ("tiny-assistant", "FROZEN_KV_MTP", AssistantHead),
        ("tiny-assistant", None, AssistantHead),
        ("tiny-eagle", "PLUGGED_IN", DraftHead),
    ],
)
def test_the_algorithm_says_how_a_draft_is_used(draft: str, algorithm: str | None, kind: type) -> None:
    assert type(DenseReference("tiny", draft, algorithm).head) is kind


@pytest.mark.parametrize(
    ("draft", "algorithm", "needed"),
    [
        ("tiny-eagle", "MTP", "next-n layers"),
        ("tiny-mtp", "FROZEN_KV_MTP", "an assistant, whose config names target_kv_layers"),
        ("tiny-assistant", "EAGLE", "an EAGLE head or a next-n layer"),
    ],
)
def test_a_draft_that_an_algorithm_cannot_use_is_refused(draft: str, algorithm: str, needed: str) -> None:
    with pytest.raises(CheckpointError, match=f"holds no draft of the kind that this algorithm needs .{needed}"):
        DenseReference("tiny", draft, algorithm)


def test_layers_of_multi_token_prediction() -> None:
    reference = DenseReference("tiny", "tiny-mtp", "MTP")
    assert isinstance(reference.head, MTPHead)
    hidden, _ = states(reference)
    for length in (2, 20, 29):
        drafts = mtp_draft(reference.head, torch.tensor(IDS[: length + 1]), hidden[:length])
        assert chain(reference.drafted(IDS[: length + 1]), length, 3) == drafts.tokens.tolist()
    written = reference.draft_kv(IDS, 20)
    assert [len(k) for k, _ in written] == [20, 19, 18], "a layer needs one more token than the one before it"
    for (k, v), (key, value) in zip(written, mtp_kv(reference.head, torch.tensor(IDS), hidden), strict=True):
        torch.testing.assert_close(k, key.transpose(0, 1)[: len(k)], **NEAR)
        torch.testing.assert_close(v, value.transpose(0, 1)[: len(k)], **NEAR)
    assert [len(k) for k, _ in reference.draft_kv(IDS, 1)] == [1, 0, 0]


def test_an_assistant_keeps_nothing_and_drafts_from_the_targets_kv() -> None:
    reference = DenseReference("tiny", "tiny-assistant", "FROZEN_KV_MTP")
    head = reference.head
    assert isinstance(head, AssistantHead)
    hidden, cache = states(reference)
    kv = [(k[0], v[0]) for k, v in frozen_kv(head, cache)]
    first = assistant_unroll(head, torch.tensor(IDS), hidden, kv, 1)[0]
    for length in (1, 20, 29):
        (token,) = chain(reference.drafted(IDS[: length + 1]), length, 1)
        assert token == int(assistant_logits(head, first[length - 1]).argmax())
    with pytest.raises(ValueError, match="no draft was loaded that keeps keys and values"):
        reference.draft_kv(IDS, 20)


def test_latent_attention_is_given_as_a_pool_packs_it() -> None:
    reference = DenseReference("tiny-mla", "tiny-mla-eagle", "EAGLE")
    assert isinstance(reference.head, DraftHead)
    hidden, cache = states(reference)
    keys, values = reference.target_kv(IDS, 25)
    assert (keys.shape, values.shape) == ((25, 12, 96), (25, 12, 64))
    assert torch.equal(keys[..., :64], values), "a value is the first part of its row"
    for layer in (0, 11):
        torch.testing.assert_close(keys[:, layer, :64], cache.values[layer, 0, 0, :25], **NEAR)
        torch.testing.assert_close(keys[:, layer, 64:], cache.keys[layer, 0, 0, :25], **NEAR)
    ((draft_keys, draft_values),) = reference.draft_kv(IDS, 25)
    key, latent = draft_kv(reference.head, torch.tensor(IDS[1:26]), hidden[:25], torch.arange(25))
    torch.testing.assert_close(draft_keys, torch.cat([latent, key], dim=-1).transpose(0, 1), **NEAR)
    assert torch.equal(draft_keys[..., :64], draft_values)
