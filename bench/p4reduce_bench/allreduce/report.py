# SPDX-License-Identifier: Apache-2.0
"""What was measured: as rows, as a table, as JSON and as a plot. GB = 1e9 bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.allreduce.grid import DTYPES, SWITCHED, Case
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.allreduce.systems import Failed, Figures

VERSION = 1


@dataclass(frozen=True)
class Row:
    """One system on one case. None: not known. Bytes and packets: of the host that has most, on average a repetition,
    on the wire with all headers down to Ethernet's preamble and gap. Without links of their own, ranks are hosts."""

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
    """In a row, of which all figures are averages."""
    processor_s: float | None = None
    """Processor time of a call, at the rank that took most."""
    way: str = ""
    """How the ranks of a system on the switch share hosts and streams, as of `Setup.way`."""
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
    """`way`: as of `Setup.way`, for systems on the switch.

    A repetition takes as long as its slowest rank. Bandwidths are nccl-tests', in GB/s."""
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
    """Of the host that has most. Ranks on a switch count their own; others' all that crosses their host's link."""
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
    """nccl-tests' columns, and what says how sparse it was and how close to the limit."""
    unit, factor = ("us", 1e6) if all(one.calls > 1 for one in rows) else ("ms", 1e3)
    shared = any(one.ranks_per_host > 1 for one in rows)
    caption = f"MB, GB/s: 1e6, 1e9 bytes; tx, rx: on the wire, a {'host' if shared else 'worker'}"
    made = Table(title="allreduce, sum: medians", caption=caption)
    for name in ("system", "workers", "density", "overlap", "by"):
        made.add_column(name)
    for name in ("size MB", "count", "type", "redop", f"time {unit}", "min", "max", "algbw", "busbw", "#wrong",
                 "tx MB", "rx MB", "packets", "resent", f"limit {unit}", "time/limit"):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    previous = None
    for one in rows:
        place = (one.workers, one.numel, one.sparsity, one.overlap, one.density)
        if previous not in (None, place):
            made.add_section()
        previous = place
        said = ", ".join(filter(None, (one.target, one.wire, one.way)))
        system = f"{one.system} ({said})" if one.target else one.system
        workers = f"{one.workers}, {one.ranks_per_host} a host" if one.ranks_per_host > 1 else str(one.workers)
        cells = [system, workers, f"{one.density:g}", one.overlap, one.sparsity,
                 _number(one.numel * DTYPES[one.dtype], 1e-6), str(one.numel), one.dtype, "sum"]  # fmt: skip
        if one.error is not None:
            made.add_row(*cells, f"[red]{escape(one.error.splitlines()[0][:60])}[/]")
            continue
        right = "0" if one.wrong == 0 else f"[red]{one.wrong}[/]"
        made.add_row(*cells, _number(one.median_s, factor), _number(one.min_s, factor), _number(one.max_s, factor),
                     _number(one.algbw_gbps), _number(one.busbw_gbps), right, _number(one.tx_bytes, 1e-6),
                     _number(one.rx_bytes, 1e-6), _whole(one.packets), _whole(one.retransmissions),
                     _number(one.limit_s, factor), _number(one.over_limit))  # fmt: skip
    return made


def _number(value: float | None, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.3g}" if value * factor < 100 else f"{value * factor:.0f}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def rates(memory: Memory | None) -> dict[str, float | None]:
    """What the limit without a link is made of, in GB a second."""
    found = asdict(memory) if memory else dict.fromkeys(("read", "written", "copied"))
    return {f"{name}_gb_per_s": rate and rate / 1e9 for name, rate in found.items()}


def write_json(path: Path, rows: Sequence[Row], memory: Memory | None) -> None:
    """Rows, as of `outputs.write_json`."""
    outputs.write_json(path, VERSION, {"rows": [asdict(one) for one in rows]}, rates(memory))


def _title(rows: Sequence[Row]) -> str:
    """What all rows have in common."""
    sizes = {f"{one.numel * DTYPES[one.dtype] / 2**20:.4g} MiB of {one.dtype}" for one in rows}
    links = {f"links of {one.link_gbps:g} Gbit/s" if one.link_gbps else "one machine" for one in rows}
    return f"allreduce: {', '.join([*sorted(sizes), *sorted(links)])}; median, and from least to most"


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Time over density: a panel for each number of workers, overlap and kind of sparsity."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = sorted({(one.workers, one.sparsity, one.overlap) for one in rows})
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(5 * columns, 4 * lines), squeeze=False, layout="constrained")
    for axis, (workers, sparsity, overlap) in zip(axes.flat, panels, strict=False):
        here = [one for one in rows if (one.workers, one.sparsity, one.overlap) == (workers, sparsity, overlap)]
        for system in dict.fromkeys(one.system for one in here):
            points = sorted((one.density, one.median_s * 1e3, one.min_s * 1e3, one.max_s * 1e3) for one in here
                            if one.system == system and one.median_s and one.min_s and one.max_s)  # fmt: skip
            if points:
                density, median, least, most = zip(*points, strict=True)
                axis.plot(density, median, marker="o", markersize=4, label=system)
                axis.fill_between(density, least, most, alpha=0.2)
        limits = sorted({(one.density, one.limit_s * 1e3) for one in here if one.limit_s})
        if limits:
            axis.plot(*zip(*limits, strict=True), "k--", linewidth=1, label="limit")
        axis.set(title=f"{workers} workers, overlap {overlap}, by {sparsity}", xlabel="density", ylabel="ms")
        axis.set_xscale("symlog", linthresh=0.01)
        axis.set_yscale("log")
        axis.set_xlim(left=0)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    labels = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}  # noqa: B905
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=3 * columns)
    figure.suptitle(_title(rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
