"""Drafts of layers and of assistants after many prefixes at once, against one prefix at a time."""

import pytest
import torch
from torch import Tensor

from specdebug.reference.draft import assistant_logits, frozen_kv, mtp_draft
from specdebug.reference.drafting import DraftedText, Guide, TreeShape
from specdebug.reference.texts import AssistantText, MTPText
from tests.reference import test_assistant as assistants
from tests.reference import test_mtp as layers
from tests.reference.test_draft import NEAR

LENGTHS = torch.arange(1, 8)
CHAIN = TreeShape(1, 3, 4)


def chains(text: DraftedText, margin: float = 0.0, guide: Tensor | None = None) -> Tensor:
    """The chains drafted behind each prefix, leaning to a guide's."""
    tokens = torch.zeros(len(LENGTHS), 4, dtype=torch.int64)
    parents = torch.full_like(tokens, -1)
    if guide is not None:
        tokens[:, 1:], parents[:, 1:] = guide, torch.arange(3)
    grown = text.grow(LENGTHS, text.outputs(LENGTHS), CHAIN, Guide(tokens, parents, margin))
    longest = (grown.paths >= 0).sum(-1).argmax(-1)
    return grown.paths[torch.arange(len(LENGTHS)), longest]


@pytest.mark.parametrize("kind", ["plain", "chained", "own_heads"])
def test_layers_draft_behind_every_prefix_what_they_draft_behind_it_alone(kind: str) -> None:
    head = layers.make_mtp(chained=kind == "chained", own_heads=kind == "own_heads")
    ids, hidden = layers.text()
    text = MTPText(head, ids, hidden[:-1])
    alone = [mtp_draft(head, ids[: n + 1], hidden[:n]) for n in LENGTHS.tolist()]
    assert chains(text).tolist() == [each.tokens.tolist() for each in alone]
    forwards = torch.stack([each.tokens[:-1] for each in alone])[..., None]
    logits = text.follow(LENGTHS, text.outputs(LENGTHS), forwards, torch.zeros_like(forwards))
    torch.testing.assert_close(logits[:, :, 0], torch.stack([each.logits[1:] for each in alone]).float(), **NEAR)


@pytest.mark.parametrize("positions", [1, 2, 3])
@pytest.mark.parametrize("chained", [False, True])
def test_a_text_may_be_shorter_than_there_are_layers(chained: bool, positions: int) -> None:
    head = layers.make_mtp(chained=chained)
    ids, hidden = layers.text()
    text = MTPText(head, ids[: positions + 1], hidden[:positions])
    lengths = torch.arange(1, positions + 1)
    guide = Guide(torch.zeros(positions, 4, dtype=torch.int64), torch.full((positions, 4), -1), 0.0)
    paths = text.grow(lengths, text.outputs(lengths), CHAIN, guide).paths
    for row, n in enumerate(lengths.tolist()):
        assert mtp_draft(head, ids[: n + 1], hidden[:n]).tokens.tolist() in paths[row].tolist()


@pytest.mark.parametrize("chained", [False, True])
def test_layers_follow_drafts_that_are_not_their_own(chained: bool) -> None:
    """What a layer drafts hangs on what the layers before it did, even where they should have drafted otherwise."""
    head = layers.make_mtp(chained=chained)
    ids, hidden = layers.text()
    text = MTPText(head, ids, hidden[:-1])
    given = torch.randint(50, (len(LENGTHS), 2, 1), generator=torch.Generator().manual_seed(4))
    logits = text.follow(LENGTHS, text.outputs(LENGTHS), given, torch.zeros_like(given))
    for row, n in enumerate(LENGTHS.tolist()):
        known = [*ids[: n + 1].tolist(), *given[row, :, 0].tolist()]
        states = list(hidden[:n])
        for index in range(3):
            past: list[layers.KV] = []
            outputs = []
            for p in range(n):
                output, kv = layers.one_row(head, index, known[p + 1 + index], states[p], p, past)
                past.append(kv)
                outputs.append(output)
            states = outputs if chained else states
            if index:
                expected = (head.layers[index].lm_head @ outputs[-1]).float()
                torch.testing.assert_close(logits[row, index - 1, 0], expected, **NEAR)


def test_layers_store_the_states_of_rows_that_they_will_read_again() -> None:
    head, (ids, hidden) = layers.make_mtp(), layers.text()
    text = MTPText(head, ids, hidden[:-1])
    stored = text.stored(LENGTHS, text.outputs(LENGTHS))
    assert stored.shape == (len(LENGTHS), 2, 32)
    assert stored[0, 0].isnan().all(), "a text of one position has none before it"
    assert torch.equal(stored[0, 1], hidden[0])
    assert torch.equal(stored[4], hidden[3:5])


@pytest.mark.parametrize("chained", [False, True])
def test_zeroed_positions_are_zeros_in_every_layer(chained: bool) -> None:
    head, (ids, hidden) = layers.make_mtp(chained=chained), layers.text()
    plain, zeroed = (MTPText(head, ids, hidden[:-1], gone) for gone in (None, torch.tensor([2, 9])))
    changed = [
        (text.outputs(LENGTHS) != plain.outputs(LENGTHS)).any(-1).tolist() for text in (zeroed, plain)
    ]  # a prefix of three tokens ends at position 2: what it writes there itself is its own
    assert changed == [[False] * 3 + [True] * 4, [False] * 7]
    given = torch.zeros(len(LENGTHS), 2, 1, dtype=torch.int64)
    deep = [text.follow(LENGTHS, text.outputs(LENGTHS), given, given) for text in (zeroed, plain)]
    first, second = (deep[0] != deep[1]).any(-1)[..., 0].T.tolist()
    assert first == [False] * 3 + [True] * 4, "layer 1 writes the last row itself"
    # Layer 2 writes the last two, but chained it reads what layer 1 makes of the zeros.
    assert second == ([False] * 3 + [True] * 4 if chained else [False] * 4 + [True] * 3)


def test_assistants_draft_behind_every_prefix_what_they_draft_behind_it_alone() -> None:
    head, (ids, hidden, cache) = assistants.make_assistant(), assistants.text()
    text = AssistantText(head, ids, hidden[:-1], [(k[:, :-1], v[:, :-1]) for k, v in frozen_kv(head, cache)])
    expected = []
    for n in LENGTHS.tolist():
        token, state, drafted = int(ids[n]), hidden[n - 1], []
        for _ in range(3):
            state = assistants.naive_pass(head, token, state, n, cache)
            token = int(assistant_logits(head, state).argmax())
            drafted.append(token)
        expected.append(drafted)
    assert chains(text).tolist() == expected
    assert torch.equal(text.stored(LENGTHS, text.outputs(LENGTHS)), hidden[:7])
