"""The answer of ``diverge`` in words."""

from __future__ import annotations

from dataclasses import replace

from specdebug.diverge.align import Difference
from specdebug.diverge.common import Looked
from specdebug.diverge.judge import Rounding
from specdebug.diverge.run import Divergence
from specdebug.diverge.stream import Descriptor, Share
from specdebug.diverge.values import ValueDifference
from specdebug.report.diverge import divergence_document, render_divergence
from specdebug.report.terminal import console
from specdebug.verdict.outcome import Outcome

LOGITS = Descriptor("verify.logits", "float32", (0,), (6,))
LEFT, RIGHT = (Share(step, 0, 1, LOGITS, "a", 0, digest) for step, digest in ((3, 1), (4, 2)))
FOUND = Difference("value", 4, "verify.logits", "a", LEFT, RIGHT)


def text(answer: Divergence) -> str:
    canvas = console()
    with canvas.capture() as captured:
        canvas.print(render_divergence("two", answer))
    return " ".join(captured.get().split())


def test_the_place_and_both_values() -> None:
    values = ValueDifference((2, 5), 1.5, -1.5, 3, 12, 2.0)
    said = text(Divergence(("x", "y"), steps=(9, 9), first=FOUND, values=values, after=(FOUND,)))
    assert "two: x against y diverged at step 3/4, request a, site verify.logits (call 2 of it in the step)" in said
    assert "float32 [2, 5]: 1.5 in the first arm, -1.5 in the second; 3 of its 12 elements differ" in said
    assert "right after:" in said


def test_nothing_and_rounding_and_no_telling() -> None:
    assert text(Divergence(("x", "y"), steps=(9, 9))) == "two: x against y nothing diverged in 9 steps"
    rounded = Divergence(("x", "y"), steps=(9, 9), alike=False, rounding=Rounding().with_one(FOUND, 1e-6))
    assert "nothing diverged but for rounding in 9 steps" in text(rounded)
    assert "1 tensors differ by at most 1.0e-06" in text(rounded)
    parted = Divergence(("x", "y"), steps=(9, 9), alike=False, rounding=Rounding(parted=(FOUND,)))
    assert "nothing diverged but for rounding in 9 steps a is compared up to step 3/4 only: at verify.logits" in text(
        parted
    )
    assert [each["request"] for each in divergence_document("two", parted)["rounding"]["parted"]] == ["a"]
    unlike = Divergence(("x", "y"), reason="only one of the two arms speculates")
    assert text(unlike) == "two: x against y cannot be compared: only one of the two arms speculates"
    codes = [each.exit_code for each in (rounded, unlike, Divergence(("x", "y"), first=FOUND))]
    assert codes == [0, 125, 1]


def test_two_engines_are_told_by_what_was_compared_and_what_only_one_computed() -> None:
    looked = Looked(
        "engines",
        ("verify.logits",),
        (("tree.parents",), ()),
        {"s": "is sampled, by coins of each engine's own"},
        left_out={"a": "was preempted there, and computed again"},
        prompts=(30, 0, 4),
    )
    answer = Divergence(("x", "y"), steps=(9, 9), alike=False, looked=looked)
    said = text(answer)
    assert "two engines: 1 sites of both were compared, 1 are the first arm's alone and 0 are the second arm's" in said
    assert "positions of prompts: 30 were computed by both and compared, 0 the first arm alone and 4 the second" in said
    assert "s was not compared: it is sampled" in said
    assert "a was compared up to a step only: it was preempted there, and computed again" in said
    document = divergence_document("two", answer)["looked"]
    assert (document["left_out"], document["prompts"]) == (looked.left_out, [30, 0, 4])
    alike = Looked("engines", ("verify.logits",), ((), ()), {})
    assert "positions of prompts" not in text(Divergence(("x", "y"), steps=(9, 9), alike=False, looked=alike))


def test_two_workers_are_told_by_what_was_compared_and_where_they_rightly_differ() -> None:
    unlike = {"kv_pool.write.v": 3, "kv_pool.write.k": 4}
    looked = Looked("workers", ("verify.logits",), ((), ("x.y",)), {}, unlike=unlike)
    answer = Divergence(("x", "y"), steps=(9, 9), alike=False, looked=looked)
    said = text(answer)
    assert "two workers: 1 sites of both were compared, 0 are the first arm's alone and 1 are the second arm's" in said
    assert "rightly has other rows: 7 at kv_pool.write.k, kv_pool.write.v" in said
    document = divergence_document("two", answer)["looked"]
    assert (document["what"], document["unlike"]) == ("workers", unlike)


def test_arms_configured_otherwise_are_told_what_was_left_out_and_that_their_schedules_part() -> None:
    looked = Looked("arms", ("verify.logits",), ((), ()), {"a": "was computed again by one of them"})
    answer = Divergence(("x", "y"), steps=(9, 9), alike=False, looked=looked, rescheduled=4)
    said = text(answer)
    assert "a was not compared: it was computed again by one of them" in said
    assert "schedule otherwise from step 4 on" in said
    assert "sites of both" not in said
    eager = Looked("arms", ("verify.logits",), ((), ("draft_graph.replay.topk_p",)), {})
    assert "two arms: 1 sites of both" in text(Divergence(("x", "y"), steps=(9, 9), alike=False, looked=eager))


def test_as_data() -> None:
    document = divergence_document("two", Divergence(("x", "y"), steps=(9, 9), first=FOUND))
    assert document["first"] == {
        "what": "value",
        "step": 4,
        "steps": [3, 4],
        "site": "verify.logits",
        "call": 2,
        "request": "a",
        "dtype": "float32",
        "text": "",
    }
    assert (document["exit_code"], document["diverged"], document["values"]) == (1, True, None)


def test_what_is_not_the_engine_s_own_code_is_told_of_each_arm() -> None:
    there = Outcome("pass", None, None, "", None, not_engine_code=("graphs: called again", "a.kernel"))
    answer = Divergence(("x", "y"), steps=(9, 9), outcomes=(replace(there, not_engine_code=()), there))
    assert "y: in place of the engine's own GPU code: graphs; 1 stand-in (see --json)" in text(answer)
    told = divergence_document("two", answer)["outcomes"]
    assert [each["not_engine_code"] for each in told] == [[], list(there.not_engine_code)]
