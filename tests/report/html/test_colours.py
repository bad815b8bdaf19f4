"""Colours of the pages, from the style sheet: legible in light and dark, and one meaning each in a chart."""

import re
from importlib.resources import files
from itertools import combinations

import pytest

CSS = files("specdebug.report.html").joinpath("templates", "page.css").read_text(encoding="utf-8")

TEXT = ("ink", "muted", "one", "two", "pass", "fail", "unknown", "injected")
"""Variables that text is written in."""

CHARTS = {
    "accept": ("muted", "one", "two", "fail", "injected"),
    "timeline": ("prefill", "decode", "idle", "batch", "time", "pass", "retracted", "fail", "injected"),
    "posterior": ("one", "c2", "c3", "c4", "c5", "fail", "pass", "unknown", "idle"),
    "rate": ("one", "two", "fail"),
    "overlay": ("one", "two"),
}
"""By chart the variables of what is drawn in it, each for one meaning."""


def schemes() -> dict[str, dict[str, str]]:
    """By scheme the colours of all variables."""
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    pairs = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in (light, dark)]
    return {"light": pairs[0], "dark": pairs[0] | pairs[1]}


def channels(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.1."""
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def apart(one: str, other: str) -> float:
    """Distance in RGB, 0 to about 1.7."""
    return sum((a - b) ** 2 for a, b in zip(channels(one), channels(other), strict=True)) ** 0.5


def rule(selector: str) -> str:
    """What a rule of exactly this selector declares."""
    found = re.search(rf"(?:^|\}} ?){re.escape(selector)} \{{([^}}]*)\}}", CSS, re.MULTILINE)
    assert found is not None, selector
    return found[1]


def test_both_schemes_have_the_same_variables() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    names = [set(re.findall(r"--([\w-]+):", block)) for block in (light, dark)]
    assert names[0] == names[1]
    used = set(re.findall(r"var\(--([\w-]+)", CSS)) - {"of", "heat-of"}
    assert used == names[0]  # none is missing, and none is there for nothing


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_on_every_ground(scheme: str) -> None:
    colours = schemes()[scheme]
    for ink in TEXT:
        for ground in ("page", "panel"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["ink"], colours["code"]) >= 4.5
    assert contrast(colours["page"], colours["ink"]) >= 4.5  # the tip, the other way round


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("chart", CHARTS)
def test_what_is_drawn_stands_out_and_has_a_colour_of_its_own(chart: str, scheme: str) -> None:
    colours = schemes()[scheme]
    for name in CHARTS[chart]:
        assert contrast(colours[name], colours["panel"]) >= 3, name
    for one, other in combinations(CHARTS[chart], 2):
        assert apart(colours[one], colours[other]) > 0.12, (one, other)


def test_what_has_the_focus_is_seen() -> None:
    assert "outline: 3px solid var(--one)" in rule(":focus-visible")
    assert "left: 8px" in rule(".skip:focus")
