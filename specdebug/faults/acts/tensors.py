"""Damage to what passes a probe's site: logits, tokens, positions, what is accepted, padding rows of a replay."""

import math

from specdebug.engine.sites import SITES
from specdebug.faults.model import NotHere, Shot, fault_class

ANYWHERE = "anywhere"
"""The family that acts at any probe's site: in the detection matrix each site is a row of its own, which shows the
worth of that site's probe."""

TARGET_LOGITS = ("verify.logits", "target_prefill.logits", "target_decode.logits")
DRAFT_LOGITS = ("draft.forward.logits", "draft_extend.logits")
POSITIONS = ("draft.forward.positions", "draft_graph.replay.positions")
CANDIDATES = ("draft_extend.topk_index", "draft_graph.replay.topk_index")
REPLAYED = (
    "draft_graph.replay.topk_index",
    "draft_graph.replay.topk_p",
    "draft_graph.replay.hidden_states",
    "draft_graph.replay.input_ids",
    "mtp_graph.replay.input_ids",
    "mtp_graph.replay.hidden_states",
)
POISONED = (*REPLAYED, "draft_graph.replay.req_pool_indices", "mtp_graph.replay.req_pool_indices")

_NUMBERS = (".logits", ".hidden_states", ".scores", ".features", ".topk_p", ".probs")
_UNLIKE = ("kv_pool.write.k", "kv_pool.write.v", "draft.prefix_tail", "prefix_cache.release.first_free", *POSITIONS)
"""Sites of keys and values, of places that only have to be aligned, and of positions, which have their own class."""
NUMBER_SITES = tuple(dict.fromkeys(("verify.logits", *(each for each in SITES if each.endswith(_NUMBERS)))))
_INDICES = (each for each in SITES if each not in (*NUMBER_SITES, *_UNLIKE))
INDEX_SITES = tuple(dict.fromkeys(("verify.input_ids", *_INDICES)))

FAR = -4886055425978319163
"""An uninitialised topk_index was seen to hold this (SGLang PR 23037)."""


@fault_class("tensors", "site", "corrupts", sites=TARGET_LOGITS)
def nan_logits(shot: Shot) -> None:
    """The target's logits of one node are NaN."""
    shot.overwrite(shot.site.tensor, _row(shot), math.nan, shot.site.site)


@fault_class("tensors", "site", "corrupts", sites=TARGET_LOGITS)
def inf_logits(shot: Shot) -> None:
    """One of the target's logits is infinite."""
    _put(shot, _cell(shot), math.inf)


@fault_class("tensors", "site", "corrupts", sites=DRAFT_LOGITS, needs=("speculative",))
def nan_draft_logits(shot: Shot) -> None:
    """The draft's logits of one branch are NaN."""
    shot.overwrite(shot.site.tensor, _row(shot), math.nan, shot.site.site)


@fault_class("tensors", "site", "corrupts", sites=DRAFT_LOGITS, needs=("weighed",))
def tied_draft_logits(shot: Shot) -> None:
    """The draft's two best logits of one branch are equal, which may change the draft, and not the output."""
    row = _row(shot)
    values, columns = shot.site.tensor[row].topk(2)
    _put(shot, (row, int(columns[1])), values[0].item())


@fault_class("tensors", "site", "corrupts", sites=DRAFT_LOGITS, needs=("weighed",))
def one_hot_draft_logits(shot: Shot) -> None:
    """The draft is certain of one branch's next token, which changes what else is drafted, and not the output."""
    row = _row(shot)
    _put(shot, (row, int(shot.site.tensor[row].argmax())), 1e4)


@fault_class("tensors", "site", "corrupts", sites=("verify.hidden_states",), needs=("speculative",))
def nan_hidden_states(shot: Shot) -> None:
    """One feature of a tree's root, which the draft head goes on from, is NaN."""
    _put(shot, _cell(shot), math.nan)


@fault_class("tensors", "site", "corrupts", sites=POSITIONS, needs=("speculative",))
def positions_off_by_one(shot: Shot) -> None:
    """The positions of a request's draft forward are one too far."""
    tensor, mine = shot.site.tensor, shot.site_rows(shot.pick())
    rows = slice(mine.start, mine.stop)
    shot.overwrite(tensor, rows, tensor[rows] + 1, shot.site.site)


@fault_class("tensors", "site", "corrupts", sites=("draft.bonus",), needs=("speculative",))
def next_token_swapped(shot: Shot) -> None:
    """The token that a request's next tree grows from is another one of the vocabulary."""
    _swap_token(shot, _row(shot))


@fault_class("tensors", "site", "corrupts", sites=("draft_prefill.input_ids",), needs=("speculative",))
def prompt_token_swapped(shot: Shot) -> None:
    """One token that the draft's prefill embeds is another one of the vocabulary."""
    _swap_token(shot, shot.rng.randrange(shot.site.tensor.shape[0]))


@fault_class("tensors", "site", "corrupts", sites=("verify.input_ids",), needs=("speculative",))
def draft_token_out_of_vocab(shot: Shot) -> None:
    """A drafted token lies outside the target's vocabulary."""
    row = shot.rng.choice(shot.site_rows(shot.pick())[1:])
    _put(shot, (row,), shot.view.vocab_size + shot.rng.randrange(1000))


@fault_class("tensors", "site", "corrupts", sites=CANDIDATES, needs=("speculative",))
def topk_index_out_of_vocab(shot: Shot) -> None:
    """A draft candidate's id is far outside the draft's vocabulary."""
    _put(shot, _cell(shot), FAR)


@fault_class("tensors", "site", "corrupts", sites=CANDIDATES, needs=("speculative",))
def topk_index_next_lane(shot: Shot) -> None:
    """A draft candidate's id is the first after the vocabulary: the lane a masked argmax falls on (SGLang PR 32396)."""
    _put(shot, _cell(shot), shot.view.draft_vocab_size)


@fault_class("tensors", "site", "corrupts", sites=("accept.accept_index",), needs=("tree",))
def accept_index_out_of_range(shot: Shot) -> None:
    """An accepted node's index is one past the batch's last node."""
    _put(shot, (_row(shot), 0), len(shot.batch) * shot.view.spec.tree_size)


@fault_class("tensors", "site", "corrupts", sites=("accept.accept_index",), needs=("tree",))
def accept_index_of_another(shot: Shot) -> None:
    """An accepted node's index points into another request's tree."""
    if len(shot.batch) < 2:
        raise NotHere("there is no other request in the batch")
    row, tree_size = _row(shot), shot.view.spec.tree_size
    shift = tree_size * shot.rng.randrange(1, len(shot.batch))
    _put(shot, (row, 0), (int(shot.site.tensor[row, 0]) + shift) % (len(shot.batch) * tree_size))


@fault_class("tensors", "site", "corrupts", sites=("accept.num_correct_drafts",), needs=("speculative",))
def accept_lengths_disagree(shot: Shot) -> None:
    """A request's accept length is one more than its accepted nodes."""
    most = shot.view.spec.num_steps
    among = [each for each in shot.batch if int(shot.site.tensor[shot.site_rows(each)[0]]) < most]
    row = shot.site_rows(shot.pick(among, "every request has accepted all it can"))[0]
    _put(shot, (row,), int(shot.site.tensor[row]) + 1)


@fault_class("tensors", "site", "corrupts", sites=("accept.num_correct_drafts",), needs=("speculative",))
def accept_length_out_of_range(shot: Shot) -> None:
    """A request's accept length is more than a tree is deep."""
    _put(shot, (_row(shot),), shot.view.spec.num_steps + 1)


@fault_class("tensors", "site", "corrupts", sites=("move_kv_cache.src_loc",), needs=("tree",), addressed_by=())
def move_source_out_of_range(shot: Shot) -> None:
    """A slot that accepted KV is copied from lies behind the pool."""
    if not shot.site.tensor.numel():
        raise NotHere("no accepted KV had to be moved")
    _put(shot, (0,), shot.view.memory.target.size + shot.rng.randrange(100))


@fault_class("tensors", "site", "corrupts", sites=POISONED, needs=("speculative", "graphs"), addressed_by=())
def poisoned_padding_rows(shot: Shot) -> None:
    """A replay's padding rows hold what was never written: ids far out of range, or NaN."""
    value = math.nan if shot.site.tensor.is_floating_point() else FAR
    shot.overwrite(shot.site.tensor, _padding(shot), value, shot.site.site)


@fault_class("tensors", "site", "benign", sites=REPLAYED, needs=("speculative", "graphs"), addressed_by=())
def stale_padding_rows(shot: Shot) -> None:
    """A replay's padding rows hold a live row's values: what is computed for them is never read."""
    shot.overwrite(shot.site.tensor, _padding(shot), shot.site.tensor[0], shot.site.site)


@fault_class(
    "tensors",
    "site",
    "corrupts",
    sites=("draft_graph.replay.topk_index", "draft_graph.replay.input_ids"),
    needs=("speculative", "graphs", "ragged"),
    addressed_by=(),
)
def stale_padding_positions(shot: Shot) -> None:
    """A replay's padding rows keep a live row's positions, from which the draft's index pointers are made."""
    padding = _padding(shot)
    positions, topk = shot.view.buffers("draft")["draft.positions"], shot.view.spec.eagle_topk
    shot.overwrite(positions, slice(padding.start * topk, padding.stop * topk), positions[0], "draft.positions")


def _row(shot: Shot) -> int:
    """A row of the site's tensor that belongs to the request picked; the first node of a tree, which is always read."""
    return shot.site_rows(shot.pick())[0]


def _cell(shot: Shot) -> tuple[int, int]:
    """That row, and a column that is drawn."""
    return _row(shot), shot.rng.randrange(shot.site.tensor.shape[1])


def _put(shot: Shot, index: tuple[int, ...], value: float) -> None:
    shot.edit(shot.site.tensor, index, value, shot.site.site)


def _swap_token(shot: Shot, row: int) -> None:
    vocab_size = shot.view.vocab_size
    _put(shot, (row,), (int(shot.site.tensor[row]) + shot.rng.randrange(1, vocab_size)) % vocab_size)


def _padding(shot: Shot) -> slice:
    """Rows of a replay's inputs behind the batch's. Raises NotHere when there are none."""
    live, rows = shot.site_rows(shot.batch[-1]).stop, shot.site.tensor.shape[0]
    if live >= rows:
        raise NotHere("the batch fills its graph: there is no padding row")
    return slice(live, rows)


@fault_class(ANYWHERE, "site", "corrupts", sites=INDEX_SITES, addressed_by=())
def index_out_of_range(shot: Shot) -> None:
    """One index that passes a site is too large by at least one."""
    shot.edit(shot.site.tensor, _somewhere(shot), math.ceil(shot.site.high) + shot.rng.randrange(8), shot.site.site)


@fault_class(ANYWHERE, "site", "corrupts", sites=NUMBER_SITES, addressed_by=())
def not_a_number(shot: Shot) -> None:
    """One number that passes a site becomes NaN."""
    shot.edit(shot.site.tensor, _somewhere(shot), math.nan, shot.site.site)


def _somewhere(shot: Shot) -> tuple[int, ...]:
    if not shot.site.tensor.numel():
        raise NotHere(f"nothing passed {shot.site.site}")
    return tuple(shot.rng.randrange(size) for size in shot.site.tensor.shape)
