"""What shows a fix is looked for among scenarios: it fails without the fix and passes with it."""

from specdebug.apps.mining.prove import Proving, closest_first
from specdebug.campaign.preload import PRELOAD
from specdebug.scenario.library import Library
from specdebug.workers.pool import WorkerPool


def test_scenarios_are_tried_until_one_shows_the_fix() -> None:
    heard: list[str] = []
    with WorkerPool(1, PRELOAD) as pool:
        proving = Proving(pool, Library(), 27338, None, heard.append)
        silent, shows = proving.tried(["draft_positions", "topk_kv_indices", "chunk_tail"])
    assert (silent.shows, silent.why) == ("", "passes with the fix reverted")
    assert (shows.ran > 0, shows.why) == (True, "")
    assert Library().registry.find("27338").detected_by.recognises(shows.shows)
    assert [line.partition(":")[0] for line in heard] == ["draft_positions", "topk_kv_indices"]


def test_scenarios_whose_names_share_words_with_the_fix_come_first() -> None:
    names = ["cache_hit", "draft_positions", "graph_padding"]
    words = ["Advance", "draft", "positions", "toy.draft:graph.rows"]
    assert closest_first(names, words) == ["draft_positions", "graph_padding", "cache_hit"]
