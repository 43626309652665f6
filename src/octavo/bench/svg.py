"""Plots as SVG text: they stay sharp at any size, need no script, and their words can be searched."""

from __future__ import annotations

import io

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Line colours that people with any kind of colour vision can tell apart (Okabe and Ito).
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """One pair of axes; inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg(figure: Figure) -> str:
    """Without an XML declaration, to stand in HTML."""
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "octavo"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
