"""Bar charts as SVG text: a page on the web shows them, and a change of a figure is a line in a diff."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDTH, _LABELS, _NUMBERS = 720, 220, 70
_BAR, _GAP, _TITLE = 22, 8, 36
_OURS, _THEIRS, _TEXT = "#1f6feb", "#8b949e", "#57606a"


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars from zero; the first one, Octavo's, stands out."""
    longest = max(value for _, value in values) or 1.0
    room = _WIDTH - _LABELS - _NUMBERS
    height = _TITLE + len(values) * (_BAR + _GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{_TEXT}" role="img" aria-label="{escape(title)}">',
        f'<text x="0" y="18" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for index, (label, value) in enumerate(values):
        top = _TITLE + index * (_BAR + _GAP)
        length = max(1.0, value / longest * room)
        middle = top + _BAR * 0.7
        lines += [
            f'<text x="{_LABELS - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="2" '
            f'fill="{_THEIRS if index else _OURS}"/>',
            f'<text x="{_LABELS + length + 6:.1f}" y="{middle:.1f}">{value:,.4g}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
