# SPDX-License-Identifier: Apache-2.0
"""How a round goes: three workers, a switch and one of its slots, with one lane and one number for a block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from website.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, style, svg

TITLE = (
    "A round: workers send a block and the number of their next; the switch answers with the sum and the least number"
)

TENSORS = ((5, 0, 0, 1, 0, 0, 0, 4), (0, 0, 3, 2, 0, 0, 0, 0), (2, 0, 0, 0, 0, 0, 0, 6))
"""A worker's blocks, each a number here, where it has 64 in truth."""


@dataclass(frozen=True)
class Round:
    """The round of one block: for each worker the value in its packet, if any, and its next non-zero block, if any."""

    block: int
    values: tuple[int | None, ...]
    nexts: tuple[int | None, ...]

    @property
    def sum(self) -> int:
        return sum(value or 0 for value in self.values)

    @property
    def next(self) -> int | None:
        return min((number for number in self.nexts if number is not None), default=None)


def rounds(tensors: Sequence[Sequence[int]]) -> list[Round]:
    """All of an allreduce, after the one in which workers name their first blocks."""
    block = min((first for tensor in tensors if (first := _next(tensor, -1)) is not None), default=None)
    made = []
    while block is not None:
        values = tuple(tensor[block] or None for tensor in tensors)
        made.append(Round(block, values, tuple(_next(tensor, block) for tensor in tensors)))
        block = made[-1].next
    return made


def _next(tensor: Sequence[int], after: int) -> int | None:
    return next((number for number, value in enumerate(tensor) if value and number > after), None)


# The sheet is 100 wide; y grows upward.
_HEIGHT = 84
_CELL = 6.2
_STRIP = 2.0  # where workers' blocks begin
_VALUE, _NEXT = 67.0, 87.0  # the middles of the columns that go up
_ROWS = (47.0, 35.5, 24.0)  # the middles of the workers' rows


def draw() -> str:
    """Return the picture, as SVG."""
    every = rounds(TENSORS)
    now = every[0]
    with style():
        figure = Figure(figsize=(6.4, 6.4 * _HEIGHT / 100))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 100), ylim=(0, _HEIGHT))
        axes.set_axis_off()
        _switch(axes, now)
        for worker, middle in enumerate(_ROWS):
            _worker(axes, worker, middle, now)
        _arrows(axes, now)
        _rest(axes, every)
    return svg(figure, title=TITLE, data=json.dumps(TENSORS))


def _switch(axes: Axes, now: Round) -> None:
    _box(axes, 2, 68, 96, 14, INK)
    axes.text(6, 75, "switch", color=PAPER, fontsize=19, fontweight="bold", va="center")
    for middle, name, result in ((_VALUE, "sum", now.sum), (_NEXT, "least", now.next)):
        axes.text(middle, 79, name, color=FAINT, fontsize=14, ha="center", va="center")
        axes.text(middle, 73, str(result), color=PAPER, fontsize=22, fontweight="bold", ha="center", va="center")


def _worker(axes: Axes, worker: int, middle: float, now: Round) -> None:
    axes.text(_STRIP, middle + 5.4, f"worker {worker}", fontsize=14, va="center")
    for number, value in enumerate(TENSORS[worker]):
        left = _STRIP + number * _CELL
        axes.add_patch(Rectangle((left, middle - 3), _CELL, 6, facecolor=PAPER if value else FAINT, edgecolor=INK))
        if value:
            colour = BLUE if number == now.block else GREEN if number == now.nexts[worker] else INK
            weight = "normal" if colour == INK else "bold"
            axes.text(left + _CELL / 2, middle, str(value), color=colour, fontweight=weight, ha="center", va="center")
    _packet(axes, _VALUE, middle, now.values[worker], BLUE)
    _packet(axes, _NEXT, middle, now.nexts[worker], GREEN)


def _packet(axes: Axes, middle: float, height: float, number: int | None, colour: str) -> None:
    """One of the two things in a worker's packet; a dash where it has none."""
    text, colour = ("–", INK) if number is None else (str(number), colour)
    axes.text(middle, height, text, color=colour, fontsize=20, fontweight="bold", ha="center", va="center")


def _arrows(axes: Axes, now: Round) -> None:
    for middle, name, colour in ((_VALUE, f"block {now.block}", BLUE), (_NEXT, "my next", GREEN)):
        axes.text(middle, 56, name, color=colour, fontsize=15, ha="center", va="center")
        axes.add_patch(FancyArrowPatch((middle, 59), (middle, 67), color=colour, linewidth=3, mutation_scale=22,
                                       arrowstyle="-|>"))  # fmt: skip
    axes.add_patch(FancyArrowPatch((12, 67), (12, 56), color=ORANGE, linewidth=3, mutation_scale=22,
                                   arrowstyle="-|>"))  # fmt: skip
    axes.text(16, 61.5, f"to all: {now.sum}, and\nblock {now.next} is next", color=ORANGE, fontsize=15, va="center")


def _rest(axes: Axes, every: Sequence[Round]) -> None:
    for number in range(len(TENSORS[0])):
        axes.text(_STRIP + (number + 0.5) * _CELL, 18.5, str(number), fontsize=13, ha="center", va="center")
    axes.text(_STRIP + len(TENSORS[0]) * _CELL + 1.5, 18.5, "block", fontsize=13, va="center")
    blocks = [one.block for one in every]
    never = [number for number in range(len(TENSORS[0])) if number not in blocks]
    axes.text(_STRIP, 10, f"rounds: blocks {' → '.join(map(str, blocks))}", fontsize=15, va="center")
    axes.text(_STRIP, 4, f"zero at all workers, never sent: {', '.join(map(str, never))}", fontsize=15, va="center")


def _box(axes: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    style_of = "round,pad=0,rounding_size=2"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style_of, facecolor=colour, edgecolor=colour))
