"""The embedded engine serving prompts in this process, with oracles looking on."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specdebug.base.assets import tokenizer_path
from specdebug.engine.model.tokenizer import TargetTokenizer
from specdebug.run.dense import DenseReference
from specdebug.run.judge import Judge
from specdebug.run.oracles.base import OracleSettings
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.embedded import EmbeddedSession, EmbeddedTarget, build_engine
from specdebug.verdict.outcome import Violation

EAGLE = {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}
TREE = {"algorithm": "EAGLE", "num_steps": 4, "eagle_topk": 3, "num_draft_tokens": 10}


SOURCE = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
"""Source code, which the shipped heads guess well; the same with every Python."""


@cache
def text() -> tuple[int, ...]:
    """Its tokens."""
    return tuple(TargetTokenizer(tokenizer_path("tiny")).encode(SOURCE))


def prompts(*lengths: int) -> list[tuple[int, ...]]:
    """Pieces of the text, one after another."""
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    return [text()[start : start + length] for start, length in zip(starts, lengths, strict=True)]


class Watched:
    """An engine of these options, its judge, and what that found."""

    def __init__(self, speculative: dict[str, Any], *, spec: dict[str, Any] | None = None, **options: Any) -> None:
        options = {"context_length": 512, "memory": {"num_slots": 2048}, **options, "speculative": speculative}
        asked = EmbeddedTarget().asked(options)
        words = {
            "lossless": False,
            "draft_kv": False,
            "pools": False,
            "sampling": False,
            "ends": False,
            "work": False,
            **(spec or {}),
        }
        settings = OracleSettings(OracleSpec(**words), asked)
        self.found: list[Violation] = []
        self.engine = build_engine(options, 0)
        self.session = EmbeddedSession(self.engine, asked)
        reference = None if settings.reference is None else DenseReference(*settings.reference)
        self.judge = Judge(settings, self.session, reference, self.found.append, lambda rid, tie: None, str)
        self.session.observers.add(self.judge)
        self.steps = 0

    def serve(
        self,
        pieces: Sequence[Sequence[int]],
        max_new_tokens: int = 12,
        *,
        temperatures: Sequence[float] = (0.0,),
        speculative: bool = True,
        until: Callable[[], bool] = lambda: False,
        **sampling: Any,
    ) -> list[Violation]:
        """Serve prompts together, their temperatures in turn; returns all that was found so far."""
        for n, piece in enumerate(pieces):
            temperature = temperatures[n % len(temperatures)]
            asked = RequestSampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=n, **sampling)
            self.session.add(f"r{len(self.engine.requests)}", piece, asked, speculative=speculative)
        while self.session.has_work and not until():
            self.step()
        return self.found

    def step(self) -> None:
        """One step and the looks after it, as a run makes them."""
        self.steps += 1
        self.judge.bench.step = self.steps
        report = self.session.advance()
        self.judge.inspect(self.steps)
        self.judge.stepped(report)
