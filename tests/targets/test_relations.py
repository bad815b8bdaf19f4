"""What each relation comes to on each target, and where it has no meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specdebug.scenario.grammar import merge
from specdebug.targets.base import Target
from specdebug.targets.installs import store
from specdebug.targets.registry import find_target
from specdebug.targets.relations import RELATIONS, NoTwin, Twin
from specdebug.targets.settings import ReleasedEngine, parse_target

TREE = {"speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8}}
CHAIN = {"speculative": {"algorithm": "EAGLE", "num_steps": 3}}


def installed(folder: Path, engine: str, version: str) -> store.Installed:
    (folder / f"python-{version}").touch()
    return store.Installed(folder, engine, version, "cpu", str(folder / f"python-{version}"), False, "", ("installed",))


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Target]:
    """Each of ours, with releases that are said to be installed."""
    there = [
        installed(tmp_path, "sglang", "0.5.23"),
        installed(tmp_path, "sglang", "0.5.18"),
        installed(tmp_path, "vllm", "0.32.0"),
    ]
    for name in ("find_installed", "look"):
        found = (lambda folder: (there, [])) if name == "look" else (
            lambda folder, release: next(each for each in there if each.engine == release.engine)
        )  # fmt: skip
        monkeypatch.setattr(f"specdebug.targets.installed.{name}", found)
    monkeypatch.setattr("specdebug.targets.sglang.target.source_of", lambda here: Everything())
    return {name: find_target(parse_target(name)) for name in ("embedded", "sglang", "vllm")}


class Everything:
    """Source that has every place."""

    def has(self, place: str) -> bool:
        return True


def twins(target: Target, options: dict[str, Any], prompt: int = 200) -> dict[str, Twin | str]:
    found: dict[str, Twin | str] = {}
    for relation in RELATIONS.values():
        try:
            found[relation.name] = target.twin(relation, options, prompt)
        except NoTwin as error:
            found[relation.name] = str(error)
    return found


def test_every_twin_s_options_are_such_as_its_target_takes(targets: dict[str, Target]) -> None:
    for name, target in targets.items():
        options = CHAIN if name == "vllm" else {**TREE, "attention_backend": "fa3"}
        for twin in twins(target, options).values():
            if isinstance(twin, Twin):
                target.asked(merge(options, twin.options))


def test_relations_without_a_meaning_are_refused_by_name(targets: dict[str, Target]) -> None:
    refused = {
        name: {each for each, twin in twins(target, CHAIN if name == "vllm" else TREE).items() if isinstance(twin, str)}
        for name, target in targets.items()
    }
    assert refused == {
        "embedded": {"release", "runner", "ranks", "dp", "pd"},
        "sglang": {"page", "runner", "dp"},  # pages beside branches are fa3's alone there
        "vllm": {"eager", "overlap", "backend", "release", "dp", "pd"},
    }
    plain = twins(targets["embedded"], {"cuda_graph": {"enabled": False}, "chunked_prefill_size": 64}, 20)
    assert {plain["plain"], plain["eager"], plain["overlap"]} == {
        "it drafts nothing",
        "it has no graphs",
        "nothing of it runs ahead: it has no drafts, or drafts by the worker v1",
    }
    assert twins(targets["embedded"], CHAIN, 16)["chunks"] == "no prompt is longer than a chunk of 16 tokens"


def test_what_options_come_to(targets: dict[str, Target]) -> None:
    found = twins(targets["embedded"], {**TREE, "page_size": 4, "chunked_prefill_size": 24})
    told = {name: twin.options for name, twin in found.items() if isinstance(twin, Twin) and twin.options}
    assert told == {
        "plain": {"speculative": None},
        "chunks": {"chunked_prefill_size": None},
        "eager": {"cuda_graph": {"enabled": False}},
        "overlap": {"speculative": {"worker": "v1"}},
        "page": {"page_size": 1, "memory": {"num_slots": 16384 + 80}, "chunked_prefill_size": 24},
        "backend": {"attention_backend": "fa3"},
    }
    page = found["page"]
    assert isinstance(page, Twin)
    assert page.how == "page_size 1 in place of 4, memory.num_slots 16464 in place of 16384"


def test_another_release_is_the_one_before_and_a_schedule_is_a_flag(targets: dict[str, Target]) -> None:
    found = twins(targets["sglang"], CHAIN)
    older, waiting = found["release"], found["overlap"]
    assert isinstance(older, Twin)
    assert isinstance(older.target, ReleasedEngine)
    assert older.target.release == "sglang==0.5.18"
    assert isinstance(waiting, Twin)
    assert isinstance(waiting.target, ReleasedEngine)
    assert waiting.target.arguments == ("--disable-overlap-schedule",)
    again = twins(find_target(waiting.target), CHAIN)["overlap"]
    assert again == "its schedule waits for each batch as it is"


@pytest.mark.parametrize(
    ("ranks", "other"),
    [
        ({}, {"tp": 2}),
        ({"tp": 2}, {"tp": 1}),
        ({"tp": 2, "pp": 2}, {"tp": 1, "pp": 1}),
        ({"tp": 2, "dp": 2, "dp_attention": True}, {"tp": 1, "dp": 1, "dp_attention": False}),
    ],
)
def test_several_ranks_are_one_and_one_is_two(
    targets: dict[str, Target], ranks: dict[str, Any], other: dict[str, Any]
) -> None:
    twin = targets["sglang"].twin(RELATIONS["ranks"], {**CHAIN, **ranks}, 200)
    assert twin.options == other
    assert twin.unlike == (("accept lengths",) if "pp" in ranks else ())


@pytest.mark.parametrize(("given", "other"), [(None, "skewed"), ("skewed", "round_robin")])
def test_parts_get_other_shares(targets: dict[str, Target], given: str | None, other: str) -> None:
    parts = {"tp": 2, "dp": 2, "dp_attention": True} | ({} if given is None else {"dp_balance": given})
    assert targets["sglang"].twin(RELATIONS["dp"], {**CHAIN, **parts}, 200).options == {"dp_balance": other}
    with pytest.raises(NoTwin, match="its ranks have no parts"):
        targets["sglang"].twin(RELATIONS["dp"], {**CHAIN, "tp": 2}, 200)


@pytest.mark.parametrize(("given", "other"), [(None, "pd"), ("pd", None)])
def test_prefill_and_decode_are_apart_and_together(
    targets: dict[str, Target], given: str | None, other: str | None
) -> None:
    twin = targets["sglang"].twin(RELATIONS["pd"], {**CHAIN, "disaggregation": given}, 200)
    assert twin.options == {"disaggregation": other}


def test_coins_are_the_same_where_each_request_has_its_own(targets: dict[str, Target]) -> None:
    coins = {
        name: {each for each, twin in twins(target, CHAIN).items() if isinstance(twin, Twin) and twin.coins}
        for name, target in targets.items()
    }
    assert coins["sglang"] == {"backend", "eager", "restart"}  # where the same batches draw at once
    dspark = {"model": "tiny", "speculative": {"algorithm": "DSPARK", "num_steps": 3, "draft_model": "tiny-dspark"}}
    assert not targets["sglang"].twin(RELATIONS["eager"], dspark, 200).coins  # a graph draws drafts for padding, too
    assert coins["embedded"] & {"plain", "retracted", "again", "reference"} == set()
    assert {"alone", "cold", "order", "chunks", "eager", "overlap", "page"} <= coins["embedded"]
    assert "again" in coins["vllm"]


def test_zeroed_draft_kv_keeps_tokens_and_not_accept_lengths(targets: dict[str, Target]) -> None:
    options = {"speculative": {**CHAIN["speculative"], "draft_kv_on_hit": "zero_fill"}}
    cold = twins(targets["embedded"], options)["cold"]
    assert isinstance(cold, Twin)
    assert cold.unlike == ("accept lengths",)


def test_a_target_that_says_nothing_has_the_relations_of_requests_alone() -> None:
    found = twins(find_target("reference"), {})
    assert {name for name, twin in found.items() if isinstance(twin, Twin)} == {
        "alone", "order", "again", "interrupted", "restart",
    }  # fmt: skip
    assert found["plain"] == "target reference does not say how"
    assert found["cold"] == "target reference cannot show a prompt served with an empty cache"
