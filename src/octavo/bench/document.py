"""HTML pages that are whole in themselves: no script, nothing loaded from anywhere."""

from __future__ import annotations

import html
from collections.abc import Iterable
from importlib.util import find_spec

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1080px; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2em; } h3 { font-size: 1em; margin: 0.5em 0 0; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { padding: 0.3em 0.6em; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1em; }
figure { margin: 0; } svg { max-width: 100%; height: auto; }
.key span { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.3em 0 1em; vertical-align: -0.1em; }
.warn { background: #fff3cd; padding: 0.6em 1em; }
"""


def need_plots() -> None:
    """Raises RuntimeError when the plotting library is missing: before a long run, not after it."""
    if find_spec("matplotlib") is None:
        raise RuntimeError(
            "a report with plots needs matplotlib, which is not installed; run `pip install 'octavo[bench]'`."
        )


def document(title: str, parts: Iterable[str]) -> str:
    """A page of these parts of HTML; empty ones are left out."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def figure(title: str, svg: str) -> str:
    """A plot with its title."""
    name = html.escape(title)
    return f'<figure role="img" aria-label="{name}"><h3>{name}</h3>{svg}</figure>'
