"""Look for a scenario that shows a mined fix on an engine: sound with it, failing without."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import Choices, replay
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.settings import TargetChoice
from specdebug.verdict.outcome import Outcome
from specdebug.workers.pool import WorkerPool


@dataclass(frozen=True)
class Attempt:
    """What a scenario came to with the fix reverted. ``ran``: edits of the fix whose lines ran. ``shows``: the
    signature of its failure, where the arm passes with the fix; ``why``: else, in words."""

    scenario: str
    ran: int
    shows: str
    why: str


@dataclass(frozen=True)
class Proving:
    """The fix ``number`` of ``library`` on a target. ``heard``: is told of each scenario that was tried."""

    pool: WorkerPool
    library: Library
    number: int
    target: TargetChoice | None
    heard: Callable[[str], None]

    def tried(self, names: Sequence[str]) -> Iterator[Attempt]:
        """Each scenario in turn, up to the first that shows the fix."""
        for name in names:
            try:
                found = self._try(self.library.scenario(name))
            except SpecDebugError as error:
                found = Attempt(name, 0, "", str(error))
            self.heard(f"{name}: {found.shows or found.why}")
            yield found
            if found.shows:
                return

    def _try(self, scenario: Scenario) -> Attempt:
        arm = next((arm for arm, expected in scenario.expect.items() if expected.verdict == "pass"), None)
        if arm is None:
            return Attempt(scenario.name, 0, "", "it has no arm that is to pass")
        reverted = self._run(scenario, arm, self.number)
        ran = sum(1 for hits in reverted.reverted_hits.get(str(self.number), {}).values() if hits)
        if reverted.verdict != "fail":
            why = "passes with the fix reverted" if reverted.verdict == "pass" else reverted.verdict
            return Attempt(scenario.name, ran, "", why if ran else f"{why}; its lines never ran")
        sound = self._run(scenario, arm)
        if sound.verdict != "pass":
            return Attempt(scenario.name, ran, "", f"{sound.verdict} with the fix, too")
        return Attempt(scenario.name, ran, reverted.signature or "", "")

    def _run(self, scenario: Scenario, arm: str, *reverts: int) -> Outcome:
        choices = Choices(arms=(arm,), reverts=reverts, target=self.target)
        (result,) = replay(self.pool, self.library, scenario, choices).results
        return result.outcome


def closest_first(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Names of scenarios, those first that share most words with what the fix is about."""
    wanted = {part for word in words for part in re.split(r"[\W_]+", word.lower())}
    return sorted(names, key=lambda name: (-len(wanted & set(name.lower().split("_"))), name))
