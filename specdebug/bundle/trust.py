"""Trust in toggles. A toggle is code: its replacement text is compiled into the engine.

Of a bundle from elsewhere only those run that say, letter by letter, what a toggle of this installation says: they can
do no more than ``--revert`` can. Any other needs the user's word.
"""

from __future__ import annotations

from collections.abc import Iterable

from specdebug.bundle.archive import BundleError
from specdebug.toggles import Toggle


def strangers(wanted: Iterable[Toggle], known: Iterable[Toggle]) -> tuple[Toggle, ...]:
    """Those of ``wanted`` whose edits are not those of a toggle in ``known``. Numbers and titles do not count."""
    ours = {_edits(toggle) for toggle in known}
    return tuple(toggle for toggle in wanted if _edits(toggle) not in ours)


def check_trusted(wanted: Iterable[Toggle], known: Iterable[Toggle], bundle: str) -> None:
    """Raise BundleError, which names the toggles and ``--trust``, if one of ``wanted`` is not known here."""
    if unknown := strangers(wanted, known):
        noun, verb = ("toggle", "holds") if len(unknown) == 1 else ("toggles", "hold")
        names = ", ".join(str(toggle.pr) for toggle in unknown)
        raise BundleError(
            f"{bundle}: its {noun} {names} {verb} code that this "
            f"installation does not have; read toggles/{unknown[0].pr}.yaml in the archive, then run it with --trust"
        )


def _edits(toggle: Toggle) -> tuple[tuple[str, str, str], ...]:
    """The effect of a toggle on the embedded engine, all of it."""
    return tuple((patch.target, edit.match, edit.replacement) for patch in toggle.patches for edit in patch.edits)
