"""A scenario's first arm, served in this process with the oracles looking on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specdebug.base.assets import tokenizer_path
from specdebug.engine import Engine
from specdebug.run.judge import Judge
from specdebug.run.loop import RunLoop, Stopped, WorkloadDriver
from specdebug.run.oracles.base import OracleSettings, Reference
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.text import decoder
from specdebug.scenario.workload import expand
from specdebug.targets.embedded import TARGET, EmbeddedSession, build_engine
from specdebug.verdict.outcome import Violation
from tests.run.fakes import ListSink

SCENARIOS = Path(__file__).parents[3] / "scenarios"

ALONE = {
    "lossless": False,
    "draft_kv": False,
    "draft_state": False,
    "acceptance": False,
    "sampling": False,
    "work": False,
}
"""Words that leave the oracles that need no reference, and that one alone sees what is theirs."""


def serve(
    name: str,
    *,
    reference: Reference | None = None,
    seed: int | None = None,
    engine: dict[str, Any] | None = None,
    built: Callable[[Engine], None] = lambda engine: None,
    **oracles: Any,
) -> tuple[list[Violation], Judge, EmbeddedSession]:
    """Serve a shipped scenario with these oracles; returns the violations, the judge and the session. ``engine`` is
    laid over its options; ``built`` is given the engine before it serves."""
    scenario = load_scenario(SCENARIOS / f"{name}.yaml")
    options = {**scenario.engine_of(next(iter(scenario.arms))), **(engine or {})}
    asked = TARGET.asked(options)
    seed = scenario.seed if seed is None else seed
    found: list[Violation] = []
    settings = OracleSettings(OracleSpec(**oracles), asked)
    tokenizer = Tokenizer.from_file(str(tokenizer_path("tiny")))
    session = EmbeddedSession(build_engine(options, seed), asked)
    judge = Judge(settings, session, reference, found.append, lambda rid, tie: None, decoder(tokenizer))
    built(session.inside)
    session.observers.add(judge)
    workload = expand(scenario, tokenizer, seed)
    loop = RunLoop(session, WorkloadDriver(workload), ListSink(), judge, max_steps=2000, decode=str)
    try:
        loop.run()
    except Stopped:
        found.append(Violation("hang"))
    return found, judge, session
