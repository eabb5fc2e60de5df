# SPDX-License-Identifier: Apache-2.0
"""Series of measurements, in which one parameter varies. Points that were measured before are not measured again."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import report
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.systems import Failed, Setup
from p4reduce_bench.processes.children import ChildFailed
from p4reduce_topos.arguments import build, has_core
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.experiments.measurement import Measurement, measure
from p4reduce_topos.model import Topology
from p4reduce_topos.topologies.catalogue import TOPOLOGIES
from p4reduce_topos.topologies.parts import with_extra_host

VERSION = 1  # of the files of figures
_OLD_DEFAULTS = {"topology": "star", "shape": ""}  # fields that old files lack, with their values at that time
_VALUES = 256  # values in a packet, for every block size
_P4SRC = Path(__file__).resolve().parents[3] / "p4src"
_AXES = {  # by field of `Point`: the label of its axis in plots, and the factor from the value to the label's unit
    "workers": ("workers", 1.0),
    "numel": ("tensor (MiB of float32)", 4 / 2**20),
    "density": ("density (share of non-zero blocks)", 1.0),
    "slots": ("slots (packets in flight)", 1.0),
    "rate": ("rate of every link (Mbit/s)", 1e-6),
    "drop_rate": ("lost packets, at every port and in each direction (%)", 100.0),
    "late": ("delay of the last worker (ms)", 1e3),
    "block_size": ("block size (values)", 1.0),
}


@dataclass(frozen=True)
class Point:
    """The parameters of one measurement.

    numel: the number of float32 elements of the tensor.
    density: the share of blocks that are not zero.
    rate: the rate of every link, in bits a second.
    drop_rate: the share of packets that switches lose, at every port and in each direction.
    late: the delay of the last worker's calls, in seconds.
    block_size: the number of values in a block of the P4 program.
    topology, shape: the topology, written as on the command line.
    """

    system: str = "p4reduce"
    workers: int = 4
    numel: int = 1 << 18
    density: float = 0.1
    slots: int = 64
    rate: int = 100_000_000
    drop_rate: float = 0.0
    late: float = 0.0
    block_size: int = 64
    topology: str = "star"
    shape: str = ""

    @property
    def network(self) -> tuple[object, ...]:
        """The fields that determine the network. Points that agree in them can share one."""
        return self.topology, self.shape, self.workers, self.rate, self.drop_rate, self.block_size

    def build(self) -> Topology:
        """Return the topology, with a host that is no worker, where the system `server` runs.

        Raises P4ReduceError or ValueError.
        """
        rate = f"rate={self.rate / 1000:.12g}kbit"
        core = rate if has_core(self.topology) else ""
        made = build(self.topology, self.workers, rate, core, self.shape)
        return with_extra_host(made, made.workers[0])


@dataclass(frozen=True)
class Experiment:
    """A series of points.

    varied: the field of `Point` that takes each of `values`, for every system.
    fixed: the other fields of `Point` that differ from its defaults.
    """

    summary: str
    varied: str
    values: Sequence[float]
    systems: Sequence[str] = ("p4reduce", "gloo", "server")
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def points(self) -> list[Point]:
        """Return the points, in an order in which those that share a network follow each other."""
        return [
            replace(Point(system=system, **self.fixed), **{self.varied: value})  # type: ignore[arg-type]
            for value in self.values
            for system in self.systems
        ]


EXPERIMENTS = {
    "workers": Experiment("Number of workers.", "workers", (2, 4, 8, 16)),
    "density": Experiment(
        "Share of blocks that are not zero.", "density", (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0),
        ("p4reduce", "gloo", "gloo-sparse", "server"),
    ),
    "slots": Experiment("Packets under way.", "slots", (1, 4, 16, 64, 256), ("p4reduce",)),
    "block-size": Experiment("Values a block.", "block_size", (32, 64, 128, 256), ("p4reduce",)),
    "loss": Experiment("Share of packets that are lost, at every port and way.", "drop_rate",
                       (0, 0.001, 0.01, 0.02, 0.05, 0.1)),
    "rate": Experiment("Rate of every link.", "rate", (20_000_000, 50_000_000, 100_000_000, 200_000_000, 500_000_000)),
    "straggler": Experiment("Seconds that one worker is late.", "late", (0, 0.02, 0.05, 0.1, 0.2)),
}  # fmt: skip


def run(
    experiment: Experiment, file: Path, target: str, repeat: int
) -> Generator[tuple[Point, dict[str, Any]], None, None]:
    """Yield every point with its figures, in order. Raises P4ReduceError.

    Figures of points in `file` are read from it; the others are measured and written to it. If a system fails at a
    point, the figures contain its `error`, and the next run tries the point again.
    """
    known = [row for row in _read(file) if row["measured"]["error"] is None]
    points = experiment.points()
    running: tuple[object, ...] | None = None  # `Point.network` of the network in `stack`
    with contextlib.ExitStack() as stack:
        for point in points:
            key = {**asdict(point), "target": target, "repeat": repeat}
            if point.topology not in TOPOLOGIES:
                key["made"] = _digest(point)  # so that the point is measured again if the user's file has changed
            row = next((row for row in known if {**_OLD_DEFAULTS, **row["point"]} == key), None)
            if row is None:
                if running != point.network:
                    stack.close()
                    network = _start(point, target, stack)
                    running = point.network
                setup = Setup(target=target, slots=point.slots, threads=1, repeat=repeat, warm_up=1, timeout=120)
                case = Case(point.workers, point.numel, "float32", point.density, "random", "block")
                try:
                    measured = measure(network, point.system, case, setup, late=point.late)
                    if point.block_size != Point.block_size:  # the limit holds for the shipped program only
                        measured = replace(measured, row=replace(measured.row, limit_s=None, over_limit=None))
                except ChildFailed as error:
                    running = None  # start a new network, since other processes may have failed too
                    failed = report.row(point.system, target, case, Failed(str(error)), None, point.rate)
                    measured = Measurement(failed)
                row = {"point": key, "measured": measured.as_dict(), "machine": outputs.machine()}
                known.append(row)
                _write(file, known)
            yield point, row["measured"]


def _digest(point: Point) -> str:
    """Return a digest of the point's topology."""
    return hashlib.sha256(repr(point.build()).encode()).hexdigest()[:16]


def _start(point: Point, target: str, stack: contextlib.ExitStack) -> Network:
    """Start the point's network, which runs until the stack is closed."""
    topology = point.build()
    options = ["--drop-rate", str(point.drop_rate), "--lease", "30"]  # the lease in seconds
    if point.block_size != Point.block_size:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-pipeline-")))
        _compile(folder, point.block_size)
        options += ["--pipeline", str(folder)]
    return stack.enter_context(Network(topology, target, controller_options=options))


def _compile(folder: Path, block_size: int) -> None:
    """Compile the P4 program with another block size and as many values in a packet. Raises P4ReduceError."""
    script = _P4SRC / "compile.py"
    if not script.exists() or shutil.which("p4c-bm2-ss") is None:
        raise P4ReduceError("other block sizes need p4reduce's sources, and p4c-bm2-ss on PATH to compile them")
    spec = importlib.util.spec_from_file_location("p4reduce_compile", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.compile_program(folder, [f"-DLANES={_VALUES // block_size}", f"-DBLOCK_SIZE={block_size}"])


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the figures in the file; [] if there is none, or if it has another version."""
    if not file.exists():
        return []
    content = json.loads(file.read_text())
    rows: list[dict[str, Any]] = content["rows"] if content.get("version") == VERSION else []
    return rows


def _write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the figures atomically, so that a killed process leaves the former file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"version": VERSION, "rows": rows}, indent=1) + "\n")
    unfinished.replace(file)


def plot(
    path: Path,
    name: str,
    experiment: Experiment,
    measured: Sequence[tuple[Point, Mapping[str, Any]]],
    target: str,
    repeat: int,
) -> None:
    """Draw the time of a reduction, and the bytes at the busiest host, over the varied parameter.

    The line is the median time of `repeat` reductions. The band extends from the shortest to the longest.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    label, factor = _AXES[experiment.varied]
    for system in experiment.systems:
        rows = [
            (getattr(point, experiment.varied) * factor, row, point.build().hosts)
            for point, row in measured
            if point.system == system and row["error"] is None
        ]
        varied = [value for value, _, _ in rows]
        least, median, most = ([row[key] * 1e3 for _, row, _ in rows] for key in ("min_s", "median_s", "max_s"))
        axes[0].plot(varied, median, marker="o", label=system)
        axes[0].fill_between(varied, least, most, alpha=0.2)
        axes[1].plot(varied, [busiest(row, hosts) / 1e6 for _, row, hosts in rows], marker="o", label=system)
    titles = (
        ("time of a reduction: median, and minimum to maximum", "time (ms)"),
        ("bytes of a reduction at the busiest host: average", "sent and received (MB)"),
    )
    for axis, (title, unit) in zip(axes, titles, strict=True):
        axis.set(xlabel=label, ylabel=unit, title=title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        ticks = sorted(value * factor for value in experiment.values)
        least_value = min((tick for tick in ticks if tick), default=0)
        if least_value and ticks[-1] > 20 * least_value:  # too wide for a linear axis
            axis.set_xscale("symlog", linthresh=least_value)  # logarithmic, but with a linear part that shows 0
            axis.set_xlim(ticks[0] / 1.3 or -least_value / 3, ticks[-1] * 1.3)  # a margin at both ends
            axis.minorticks_off()
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    figure.suptitle(title_of(name, experiment, target, repeat), wrap=True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(experiment.systems))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def title_of(name: str, experiment: Experiment, target: str, repeat: int) -> str:
    """Return the title of the plot: the experiment's name, its fixed parameters, and the number of reductions."""
    point = experiment.points()[0]
    parts = {
        "topology": Path(point.topology).name + (f" ({point.shape})" if point.shape else ""),
        "workers": f"{point.workers} workers",
        "numel": f"{point.numel * 4 / 2**20:.4g} MiB of float32",
        "density": f"density {point.density:g}",
        "slots": f"{point.slots} slots",
        "rate": f"links of {point.rate / 1e6:g} Mbit/s",
        "drop_rate": f"{point.drop_rate * 100:.4g} % of the packets lost" if point.drop_rate else "",
        "late": f"the last worker {point.late * 1e3:.4g} ms late" if point.late else "",
        "block_size": f"blocks of {point.block_size} values" if point.block_size != Point.block_size else "",
    }
    fixed = [text for key, text in parts.items() if text and key != experiment.varied]
    return f"{name}: {', '.join(fixed)}; target {target}, {repeat} reductions at each point"


def busiest(measured: Mapping[str, Any], hosts: Collection[str]) -> int:
    """Return the bytes of a reduction, sent and received, at the host whose link carries most.

    measured: has the bytes by direction of a link in `carried`, such as "h1>s1".
    """
    totals: dict[str, int] = {}
    for direction, count in measured["carried"].items():
        for node in direction.split(">"):
            totals[node] = totals.get(node, 0) + count
    return max(count for node, count in totals.items() if node in hosts)
