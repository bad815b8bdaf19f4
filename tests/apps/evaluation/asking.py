"""Evaluations of a few questions, their worker in this process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdebug.apps.evaluation.declared import Asking, Evaluation, read_evaluation
from specdebug.apps.evaluation.run import Evaluated, evaluate
from specdebug.apps.evaluation.worker import evaluate as work
from specdebug.patching.toggles import Toggle
from specdebug.report.progress import RunProgress
from specdebug.workers.job import WorkerEnd
from tests.run.fakes import FakePool

ENGINE: Mapping[str, Any] = {
    "model": "tiny",
    "max_running_requests": 4,
    "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
}
CODE = (
    ("try:\n    import json\nexcept", (" 42", " ImportError", "]", " lambda"), 1),
    ("class A:\n    def close(self):\n        self", (".", "]", "}", " %"), 0),
    ("def size(items):\n    return len", (" lambda", " 3.14", "(items", "]"), 2),
)
"""Of each the text, the choices and the index of the one with which the shipped target goes on."""


class ListSink:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        # As they come out of a pipe.
        self.events.append(json.loads(json.dumps({"event": event, **fields})))


class WorkHere(FakePool):
    """Runs an evaluation's worker in this process. ``cut``: it is interrupted, or dies, after so many answers."""

    def __init__(self, cut: int | None = None, end: WorkerEnd | None = None) -> None:
        super().__init__(self._work)
        self._cut, self._end = cut, end or WorkerEnd("done", 0, 0.5, 10.0, "")

    def _work(self, job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        sink = ListSink()
        work(job.payload, sink)
        if self._cut is None:
            return sink.events, self._end
        places = [place for place, each in enumerate(sink.events) if each["event"] == "answer"]
        return sink.events[: places[self._cut - 1] + 1], self._end

    def run(self, jobs: Any, listener: Any) -> None:
        super().run(jobs, listener)
        if self._end.kind == "interrupted":
            raise KeyboardInterrupt


def written(folder: Path, questions: Any = CODE) -> str:
    """The path of a new file of questions."""
    path = folder / "q.jsonl"
    records = [{"question": text, "choices": choices, "answer": right} for text, choices, right in questions]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")
    return str(path)


def evaluation(folder: Path, questions: Any = CODE, *, engine: Any = ENGINE, **asking: Any) -> Evaluation:
    """The evaluation of some questions."""
    asking = {"ask": "continuation", "max_new_tokens": 8, "concurrency": 2, **asking}
    shipped = read_evaluation("code")
    return Evaluation("own", Asking(written(folder, questions), **asking), engine=dict(engine), path=shipped.path)


def evaluated(asked: Evaluation, pool: Any = None, toggles: tuple[Toggle, ...] = ()) -> Evaluated:
    """The result."""
    with open("/dev/null", "w", encoding="utf-8") as stream:
        return evaluate(pool or WorkHere(), asked, toggles, 0.95, RunProgress(stream))
