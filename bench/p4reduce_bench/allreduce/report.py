# SPDX-License-Identifier: Apache-2.0
"""The results of allreduces as rows, as a table, as JSON and as a plot. GB = 1e9 bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.allreduce.grid import DTYPES, SWITCHED, Case
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.allreduce.systems import Failed, Figures
from p4reduce_bench.outputs import number

VERSION = 1


@dataclass(frozen=True)
class Row:
    """The result of one system on one case. None: not known.

    Bytes and packets are those of the host that has most, as averages of the repetitions, on the wire with all headers
    down to Ethernet's preamble and gap. Without links, each rank counts as a host.
    """

    system: str
    target: str | None
    workers: int
    numel: int
    dtype: str
    density: float
    overlap: str
    sparsity: str
    link_gbps: float | None
    median_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    limit_s: float | None = None
    over_limit: float | None = None
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    tx_bytes: int | None = None
    rx_bytes: int | None = None
    packets: int | None = None
    retransmissions: int | None = None
    wrong: int | None = None
    wire: str | None = None
    ranks_per_host: int = 1
    calls: int = 1
    """Calls in a row, of which all figures are averages."""
    processor_s: float | None = None
    """Processor time of a call, at the rank that took most."""
    way: str = ""
    """`Setup.way`, for systems on the switch."""
    error: str | None = None


def row(
    system: str,
    target: str,
    case: Case,
    figures: Figures | Failed,
    limit_s: float | None,
    bits_per_second: int | None,
    way: str = "",
    calls: int = 1,
) -> Row:
    """Return the row of a system on a case. way: `Setup.way`.

    A repetition takes as long as its slowest rank. Bandwidths are defined as in nccl-tests, in GB/s.
    """
    what = asdict(case)
    del what["seed"], what["file"]
    made = {
        **what,
        "system": system,
        "target": target if system in SWITCHED else None,
        "way": way if system in SWITCHED else "",
        "wire": case.form_of(system),
        "link_gbps": bits_per_second / 1e9 if bits_per_second else None,
        "limit_s": limit_s,
        "calls": calls,
    }
    if isinstance(figures, Failed):
        return Row(**made, error=figures.reason)
    ranks = list(figures.values())
    seconds = [max(turn) for turn in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    median = statistics.median(seconds)
    algorithm = case.numel * DTYPES[case.dtype] / median / 1e9
    return Row(
        **made,
        median_s=median,
        min_s=min(seconds),
        max_s=max(seconds),
        over_limit=median / limit_s if limit_s else None,
        algbw_gbps=algorithm,
        busbw_gbps=algorithm * 2 * (case.workers - 1) / case.workers,
        wrong=sum(rank["wrong"] for rank in ranks),
        processor_s=max(rank["processor_s"] for rank in ranks),
        **_traffic(system, case, figures),
    )


def _traffic(system: str, case: Case, figures: Figures) -> dict[str, Any]:
    """Return the traffic of the busiest host: ranks on a switch count their own, others all that crosses the link."""
    whole = sum if system in SWITCHED else max
    ranks = [figures[rank]["traffic"] for rank in sorted(figures)]
    each = case.ranks_per_host
    hosts = [ranks[first : first + each] for first in range(0, len(ranks), each)]
    return {
        name: round(max(whole(rank[name] for rank in host) for host in hosts))
        for name in ("tx_bytes", "rx_bytes", "packets", "retransmissions")
        if name in ranks[0]
    }


def table(rows: Sequence[Row]) -> Table:
    """Return nccl-tests' columns, and columns for the sparsity and the distance from the limit."""
    unit, factor = ("us", 1e6) if all(one.calls > 1 for one in rows) else ("ms", 1e3)
    shared = any(one.ranks_per_host > 1 for one in rows)
    caption = f"MB, GB/s: 1e6, 1e9 bytes; tx, rx: on the wire, a {'host' if shared else 'worker'}"
    made = outputs.table(
        "allreduce, sum: medians", ("system", "workers", "density", "overlap", "by"),
        ("size MB", "count", "type", "redop", f"time {unit}", "min", "max", "algbw", "busbw", "#wrong", "tx MB",
         "rx MB", "packets", "resent", f"limit {unit}", "time/limit"), caption,
    )  # fmt: skip
    for _, some in groupby(rows, lambda one: (one.workers, one.numel, one.sparsity, one.overlap, one.density)):
        made.add_section()
        for one in some:
            said = ", ".join(filter(None, (one.target, one.wire, one.way)))
            system = f"{one.system} ({said})" if one.target else one.system
            workers = f"{one.workers}, {one.ranks_per_host} a host" if one.ranks_per_host > 1 else str(one.workers)
            cells = [system, workers, f"{one.density:g}", one.overlap, one.sparsity,
                     number(one.numel * DTYPES[one.dtype], 1e-6), str(one.numel), one.dtype, "sum"]  # fmt: skip
            times = (number(seconds, factor) for seconds in (one.median_s, one.min_s, one.max_s))
            made.add_row(*cells, *([failure(one)] if one.error else [
                *times, number(one.algbw_gbps), number(one.busbw_gbps), wrong(one), number(one.tx_bytes, 1e-6),
                number(one.rx_bytes, 1e-6), number(one.packets), number(one.retransmissions),
                number(one.limit_s, factor), number(one.over_limit),
            ]))  # fmt: skip
    return made


def failure(row: Row) -> str:
    """Return the cell of a failed measurement."""
    return f"[red]{escape((row.error or '').splitlines()[0][:60])}[/]"


def wrong(row: Row) -> str:
    """Return the cell with the number of wrong elements."""
    return "0" if row.wrong == 0 else f"[red]{row.wrong}[/]"


def rates(memory: Memory | None) -> dict[str, float | None]:
    """Return the rates that the limit without a link is computed from, in GB/s."""
    found = asdict(memory) if memory else dict.fromkeys(("read", "written", "copied"))
    return {f"{name}_gb_per_s": rate and rate / 1e9 for name, rate in found.items()}


def write_json(path: Path, rows: Sequence[Row], memory: Memory | None) -> None:
    """Write the rows with `outputs.write_json`."""
    outputs.write_json(path, VERSION, {"rows": [asdict(one) for one in rows]}, rates(memory))


def _title(rows: Sequence[Row]) -> str:
    """Return the sizes and links of the rows."""
    sizes = {f"{one.numel * DTYPES[one.dtype] / 2**20:.4g} MiB of {one.dtype}" for one in rows}
    links = {f"links of {one.link_gbps:g} Gbit/s" if one.link_gbps else "one machine" for one in rows}
    return f"allreduce: {', '.join([*sorted(sizes), *sorted(links)])}; median, and from least to most"


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw time over density, with a panel for each number of workers, overlap and kind of sparsity."""
    panels = sorted({(one.workers, one.sparsity, one.overlap) for one in rows})
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    with outputs.figure(path, lines, columns, (5 * columns, 4 * lines)) as (figure, axes):
        for axis, (workers, sparsity, overlap) in zip(axes.flat, panels, strict=False):
            here = [one for one in rows if (one.workers, one.sparsity, one.overlap) == (workers, sparsity, overlap)]
            for system in dict.fromkeys(one.system for one in here):
                points = sorted((one.density, one.median_s * 1e3, one.min_s * 1e3, one.max_s * 1e3) for one in here
                                if one.system == system and one.median_s and one.min_s and one.max_s)  # fmt: skip
                if points:
                    density, median, least, most = zip(*points, strict=True)
                    axis.plot(density, median, marker="o", markersize=4, label=system)
                    axis.fill_between(density, least, most, alpha=0.2)
            if limits := sorted({(one.density, one.limit_s * 1e3) for one in here if one.limit_s}):
                axis.plot(*zip(*limits, strict=True), "k--", linewidth=1, label="limit")
            axis.set(title=f"{workers} workers, overlap {overlap}, by {sparsity}", xlabel="density", ylabel="ms")
            axis.set_xscale("symlog", linthresh=0.01)
            axis.set_yscale("log")
            axis.set_xlim(left=0)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        outputs.legend(figure, 3 * columns)
        figure.suptitle(_title(rows))
