"""Places that look like the code before a fix are found by its syntax tree, each with its reasons."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.version import Version

from specdebug.apps.mining.siblings import MOST, Sibling, siblings
from specdebug.apps.mining.sought import fitting, places, sought, views_of
from specdebug.base.yamlio import parse_yaml
from specdebug.patching.drift.dist import Dist, open_package
from specdebug.patching.toggles import Toggle, read_toggle

TOGGLE = """\
pr: 1
title: Rows need room
family: KV cache
symptom: a row is too narrow
patches:
  toy:
    ">=1.0":
      - target: {target}
        edits:
          - match: |
              {match}
            replacement: |
              {replacement}
"""
ROWS = """\
class RowBackend:
    def init_rows(self, max_bs):
        self.kv_indices = zeros((self.num_steps, max_bs * self.topk * self.max_context_len), dtype=int32)
"""
LATENT = """\
class LatentBackend:
    def init_table(self, most_bs):
        self.page_table = zeros((self.steps, most_bs * self.longest), dtype=int32)


class LatentDraft:
    def make(self, max_bs):
        return empty(max_bs * self.max_context_len)
"""
OTHERS = """\
def sampled(logits, temperature):
    return softmax(logits / temperature)


def received(message):
    return loads(message)
"""
RESERVE = """\
def reserve_per_decode():
    return 2 * len_per_decode()


def extra_room(page_size):
    extra = 4
    if page_size > 1:
        extra = max(extra, reserve_per_decode() + page_size - 1)
    return extra


def prepare_tree(batch):
    reserve = reserve_per_decode()
    return aligned_lens(batch.reqs, reserve=reserve, page_size=batch.page_size)


def prepare_block(batch):
    reserve = 2 * batch.block
    return aligned_lens(batch.reqs, reserve=reserve, page_size=batch.page_size)
"""
TAIL = """\
def next_prompt_token_of(request):
    if request is None:
        return None
    return request.origin_ids[request.stop]


def begin(batch, request):
    return Batch(next_prompt_token=next_prompt_token_of(request))


def tail_tokens(batch, sampled):
    known = batch.next_prompt_token
    return sampled if known is None else known
"""


def release(folder: Path, **modules: str) -> Dist:
    package = folder / "toy"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "others": OTHERS, **modules}.items():
        (package / f"{name}.py").write_text(text)
    return Dist("toy", Version("1.0"), open_package(package))


def toggle(target: str, match: str, replacement: str) -> Toggle:
    return read_toggle(parse_yaml(TOGGLE.format(target=target, match=match, replacement=replacement), "toggle"))


def found(dist: Dist, fix: Toggle, engine: Dist | None = None) -> Mapping[str, Sibling]:
    """What looks like the code before a fix, as ``engine`` or the release itself has it, by function."""
    views = views_of(fix, [engine or dist])
    return {
        each.function.partition(":")[2]: each
        for each in siblings(dist, sought(views, dist.name), places(dist, fitting(dist, fix)))
    }


ROOM = toggle(
    "toy.rows:RowBackend.init_rows",
    "self.kv_indices = zeros((self.num_steps, max_bs * self.topk * self.max_context_len), dtype=int32)",
    "self.kv_indices = zeros((self.num_steps, max_bs * self.max_context_len), dtype=int32)",
)
HEADROOM = toggle(
    "toy.reserve:extra_room", "extra = max(extra, reserve_per_decode() + page_size - 1)", "extra = max(extra, 0)"
)


def test_the_same_statement_with_other_names_and_the_same_operands_are_named(tmp_path: Path) -> None:
    told = found(release(tmp_path, rows=ROWS, latent=LATENT), ROOM)
    assert set(told) == {"LatentBackend.init_table", "LatentDraft.make"}
    renamed, product = told["LatentBackend.init_table"], told["LatentDraft.make"]
    assert (renamed.where, renamed.why["form"]) == ("toy/latent.py:3", "after renaming as before the fix")
    assert product.why["factor"] == "max_bs and max_context_len without topk"
    assert product.where == "toy/latent.py:8"


def test_what_has_the_factor_is_no_sibling(tmp_path: Path) -> None:
    mended = LATENT.replace("max_bs * self.max", "max_bs * self.topk * self.max")
    told = found(release(tmp_path, rows=ROWS, latent=mended.replace("most_bs * ", "most_bs * self.topk * ")), ROOM)
    assert not {"form", "factor"} & {reason for each in told.values() for reason in each.why}


def test_who_calls_the_same_without_the_fix_and_its_own_condition_are_named(tmp_path: Path) -> None:
    told = found(release(tmp_path, reserve=RESERVE), HEADROOM)
    assert told["prepare_block"].why["calls"] == "aligned_lens as prepare_tree, which has reserve_per_decode"
    assert told["extra_room"].why == {"condition": "the fix holds only where page_size > 1"}
    assert told["extra_room"].where == "toy/reserve.py:7"
    assert "prepare_tree" not in told


def test_who_makes_what_the_fix_reads_is_named(tmp_path: Path) -> None:
    fix = toggle("toy.tail:tail_tokens", "known = batch.next_prompt_token", "known = None")
    told = found(release(tmp_path, tail=TAIL), fix)
    assert told["next_prompt_token_of"].why["makes"] == "next_prompt_token, which the fix reads"


def test_another_engine_is_searched_by_how_one_that_has_the_fix_is_written(tmp_path: Path) -> None:
    other = tmp_path / "other" / "tea"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "draft.py").write_text(LATENT)
    (other / "others.py").write_text(OTHERS)
    tea = Dist("tea", Version("2.0"), open_package(other))
    told = found(tea, ROOM, release(tmp_path, rows=ROWS))
    assert [each.score for each in told.values()] == sorted((each.score for each in told.values()), reverse=True)
    assert told["LatentDraft.make"].where == "tea/draft.py:8"
    assert "calls" not in told["LatentDraft.make"].why


def test_at_most_ten_are_told_and_no_test_is_among_them(tmp_path: Path) -> None:
    many = "\n".join(f"def make_{n}(self, max_bs):\n    return max_bs * self.max_context_len\n" for n in range(20))
    told = found(release(tmp_path, rows=ROWS, many=many, test_many=many), ROOM)
    assert len(told) == MOST
    assert all(each.where.startswith("toy/many.py") for each in told.values())


def test_a_fix_that_fits_nowhere_has_no_view(tmp_path: Path) -> None:
    assert views_of(toggle("toy.gone:f", "a = 1", "a = 2"), [release(tmp_path)]) == []


@pytest.mark.parametrize("text", ["def f(:\n", "x = 1\n"])
def test_a_module_that_says_nothing_or_does_not_parse_is_passed_over(tmp_path: Path, text: str) -> None:
    assert "LatentDraft.make" in found(release(tmp_path, rows=ROWS, latent=LATENT, odd=text), ROOM)
