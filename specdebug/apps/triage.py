"""Triage: from the scan of a log to the fixes of the registry that might be missing where it is from, each with its
reasons; trials of the best; and a scenario made of the launch flags that the log shows.

Only evidence names a fix, and only one of the engine that wrote the log: the log says that it was reverted, holds a
signature that the fix's scenario fails with, or tells of damage that the fix's stated symptom speaks of. The log's
setting only orders what evidence has named, by points that mean nothing else: running the candidates decides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdebug.base.attention_plans import PLANS
from specdebug.base.engine_flags import ENGINE_FLAGS, NOT_SUPPORTED, EngineFlag, options_of
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.yamlio import as_json, parse_yaml
from specdebug.campaign.loops.replay import Choices, Progress, plan, run_arms
from specdebug.campaign.loops.verify import exists_in
from specdebug.logs.facts import Facts
from specdebug.logs.findings import Finding
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import scenario_of
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.http.server import split
from specdebug.verdict.outcome import Outcome
from specdebug.workers.pool import WorkerPool

MAX_CANDIDATES = 5
MAX_REPLAYS = 3
OWN = "specdebug"  # the engine that ships here; its fixes are SGLang's
REGISTRY = "sglang"  # the engine whose debug variable takes the fixes to revert
CONSEQUENCE = 8  # points for a signature of a fix among the consequences. Only evidence that settles it has more.

SYMPTOM = 3  # points for damage that the fix's symptom speaks of

_SYMPTOMS: dict[str, re.Pattern[str]] = {
    "nan": re.compile(r"\bNaN\b"),
    "oob": re.compile(r"out-of-vocabulary|illegal address|overruns"),
    "illegal-address": re.compile(r"illegal address|overruns|corruption"),
    "pools": re.compile(r"\bleak"),
    "guard": re.compile(r"overruns|corruption"),
    "accept-drop": re.compile(r"accept length"),
    "mismatch": re.compile(r"accept length|draft KV"),
}
"""By kind of damage, words of a toggle's symptom that speak of it."""

_UNSAID = "assert@cuda"
"""An assertion on the device whose text is not in the log; those of torch's kernels are about indices."""


@dataclass(frozen=True)
class CandidateFix:
    """A fix that might be missing. ``arm``: that of ``scenario`` which reverts just this fix, if it has one;
    ``exact``: the log names this failure or this revert itself."""

    toggle: Toggle
    scenario: Scenario
    arm: str | None
    points: int
    reasons: tuple[str, ...]
    exact: bool

    @property
    def replay(self) -> tuple[str, ...]:
        """The command line that shows the failure without the fix."""
        name = self.toggle.detected_by.scenario
        chosen = ("--arm", self.arm) if self.arm is not None else ("--revert", str(self.toggle.pr))
        return ("specdebug", "replay", name, *chosen)

    @property
    def bisect(self) -> tuple[str, ...]:
        """The command line that singles the fix out among all."""
        signature = self.toggle.detected_by.signatures[0]
        return ("specdebug", "bisect", self.toggle.detected_by.scenario, "--signature", signature)


def candidates(found: Scan, library: Library) -> tuple[CandidateFix, ...]:
    """The likeliest fixes, best first; none when there is no evidence for any. Raises ContentError."""
    engine = engine_of(found)
    if found.main is None or engine is None:
        return ()
    ranked = []
    for toggle in (_as_seen(each, found) for each in library.all_toggles() if _is_of(each, engine)):
        evidence = (*_seen(toggle, found), *_damage(toggle, found.main))
        if not evidence:
            continue
        scenario = library.scenario(toggle.detected_by.scenario)
        numbers, reasons = zip(*evidence, *_likely(toggle, scenario, found), strict=True)
        if sum(numbers) >= SYMPTOM:
            arm = next((arm.name for arm in scenario.arms.values() if arm.revert == (toggle.pr,)), None)
            exact = any(number > CONSEQUENCE for number, _ in evidence)
            ranked.append(CandidateFix(toggle, scenario, arm, sum(numbers), reasons, exact))
    # Of two alike the newer: fewer releases have it.
    ranked.sort(key=lambda candidate: (-candidate.points, -candidate.toggle.pr))
    if ranked and ranked[0].exact:
        ranked = [candidate for candidate in ranked if candidate.points >= CONSEQUENCE]
    return tuple(ranked[:MAX_CANDIDATES])


def engine_of(found: Scan) -> str | None:
    """The engine that wrote a log: ours where a signature of ours names the failure, unless it is said to be another's;
    None where nothing shows one."""
    engine = found.facts.engine
    ours = found.main is not None and found.main.strength <= Strength.NAMED
    return OWN if ours and engine in (None, REGISTRY) else engine


def _is_of(toggle: Toggle, engine: str) -> bool:
    """Return True if a fix is one of an engine's: made there, or known to be in it."""
    upstream = toggle.url.lower().partition("github.com/")[2].split("/")
    return engine == OWN or engine in upstream[1:2] or toggle.is_in(engine)


def commands(found: Scan, best: tuple[CandidateFix, ...], library: Library) -> tuple[str, ...]:
    """The commands to run next, the most telling first, as they fit the engine. Raises ContentError."""
    job = shlex.join(found.facts.test) or "COMMAND"
    how_often = f"specdebug flake -- {job}   # how often it fails, and in which ways"
    if found.main is None:
        return (how_often,)
    lines: list[tuple[str, ...]] = []
    if (named := scenario_named(found.facts, library)) is not None:
        arm = ("--arm", found.facts.arm) if found.facts.arm else ()
        lines.append(("specdebug", "replay", named, *arm))
    lines += [candidate.replay for candidate in best[:MAX_REPLAYS]]
    if best:
        lines.append(best[0].bisect)
    told = [shlex.join(line) for line in dict.fromkeys(lines)]
    engine = engine_of(found)
    if engine in (OWN, REGISTRY) and not (best and best[0].exact):
        told.append(f"specdebug bisect -- {job}   # reverts each fix in turn, tells flaky from broken")
    if engine != OWN and not best:
        told.append(f"specdebug bisect --over commits --good REV -- {job}   # which commit broke it")
    if not best:
        told.append(how_often)
    return tuple(told)


def scenario_named(facts: Facts, library: Library) -> str | None:
    """The scenario of ours that a log says failed, by its name or file as a command takes it; None where it names none
    that is here."""
    if facts.scenario is None or Path(facts.scenario).is_file():
        return facts.scenario
    stem = Path(facts.scenario).stem
    return next((one.path.stem for one in library.scenarios() if stem in (one.name, one.path.stem)), None)


Weighed = tuple[int, str]


def _as_seen(toggle: Toggle, found: Scan) -> Toggle:
    """The fix with the scenario that fails as the log does as its first, if one of its scenarios does."""
    signatures = [name for finding in found.ranked() for name in names_of(finding)]
    stated = (
        *toggle.detections,
        *(shown for engine, shown in toggle.detected_in.items() if found.facts.engine in (engine, None)),
    )
    detection = next((each for signature in signatures for each in stated if each.recognises(signature)), None)
    return toggle if detection is None else toggle.shown_by(detection)


def _seen(toggle: Toggle, found: Scan) -> Iterator[Weighed]:
    for number in sorted(found.facts.reverted.intersection(toggle.numbers)):
        yield 40, f"the log says that {number} was reverted"
    named = (each for each in found.ranked() if any(f"#{number}" in each.text for number in toggle.numbers))
    if first := next(named, None):
        yield 20, f"line {first.line} names it"
    known = (each for each in found.ranked() if any(map(toggle.detected_by.recognises, names_of(each))))
    if first := next(known, None):
        points = 20 if first is found.main else CONSEQUENCE
        yield points, f"{first.signature} (line {first.line}) is how its scenario fails"


def names_of(finding: Finding) -> tuple[str, str]:
    """The signatures of a failure: as a log has it, and as a run of the engine in a worker has it."""
    return finding.signature, "@".join(split(finding.signature))


def _damage(toggle: Toggle, main: Finding) -> Iterator[Weighed]:
    """Points if the failure is damage of which the fix's symptom speaks."""
    if main.strength > Strength.DEVICE:
        return
    pattern = _SYMPTOMS.get("oob" if main.signature == _UNSAID else main.means)
    if pattern is not None and (word := pattern.search(toggle.symptom)):
        yield SYMPTOM, f"its symptom fits ({word[0]}): {toggle.symptom}"


def _likely(toggle: Toggle, scenario: Scenario, found: Scan) -> Iterator[Weighed]:
    """Points for and against a fix by the tracebacks and the setting of the log."""
    facts = found.facts
    hit = next((each for each in found.ranked() if " cached prefix" in each.text), None)
    foreign = [patch for versions in toggle.foreign.values() for patches in versions.values() for patch in patches]
    changed = {patch.qualname.rpartition(".")[2] for patch in (*toggle.patches, *foreign) if patch.qualname}
    if through := sorted(facts.functions & changed):
        yield 3, f"a traceback passes through {', '.join(through)}, which it changes"
    if hit is not None and toggle.family == "cache hit":
        yield 2, f"it is about prefix cache hits, and so is line {hit.line}"
    elif facts.cached_tokens is not None and toggle.family == "cache hit":
        yield 2, f"it is about prefix cache hits, and the log has one ({facts.cached_tokens} cached tokens)"
    if facts.backend is not None:
        plans = [plan for plan in PLANS if exists_in(toggle, plan)]
        if facts.backend not in plans:
            yield -6, f"it is a fix of {' and '.join(plans)}, not of {facts.backend}"
        elif len(plans) < len(PLANS):
            yield 2, f"it is a fix of {' and '.join(plans)}, which the log uses"
    if facts.topk is not None and toggle.family == "topk > 1":
        yield (2, f"it needs topk > 1, which is {facts.topk}") if facts.topk > 1 else (-6, "it needs topk > 1")
    pages = scenario.engine_of(next(iter(scenario.arms))).get("page_size", 1)
    if facts.page_size is not None and pages > 1:
        yield (
            (1 if facts.page_size > 1 else -1),
            f"its scenario has pages of {pages} slots, the log of {facts.page_size}",
        )


@dataclass(frozen=True)
class Tried:
    """A candidate that was run. ``same``: it failed with the log's very signature; ``alike``: it failed with damage of
    the log's kind, among its consequences if not first."""

    candidate: CandidateFix
    outcome: Outcome
    same: bool
    alike: bool

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.outcome.verdict != "fail":
            return self.outcome.verdict
        return "fails with the same signature" if self.same else "fails alike" if self.alike else "fails otherwise"

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "pr": self.candidate.toggle.pr,
            "verdict": self.outcome.verdict,
            "signature": self.outcome.signature,
            "same_signature": self.same,
            "alike": self.alike,
        }


def try_out(
    pool: WorkerPool, library: Library, best: Sequence[CandidateFix], main: Finding, progress: Progress | None = None
) -> tuple[tuple[Tried, ...], bool]:
    """Run each candidate's scenario without its fix; returns the trials and True if a Ctrl-C cut them short. Raises
    ContentError or SpecDebugError."""
    by_key = {str(candidate.toggle.pr): candidate for candidate in best}
    runs = []
    for key, candidate in by_key.items():
        reverted = Choices(reverts=(candidate.toggle.pr,))
        (run,) = plan(candidate.scenario, Choices(arms=(candidate.arm,)) if candidate.arm else reverted, library)
        runs.append(replace(run, key=key))
    results, interrupted = run_arms(pool, library, runs, progress=progress)
    tried = []
    for result in results:
        same = result.outcome.signature == main.signature
        alike = same or any(violation.kind == main.means for violation in result.outcome.violations)
        tried.append(Tried(by_key[result.run.key], result.outcome, same, alike))
    return tuple(tried), interrupted


_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "MTP", "deepseek_mtp": "MTP", "nextn": "EAGLE"}
_SMALLER = {"context_length": 512, "max_running_requests": 4, "max_total_tokens": 4096, "cuda_graph_max_bs": 4}
"""The most of each option that a model of this size takes."""
_OF_THE_MODEL = frozenset({"model_path", "speculative_draft_model_path", "dtype", "device", "random_seed"})


def scenario_text(facts: Facts, log: str) -> str:
    """A scenario of the flags that a log shows; what was left out stands in its comments. Raises SpecDebugError where
    the log shows none, or where our engine takes none of them."""
    values, left = _values(facts)
    if not values:
        raise SpecDebugError(
            f"{log}: shows no launch flags to make a scenario of; give the log from the server's start on"
        )
    engine: dict[str, Any] = {"model": "tiny", **options_of(values)}
    wrote = " ".join(word for word in (facts.engine or "an engine", facts.version) if word)
    comments = [f"The launch flags of {wrote} as {log} shows them, on the model that ships here."]
    comments += [f"left out: {one}" for one in left]
    comments = ["".join(char if char.isprintable() else " " for char in one)[:200] for one in comments]
    lines = [*(f"# {one}" for one in comments), "name: from-log"]
    lines += [f"engine: {as_json(engine)}", "workload:"]
    lines += [
        "  - {requests: 4, prompt: {corpus: stdlib, tokens: [40, 120]}, max_new_tokens: [8, 40]}",
        "arms:",
        "  as_logged: {}",
        "expect:",
        "  as_logged: {verdict: pass}",
    ]
    text = "\n".join(lines) + "\n"
    try:
        scenario_of(parse_yaml(text, log))
    except ContentError as error:
        raise SpecDebugError(f"{log}: its launch flags make no scenario of our engine: {error}") from None
    return text


def _values(facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """The values of our flags, by parameter, and what is left out and why."""
    by_name = {flag.parameter: flag for flag in ENGINE_FLAGS}
    refused = {name.removeprefix("--").replace("-", "_"): (name, why) for name, why in NOT_SUPPORTED.items()}
    values: dict[str, Any] = {}
    left = []
    for name, text in facts.flags.items():
        flag = by_name.get(name)
        if name in _OF_THE_MODEL:
            left.append(f"--{name.replace('_', '-')} {text}")
        elif flag is None:
            left.append(f"{refused[name][0]} {text}: {refused[name][1]}")
        elif (value := _value(flag, text)) is None:
            left.append(f"{flag.name} {text}: is nothing that our engine has")
        else:
            values[name] = min(value, _SMALLER[name]) if name in _SMALLER else value
    return _speculation(values, left), left


def _speculation(values: dict[str, Any], left: list[str]) -> dict[str, Any]:
    """The values, those of speculation only with an algorithm; a chain's drafts are as many as its steps, and one."""
    ours = [name for name in values if name.startswith("speculative_")]
    if "speculative_algorithm" not in values:
        left += [f"--{name.replace('_', '-')} {values[name]}: no algorithm of ours is given" for name in ours]
        return {name: value for name, value in values.items() if name not in ours}
    steps = values.get("speculative_num_steps")
    if steps is not None and "speculative_num_draft_tokens" not in values:
        values["speculative_eagle_topk"] = values.get("speculative_eagle_topk", 1)
        values["speculative_num_draft_tokens"] = steps + 1
    return values


def _value(flag: EngineFlag, text: str) -> Any:
    """A flag's value as our engine has it; None where it has no such."""
    if flag.parameter == "attention_backend":
        return text if text in PLANS else None
    if flag.parameter == "speculative_algorithm":
        return _ALGORITHMS.get(text.lower())
    if flag.kind == "switch":
        return True
    try:
        return int(text) if flag.kind == "whole" else float(text) if flag.kind == "number" else text
    except ValueError:
        return None
