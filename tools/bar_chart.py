"""Bar charts as SVG: the same bytes for the same numbers, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# An image does not know the colours of the page around it, so it has its own background.
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .card { fill: #ffffff; stroke: #d0d7de }
  .bar { fill: #00897b } .short { fill: #b26a00 } .line { stroke: #8c959f }
  .mark { stroke: #24292f }
  .faint { fill: #57606a } .title { font-weight: 600 } .end { text-anchor: end }
  .middle { text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .card { fill: #1b1f24; stroke: #444c56 } .bar { fill: #26a69a }
    .short { fill: #d29922 } .line { stroke: #768390 } .mark { stroke: #e6edf3 }
    .faint { fill: #adbac7 }
  }
"""
WIDTH, LABELS, VALUES, LINE, TOP = 820, 345, 60, 24, 56


@dataclass(frozen=True)
class Bar:
    """One bar of a chart.

    Args:
        label: The text beside the bar.
        ratio: The number that the bar shows.
        mark: A number to compare `ratio` with, drawn as a vertical line; or None.
    """

    label: str
    ratio: float
    mark: float | None = None


@dataclass(frozen=True)
class Scale:
    """The axis of a chart.

    Args:
        ticks: The numbers at the axis. Bars begin at `origin` and stay within the ticks.
        origin: Where bars begin. Smaller numbers are drawn to the left, in another colour.
        logarithmic: Whether the axis is logarithmic.
        unit: The text after each number.
    """

    ticks: Sequence[float]
    origin: float
    logarithmic: bool
    unit: str = ""

    def at(self, number: float) -> float:
        """Returns where a number is along the axis, in pixels."""
        first, last = self._length(self.ticks[0]), self._length(self.ticks[-1])
        share = (self._length(number) - first) / (last - first)
        return round(LABELS + min(max(share, 0.0), 1.0) * (WIDTH - LABELS - VALUES), 1)

    def _length(self, number: float) -> float:
        return math.log2(number) if self.logarithmic else number


def bar_chart(title: str, axis: str, bars: Sequence[Bar], scale: Scale, marks: str = "") -> str:
    """Returns a chart of horizontal bars as the text of an SVG file.

    Args:
        title: The text above the chart.
        axis: The text that says what the numbers are.
        bars: The bars, from top to bottom.
        scale: The axis.
        marks: The text that says what the marks of the bars are, if there are marks.
    """
    bottom = TOP + LINE * len(bars)
    height = bottom + 44
    description = f"{title}. {axis}: " + "; ".join(f"{b.label} {b.ratio:.2f}" for b in bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">',
        f"<title>{escape(description)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="16" y="28">{escape(title)}</text>',
    ]
    for tick in scale.ticks:
        x = scale.at(tick)
        strong = "" if tick == scale.origin else ' stroke-dasharray="2 4"'
        parts.append(
            f'<line class="line" x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}"{strong}/>'
            f'<text class="faint middle" x="{x}" y="{bottom + 16}">{tick:g}{scale.unit}</text>'
        )
    for number, bar in enumerate(bars):
        parts.append(_bar(bar, TOP + LINE * number, scale))
    if any(bar.mark for bar in bars):
        axis += f"; the upright marks are {marks}"
    parts.append(f'<text class="faint" x="{LABELS}" y="{bottom + 34}">{escape(axis)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Bar, y: int, scale: Scale) -> str:
    start, end = scale.at(scale.origin), scale.at(bar.ratio)
    left, right = min(start, end), max(start, end)
    kind = "bar" if end >= start else "short"
    mark, text = "", right + 8
    if bar.mark is not None:
        x = scale.at(bar.mark)
        text = max(text, x + 8)
        mark = f'<line class="mark" x1="{x}" y1="{y}" x2="{x}" y2="{y + 18}" stroke-width="2"/>'
    return (
        f'<text class="end" x="{LABELS - 10}" y="{y + 14}">{escape(bar.label)}</text>'
        f'<rect class="{kind}" x="{left}" y="{y + 2}" width="{round(right - left, 1)}" height="14" '
        f'rx="2"/>{mark}'
        f'<text x="{round(text, 1)}" y="{y + 14}">{bar.ratio:.2f}{scale.unit}</text>'
    )
