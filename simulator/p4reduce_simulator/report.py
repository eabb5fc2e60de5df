# SPDX-License-Identifier: Apache-2.0
"""Results as tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.outputs import number
from p4reduce_simulator.network import Network
from p4reduce_simulator.peers.comparison import Comparison
from p4reduce_simulator.running import LinkUse, Result
from p4reduce_simulator.workload import Workload

_MOST_LINES = 12


def _title(network: Network) -> str:
    ranks, switches = len(network.ranks), len(network.switches)
    return f"{network.name}: {ranks} rank{'s' * (ranks != 1)}, {switches} switch{'es' * (switches != 1)}"


def summary(network: Network, found: Sequence[tuple[Workload, Result]]) -> Table:
    """Return a table with a row for each workload."""
    numbers = ("elements", "density", "time ms", "median", "99 %", "algbw GB/s", "sent MB", "received MB")
    table = outputs.table(
        _title(network),
        ("sum",),
        (*numbers, "dropped", "lost", "marked", "resent", "events", "wall s"),
        "times in virtual time; median, 99 %: of the ranks' own times; MB: on the wire, of the rank with the most",
    )
    for workload, result in found:
        size = 4 * workload.numel
        up = [link for link in result.links if link.source.startswith("rank")]
        down = [link for link in result.links if link.destination.startswith("rank")]
        slowest = max(result.times)
        table.add_row(
            "exact" if result.exact else "rounded" if result.right else "WRONG",
            str(workload.numel),
            f"{workload.density:g}",
            number(slowest, 1e3),
            number(result.percentile(0.5), 1e3),
            number(result.percentile(0.99), 1e3),
            number(size / slowest / 1e9 if slowest else None),
            number(max(link.bytes for link in up), 1e-6),
            number(max(link.bytes for link in down), 1e-6),
            *(str(sum(getattr(link, name) for link in result.links)) for name in ("dropped", "lost", "marked")),
            str(int(result.totals["retransmissions"])),
            str(result.events),
            number(result.wall),
        )
    return table


def busiest(name: str, links: Sequence[LinkUse], most: int = _MOST_LINES) -> Table:
    """Return a table of the links that carried most for their rate."""
    links = sorted(links, key=lambda link: (-link.utilisation, -link.bytes))[:most]
    table = outputs.table(
        f"busiest links: {name}", ("from", "to"), ("packets", "MB", "busy", "longest wait us", "dropped", "lost")
    )
    for link in links:
        table.add_row(
            link.source,
            link.destination,
            str(link.packets),
            number(link.bytes, 1e-6),
            f"{link.utilisation:.0%}",
            number(link.longest_wait, 1e6),
            str(link.dropped),
            str(link.lost),
        )
    return table


def comparison(network: Network, found: Sequence[Comparison]) -> Table:
    """Return a table with a row for each workload and system."""
    table = outputs.table(
        _title(network),
        ("system",),
        ("elements", "density", "time ms", "speed-up", "sent MB", "received MB", "events", "wall s"),
        f"times in virtual time; speed-up: of {found[0].runs[0].system} over each; MB: on the wire, of the busiest "
        "rank",
    )
    for one in found:
        for run in one.runs:
            table.add_row(
                run.system,
                str(one.numel),
                f"{one.density:.3g}",
                number(run.time, 1e3),
                number(run.time / one.runs[0].time),
                number(run.sent, 1e-6),
                number(run.received, 1e-6),
                str(run.events),
                number(run.wall),
            )
    return table


def plot_comparison(path: Path, network: Network, found: Sequence[Comparison]) -> None:
    """Draw each system's time over the density."""
    with outputs.figure(path, 1, 1, (7, 4.5)) as (figure, axes):
        axis = axes[0][0]
        for index, run in enumerate(found[0].runs):
            points = sorted((one.density, 1e3 * one.runs[index].time) for one in found)
            axis.plot(*zip(*points, strict=True), marker="o", label=run.system)
        axis.set_title(f"{network.name}, {len(network.ranks)} ranks, {found[0].numel} elements")
        axis.set_xlabel("density")
        axis.set_ylabel("virtual time, ms")
        axis.set_xscale("log")
        axis.set_yscale("log")
        outputs.legend(figure, 4)


def plot(path: Path, network: Network, density: float, result: Result) -> None:
    """Draw the utilisation of links over time, on average over the links of each kind."""
    rising = {(child, parent) for tree in network.trees for child, parent in tree.parents.items()}
    core = result.between_switches()
    kinds = {
        "from ranks": ([link for link in result.links if link.source.startswith("rank")], network.edge.rate),
        "toward roots": ([link for link in core if (link.source, link.destination) in rising], network.core.rate),
        "from roots": ([link for link in core if (link.destination, link.source) in rising], network.core.rate),
        "to ranks": ([link for link in result.links if link.destination.startswith("rank")], network.edge.rate),
    }
    with outputs.figure(path, 1, 1, (9, 4.5)) as (figure, axes):
        axis = axes[0][0]
        for label, (links, rate) in kinds.items():
            if links:
                shares = _shares(links, rate, result.interval)
                axis.plot([1e3 * result.interval * at for at in range(len(shares))], shares, label=label)
        axis.set_title(f"{network.name}, {len(network.ranks)} ranks, density {density:g}: average over links")
        axis.set_xlabel("virtual time, ms")
        axis.set_ylabel("utilisation, share of the rate" if network.edge.rate else "bytes per interval")
        axis.set_ylim(bottom=0)
        outputs.legend(figure, 4)


def _shares(links: Sequence[LinkUse], rate: int, interval: float) -> list[float]:
    """Return the average share of the rate in each interval; bytes if there is no rate."""
    most = rate * interval / 8 if rate else 1.0
    length = max((len(link.recorded) for link in links), default=0)
    return [
        sum(link.recorded[at] for link in links if at < len(link.recorded)) / len(links) / most for at in range(length)
    ]
