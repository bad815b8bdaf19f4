"""Reports reach every listener, in order, until it is told no more."""

from __future__ import annotations

from specdebug.engine import progress


def test_every_listener_hears_every_report_until_it_is_forgotten() -> None:
    one: list[str] = []
    other: list[str] = []
    forget_one = progress.listen(one.append)
    forget_other = progress.listen(other.append)
    try:
        progress.report("capturing graphs, batch 4")
        forget_one()
        forget_one()
        progress.report("")
    finally:
        forget_other()
    assert one == ["capturing graphs, batch 4"]
    assert other == ["capturing graphs, batch 4", ""]
    progress.report("nobody listens")
    assert other[-1] == ""
