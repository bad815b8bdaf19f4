"""A stranger's code does not run unasked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdebug.bundle.archive import BundleError
from specdebug.bundle.trust import check_trusted, strangers
from specdebug.scenario.library import Library
from specdebug.toggles import Toggle

KNOWN = Library().all_toggles()


def rewritten(toggle: Toggle, replacement: str) -> Toggle:
    """The toggle with other code in its last edit."""
    patch = toggle.patches[-1]
    edits = (*patch.edits[:-1], replace(patch.edits[-1], replacement=replacement))
    return replace(toggle, patches=(*toggle.patches[:-1], replace(patch, edits=edits)))


def test_what_this_installation_has_is_no_stranger() -> None:
    assert strangers(KNOWN, KNOWN) == ()
    check_trusted(KNOWN, KNOWN, "b.specdebug")


@pytest.mark.parametrize("toggle", KNOWN, ids=lambda toggle: str(toggle.pr))
def test_one_letter_makes_a_stranger(toggle: Toggle) -> None:
    old = toggle.patches[-1].edits[-1].replacement
    for changed in (
        rewritten(toggle, old + " "),
        replace(toggle, patches=(*toggle.patches, toggle.patches[0])),
        replace(toggle, patches=(replace(toggle.patches[0], module="os"), *toggle.patches[1:])),
    ):
        assert strangers([changed], KNOWN) == (changed,)


def test_the_number_is_no_proof_and_no_hindrance() -> None:
    first, second = KNOWN[:2]
    assert strangers([replace(first, pr=second.pr)], KNOWN) == ()
    assert strangers([replace(second, patches=rewritten(first, "import os").patches)], KNOWN) != ()


def test_the_refusal_names_the_toggles_and_the_option() -> None:
    one, other = (rewritten(toggle, "import os") for toggle in KNOWN[:2])
    with pytest.raises(BundleError) as caught:
        check_trusted([one, other, KNOWN[2]], KNOWN, "b.specdebug")
    message = str(caught.value)
    assert message.startswith(f"b.specdebug: its toggles {one.pr}, {other.pr} hold code")
    assert "--trust" in message
    assert str(KNOWN[2].pr) not in message
    assert caught.value.exit_code == 2
