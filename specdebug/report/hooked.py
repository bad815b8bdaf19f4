"""What the processes of a hooked run told, in lines on stderr and as a document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specdebug import __version__
from specdebug.patching.hook.folder import Told
from specdebug.patching.toggles import Toggle
from specdebug.report.words import counted, some, times


def reverted(toggle: Toggle, told: Told) -> dict[str, Any]:
    """What came of one fix: where it was applied, how often its edits ran in how many processes, and in words why it is
    not proven to have been tried (empty where it is)."""
    applied = [each.applied[toggle.pr] for each in told.processes if toggle.pr in each.applied]
    hits = told.hits(toggle.pr)
    ran_in = sum(any(edit.partition("#")[0] == str(toggle.pr) for edit in each.hits) for each in told.processes)
    why = "" if hits else "its lines never ran"
    if not hits and not applied:
        engines = ", ".join(sorted({*toggle.foreign} - toggle.mends)) or "no package"
        why = f"no process imported {engines}"
    return {
        "pr": toggle.pr,
        "title": toggle.title,
        "engines": sorted({each["engine"] for each in applied}) or ["specdebug"] * bool(hits),
        "versions": sorted({each["version"] for each in applied if each["version"]}),
        "hits": hits,
        "processes": ran_in,
        "not_tried": told.misfits.get(toggle.pr, why),
    }


def lines(toggles: Sequence[Toggle], told: Told, *, probed: bool = False) -> list[str]:
    """The lines of the report: one a fix, what probes found, and why the hook reached no process."""
    said = []
    for toggle in toggles:
        row = reverted(toggle, told)
        where = " and ".join(row["engines"])
        ran = f"its lines ran {times(sum(row['hits'].values()))}, in {row['processes']} of the processes"
        what = f"not tried: {row['not_tried']}" if row["not_tried"] else f"reverted in {where}; {ran}"
        said.append(f"{toggle.pr} {toggle.title}: {what}")
    for each in told.processes:
        found = (
            f"{name}: at least {counted(count, 'bad value')}, first {first}"
            for name, (count, first) in each.found.items()
        )
        said += [f"process {each.pid}: async probe {one}" for one in found]
        said += dict.fromkeys(each.no_sites)
    if probed and not any(each.found for each in told.processes):
        reached = sorted({name for each in told.processes for name in each.reached})
        said.append(f"probes found nothing at {some(reached, 5)}" if reached else "no probe of the packs was reached")
    if (toggles or probed) and not any(each.hooked for each in told.processes):
        old = sorted({each.python for each in told.processes})
        why = f"the hook needs Python 3.9, the command runs {some(old, 3)}" if old else "no Python began with the hook"
        said.append(f"{why} (python -I, -E or -S look at no PYTHONPATH; a container needs the folder mounted)")
    return [f"specdebug run: {each}" for each in said]


def document(
    words: Sequence[str], status: int, code: int, seconds: float, toggles: Sequence[Toggle], told: Told
) -> dict[str, Any]:
    """The record of a run: ``status`` is the command's own exit status, ``exit_code`` ours."""
    return {
        "specdebug": __version__,
        "argv": list(words),
        "status": status,
        "exit_code": code,
        "seconds": round(seconds, 3),
        "reverts": [reverted(toggle, told) for toggle in toggles],
        "packages": told.packages,
        "processes": [asdict(each) for each in told.processes],
    }
