"""SVG by hand: elements with everything escaped, scales, ticks, the frame that plots stand in, and thinning out."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup, escape

WIDTH = 960
"""Width of a plot in its own units; the page scales it to the window."""
LEFT, RIGHT = 56, 24
"""Margins: the same in every plot, so that plots over the same steps are aligned."""
MAX_SPANS = 400
"""Things that a plot draws apart; more are drawn in runs of equal length."""
_NEWLINE = Markup("&#10;")  # an XML reader takes a plain one in an attribute for a space

Attribute = str | float | None
Point = tuple[float, float]
T = TypeVar("T")


def element(tag: str, *content: str, **attributes: Attribute) -> Markup:
    """One element. Text that is no Markup is escaped; ``class_`` is class, ``data_tip`` data-tip; None is left out."""
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    shown = "".join(
        f' {name}="{escape(str(value)).replace(chr(10), _NEWLINE) if isinstance(value, str) else number(value)}"'
        for name, value in given.items()
    )
    return Markup(f"<{tag}{shown}>{join(content)}</{tag}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts one after another, escaped where they are plain text."""
    return Markup("").join(parts)


def drawing(height: float, label: str, *content: str, width: float = WIDTH) -> Markup:
    """A whole plot. A screen reader says ``label``; a plot that is wider than others is scrolled."""
    box = f"0 0 {number(width)} {number(height)}"
    least = f"min-width:{number(width)}px" if width > WIDTH else None
    return element("svg", *content, viewBox=box, role="img", aria_label=label, class_="plot", style=least)


def number(value: float) -> str:
    """A coordinate: a tenth of a unit is finer than the eye."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Scale:
    """Maps ``low..high`` of the data onto ``start..end`` of the drawing, in a straight line."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        part = (value - self.low) / span if span else 0.5
        return self.start + part * (self.end - self.start)


def across(low: float, high: float) -> Scale:
    """The horizontal scale between the margins."""
    return Scale(low, high, LEFT, WIDTH - RIGHT)


def chunks(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """All items in at most ``most`` runs of one length (the last may be shorter)."""
    length = max(1, -(-len(items) // most))
    return [items[start : start + length] for start in range(0, len(items), length)]


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within the range, ``about`` so many."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    apart = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / apart - 1e-9)
    count = math.floor(high / apart + 1e-9) - first + 1
    if count < 2:  # one number is no scale
        return ticks(low, high, 2 * about)
    return [round((first + index) * apart, 12) for index in range(count)]


def polyline(points: Sequence[Point], tag: str = "polyline", **attributes: Attribute) -> Markup:
    """A line through points of the drawing; with the tag ``polygon``, a closed area."""
    return element(tag, points=" ".join(f"{number(x)},{number(y)}" for x, y in points), **attributes)


def rect(x: float, y: float, width: float, height: float, **attributes: Attribute) -> Markup:
    """A rectangle; one that would have no extent is drawn half a unit wide."""
    return element("rect", x=x, y=y, width=max(width, 0.5), height=max(height, 0.0), **attributes)


def hits(columns: Iterable[tuple[float, float, str]], top: float, bottom: float) -> Markup:
    """An invisible column for each low end, high end and tip, which shows the tip under the pointer."""
    edges = ((low, top, high - low, bottom - top, tip) for low, high, tip in columns)
    return join(rect(*edge, class_="hit", data_tip=tip) for *edge, tip in edges)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Attribute) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def dot(x: float, y: float, r: float, style: str) -> Markup:
    """A filled circle."""
    return element("circle", cx=x, cy=y, r=r, class_=style)


def text(x: float, y: float, words: str, **attributes: Attribute) -> Markup:
    """A label."""
    return element("text", words, x=x, y=y, **attributes)


def x_axis(scale: Scale, y: float, title: str) -> Markup:
    """Ticks and whole numbers below a plot whose lower edge is at ``y``, and the title at the right."""
    parts = [line(scale.start, y, scale.end, y, class_="axis")]
    for value in (each for each in ticks(scale.low, scale.high, 10) if each % 1 == 0):
        parts.append(line(scale(value), y, scale(value), y + 4, class_="axis"))
        parts.append(text(scale(value), y + 16, f"{value:g}", class_="tick", text_anchor="middle"))
    return join((*parts, text(scale.end, y + 30, title, class_="tick", text_anchor="end")))


def y_axis(
    scale: Scale, title: str, show: Callable[[float], str] = "{:g}".format, about: int = 5, above: float = 8
) -> Markup:
    """A rule across the plot for every tick, its number at the left, the title so far ``above`` them."""
    parts = []
    for value in ticks(scale.low, scale.high, about):
        parts.append(line(LEFT, scale(value), WIDTH - RIGHT, scale(value), class_="grid"))
        parts.append(text(LEFT - 6, scale(value) + 4, show(value), class_="tick", text_anchor="end"))
    return join((*parts, text(LEFT, scale.end - above, title, class_="title")))
