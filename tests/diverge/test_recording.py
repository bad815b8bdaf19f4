"""The file between worker and parent: what is written is read, to the last whole record."""

from array import array
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.diverge.recording import Batch, Descriptor, Writer, read

DESCRIPTORS = st.builds(
    Descriptor,
    st.sampled_from(["verify.logits", "draft.bonus"]),
    st.sampled_from(["float32", "int64"]),
    st.lists(st.integers(-2, 3), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
)
HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=6)
STEPS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcd"), max_size=4).map(tuple), st.lists(DESCRIPTORS, max_size=4), HASHES),
    max_size=5,
)


def write(path: Path, steps: list[tuple[tuple[str, ...], list[Descriptor], list[int]]]) -> None:
    writer = Writer(path)
    for number, (rids, calls, hashes) in enumerate(steps, 1):
        writer.step(
            number, (rids, (), ()), tuple(writer.descriptor(each) for each in calls), array("Q", hashes).tobytes()
        )
    writer.close()


@given(STEPS, st.integers(0, 40))
def test_whole_steps_come_back_and_a_cut_one_is_dropped(
    steps: list[tuple[tuple[str, ...], list[Descriptor], list[int]]], cut: int
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hashes"
        write(path, steps)
        found = [(step.rids, list(step.calls), list(step.digests)) for step in read(path)]
        assert found == [(rids, calls, hashes) for rids, calls, hashes in steps]
        data = path.read_bytes()
        path.write_bytes(data[: max(len(data) - cut, 0)])
        less = [(step.rids, list(step.calls), list(step.digests)) for step in read(path)]
        assert less == found[: len(less)]


def test_starts_ends_and_what_was_in_vain_come_back(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "hashes")
    call = writer.descriptor(Descriptor("verify.logits", "float32", (0, 1, -1), (1, 1, 2)))
    for number in (1, 2):
        batch = (("a", "b"), (("a", 7),), (("b", "was preempted"),))
        writer.step(number, batch, (call,), array("Q", [1, 2, 3]).tobytes())
    writer.in_vain(1, ["b"])
    writer.close()
    first, second = read(tmp_path / "hashes")
    assert (first.starts, first.gone) == (second.starts, second.gone) == ({"a": 7}, {"b": "was preempted"})
    assert [step.calls[0].owners for step in (first, second)] == [(0, -1, -1), (0, 1, -1)]
    assert [part.owner for part in first.parts()] == ["a", None, None]


def test_ten_thousand_steps_take_less_than_64_mib() -> None:
    """As many calls as a step of EAGLE has, and a hash of each for each of eight requests."""
    calls = [Descriptor(f"site.{n}", "float32", tuple(range(8)), (1,) * 8) for n in range(53)]
    rids = tuple(f"request-{n}" for n in range(8))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hashes"
        writer = Writer(path)
        numbers = tuple(writer.descriptor(each) for each in calls)
        for step in range(1000):
            writer.step(step, (rids, (), ()), numbers, array("Q", range(step, step + 53 * 8)).tobytes())
        writer.close()
        assert 10 * path.stat().st_size < 64 * 2**20


def request(kv_len: int, greedy: bool = True) -> SimpleNamespace:
    return SimpleNamespace(kv_len=kv_len, sampling=SimpleNamespace(greedy=greedy))


DECODE = Batch("speculative", [request(10), request(20, greedy=False)], (1, 2), (), branches=2, nodes=6)
PREFILL = Batch("prefill", [request(0), request(4)], (0, 1), (5, 2))


@pytest.mark.parametrize(
    ("site", "rows", "expected"),
    [
        ("verify.logits", 12, [(1, 0, 6), (2, 6, 12)]),
        ("draft.bonus", 2, [(1, 0, 1), (2, 1, 2)]),
        ("draft.forward.logits", 8, [(1, 0, 2), (2, 2, 4), (-1, 4, 8)]),
        ("draft_graph.replay.topk_p", 4, [(1, 0, 1), (2, 1, 2), (-1, 2, 4)]),
        ("draft_extend_graph.replay.input_ids", 24, [(1, 0, 6), (2, 6, 12), (-1, 12, 24)]),
        ("kv_pool.write.loc", 24, [(1, 0, 6), (2, 6, 12), (-1, 12, 24)]),
        ("draft.plan.kv_indptr", 8, [(-2, 0, 8)]),
        ("verify.logits", 13, [(-2, 0, 13)]),
        ("sampler.softmax.probs", 6, [(2, 0, 6)]),
    ],
)
def test_a_decode_step(site: str, rows: int, expected: list[tuple[int, int, int]]) -> None:
    assert DECODE.segments(site, rows) == expected
