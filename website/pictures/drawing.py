# SPDX-License-Identifier: Apache-2.0
"""The common parts of all pictures: the style, the colours, and the text of the SVG file."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib.style
from matplotlib.figure import Figure

INK = "#1f2328"
FAINT = "#d8dee4"
PAPER = "#ffffff"  # opaque, so that a picture reads the same on light and dark pages
BLUE, ORANGE, GREEN = "#0969da", "#bc4c00", "#1a7f37"  # each at least 4.5 : 1 against the paper

_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 16,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "path",
    "svg.hashsalt": "p4reduce",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw within this, whatever the user's own matplotlibrc says."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def digest(data: str) -> str:
    """Return the source that a picture states, which shows whether it was drawn from `data`."""
    return "sha256:" + hashlib.sha256(data.encode()).hexdigest()


def svg(figure: Figure, *, title: str, data: str) -> str:
    """Return the file's text: no date in it, and `data`'s digest."""
    file = io.StringIO()
    with style():
        figure.savefig(file, format="svg", metadata={"Date": None, "Title": title, "Source": digest(data)})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
