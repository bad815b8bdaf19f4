"""Trust in a stranger's bundle: what it may ask of the machine that replays it, decided here for all of it.

A bundle's arm runs without the user's word if it asks for nothing but computing: on the embedded engine, the reference
or a plain ``serve``, with checkpoints, plans and oracles that are specdebug's own, and with toggles that say, letter by
letter, what a toggle of this installation says. Whatever names a command, a path, a URL, a variable or another
package's code needs the user's word. What is harmless is listed, and not what is not: what is new is asked for.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specdebug.base.errors import SpecDebugError
from specdebug.base.redaction import redacted
from specdebug.base.yamlio import one_line
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.targets.options import OURS
from specdebug.targets.registry import OURS as TARGETS
from specdebug.targets.settings import SERVE, LaunchedServer, TargetChoice

HARMLESS = frozenset({"connections", "dtype", "flush", "ready_timeout_s", "request_timeout_s", "stream"})
"""Keys of a plain ``serve`` that say how it is used, and reach nothing."""
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")


def check_scenario_trusted(scenario: Scenario, bundle: str) -> None:
    """Raise SpecDebugError, which names all that a scenario asks for beyond computing, and ``--trust``."""
    if asked := list(dict.fromkeys(wishes(scenario))):
        raise SpecDebugError(
            f"{bundle}: asks for {'; '.join(asked)}: a stranger's bundle gets none of that; if you know who made it, "
            "run it with --trust"
        )


def wishes(scenario: Scenario) -> Iterator[str]:
    """All that a scenario asks for beyond computing, in words."""
    arms = scenario.arms.values()
    for target in (scenario.target, *(arm.target for arm in arms if arm.target is not None)):
        yield from _of_target(target)
    for options in (scenario.engine, *(arm.engine for arm in arms)):
        yield from _of_options(options, "engine")
    for oracles in (scenario.oracles, *(arm.oracles for arm in arms if arm.oracles is not None)):
        for name, more in oracles.more.items():
            yield f"the oracle {_said(name)} of another package, with {_said(more)}"


def _of_target(target: TargetChoice) -> Iterator[str]:
    if isinstance(target, str):
        if target not in TARGETS:
            yield f"the target {_said(target)}, which another package adds"
        return
    plain = LaunchedServer(command=SERVE) if isinstance(target, LaunchedServer) else type(target)()
    unsaid = plain.to_dict()
    for key, value in target.to_dict().items():
        if key not in HARMLESS and value != unsaid.get(key):
            yield f"target.{key}: {_said(value)}"


def _of_options(options: Mapping[str, Any], where: str) -> Iterator[str]:
    """Every text among engine options that is none of the words that specdebug's own engine knows."""
    for key, value in options.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Mapping):
                yield from _of_options(each, f"{where}.{_said(key)}")
            elif isinstance(each, str) and each not in _WORDS and not _DEVICE.fullmatch(each):
                yield f"{where}.{_said(key)}: {_said(each)}"


_WORDS = OURS.words()


def _said(value: object) -> str:
    return one_line(redacted(str(value)), 200)


def strangers(wanted: Iterable[Toggle], known: Iterable[Toggle]) -> tuple[Toggle, ...]:
    """Those of ``wanted`` whose edits are not those of a toggle in ``known``. Numbers and titles do not count."""
    ours = {_edits(toggle) for toggle in known}
    return tuple(toggle for toggle in wanted if _edits(toggle) not in ours)


def check_toggles_trusted(wanted: Iterable[Toggle], known: Iterable[Toggle], bundle: str) -> None:
    """Raise SpecDebugError, which names the toggles and ``--trust``, if one of ``wanted`` is not known here."""
    if unknown := strangers(wanted, known):
        noun, verb = ("toggle", "holds") if len(unknown) == 1 else ("toggles", "hold")
        names = ", ".join(str(toggle.pr) for toggle in unknown)
        raise SpecDebugError(
            f"{bundle}: its {noun} {names} {verb} code that this "
            f"installation does not have; read toggles/{unknown[0].pr}.yaml in the archive, then run it with --trust"
        )


def _edits(toggle: Toggle) -> tuple[tuple[str, str, str], ...]:
    """The effect of a toggle on the embedded engine, all of it."""
    return tuple((patch.target, edit.match, edit.replacement) for patch in toggle.patches for edit in patch.edits)
