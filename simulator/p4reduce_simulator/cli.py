# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce simulate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from typer import Option

from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid
from p4reduce_bench.processes.termination import command
from p4reduce_simulator import report, texts
from p4reduce_simulator.network import Host, Link, Network, Switch, clos, star
from p4reduce_simulator.peers.comparison import KNOWN, Comparison, compare
from p4reduce_simulator.peers.player import MTU
from p4reduce_simulator.running import Result
from p4reduce_simulator.running import simulate as run
from p4reduce_simulator.workload import DTYPES, Workload
from p4reduce_targets.native.library import LibraryMissing

JSON_VERSION = 1
_INTERVALS = 200  # of a picture


# fmt: off
def simulate(
    topology: Annotated[str, Option(
        help="star, tree, clos, or a YAML or JSON file in the form of `p4reduce topo`.")] = "star",
    ranks: Annotated[int | None, Option(min=1, help="Number of ranks, each at a host. Default: 8, or all of the "
        "file.")] = None,
    leaves: Annotated[int | None, Option(min=1, help="tree, clos: number of leaf switches. Default: 2.")] = None,
    spines: Annotated[int | None, Option(min=1, help="clos: number of spines; slots are striped over them. "
        "Default: 2.")] = None,
    pods: Annotated[int | None, Option(min=0, help="tree, clos: number of pods, which adds a level of switches in the "
        "middle. Default: none.")] = None,
    link: Annotated[str, Option(help=f"Properties of links: some of {texts.LINK}.")] = "",
    core: Annotated[str, Option(help="Properties of links between switches. Default: those of --link.")] = "",
    host: Annotated[str, Option(help=f"Processor time of hosts: some of {texts.HOST}. Default: none.")] = "",
    switch: Annotated[str, Option(help=f"Delay and processor time of switches: some of {texts.SWITCH}.")] = "",
    numel: Annotated[str, Option(help="Number of elements, or size such as 25MiB.")] = "1MiB",
    dtype: Annotated[str, Option(help=f"Data type: {' or '.join(DTYPES)}.")] = "float32",
    density: Annotated[str, Option(help="Shares of non-zero blocks, rows or elements, separated by "
        "commas.")] = "1,0.1,0.01",
    pattern: Annotated[str, Option(help=texts.PATTERN)] = "blocks",
    length: Annotated[int, Option("--run", min=1, help=texts.RUN)] = 16,
    overlap: Annotated[str, Option(help=texts.OVERLAP)] = "random",
    file: Annotated[Path | None, Option(help="A .npy file of shape (ranks, elements) with the tensors, in place of "
        "--numel, --density and --pattern.")] = None,
    operations: Annotated[int, Option(min=1, help="Number of allreduces.")] = 1,
    interval: Annotated[str, Option(help="Time between them. 0s: all are submitted at once.")] = "0s",
    warm_up: Annotated[int, Option(min=0, help="Allreduces before, which are not part of the result: workers measure "
        "the path.")] = 1,
    late: Annotated[str, Option(help="Time that the last rank is late.")] = "0s",
    jitter: Annotated[str, Option(help="Longest time that each rank is late at random.")] = "0s",
    skew: Annotated[str, Option(help="Largest difference of the hosts' clocks from the time.")] = "0s",
    slots: Annotated[int, Option(min=1, max=32768, help="Slots of the job: packets in flight.")] = 64,
    seed: Annotated[int, Option(min=0, help="Equal seeds give equal runs.")] = 0,
    until: Annotated[str, Option(help="Virtual time at which the simulation ends in any case.")] = "3600s",
    wall: Annotated[float, Option(min=1, help="Seconds after which the simulation ends in any case.")] = 86400,
    systems: Annotated[str, Option(
        help=f"Systems to compare, separated by commas: some of {', '.join(KNOWN)}.")] = "p4reduce",
    mtu: Annotated[int, Option(min=64, max=65535, help="IP packets of systems whose hosts compute the sums.")] = MTU,
    links: Annotated[bool, Option("--links", help="Also show the busiest links.")] = False,
    json_file: Annotated[Path | None, Option("--json", help="File to write all figures to, as JSON.")] = None,
    pcap: Annotated[Path | None, Option(help="File to write each packet's headers to, for Wireshark and `p4reduce "
        "trace`: of the last density.")] = None,
    plot: Annotated[Path | None, Option(help="File to write a plot to: of the links' utilisation at the first density; "
        "of several systems' times.")] = None,
) -> None:
    """Simulate allreduces on a network, in virtual time.

    The workers and switches are the C code that ranks and native switches run. Links, processors and clocks are models.
    """
    console = Console()
    with command():
        outputs.check(json_file=json_file, plot=plot, pcap=pcap)
        network = _network(topology, ranks, leaves, spines, pods, link, core)
        network = replace(
            network, host=texts.properties("--host", host, Host(), texts.HOST),
            switch=texts.properties("--switch", switch, Switch(), texts.SWITCH),
        )
        grid.one_of("--dtype", dtype, DTYPES)
        densities = grid.listed("--density", density, grid.within(0, 1), "shares of 0 to 1")
        workload = texts.workload(
            numel=_columns(file) if file else grid.elements(numel, dtype), pattern=pattern, run=length, overlap=overlap,
            dtype=dtype, operations=operations, interval=texts.seconds("--interval", interval), warm_up=warm_up,
            late=texts.seconds("--late", late), jitter=texts.seconds("--jitter", jitter),
            skew=texts.seconds("--skew", skew), file=str(file) if file else None,
        )
        named = grid.choices("--systems", systems, KNOWN)
        limits = {"until": texts.seconds("--until", until), "wall_limit": wall}
        cases = [replace(workload, density=share) for share in (densities[:1] if file else densities)]
        if named != ["p4reduce"]:
            if pcap:
                raise P4ReduceError(f"--pcap {pcap}: accepted with --systems p4reduce alone")
            with _progress(len(cases) * len(named)) as done:
                runs = [
                    _compare(network, case, named, slots=slots, seed=seed, mtu=mtu, done=done, **limits)
                    for case in cases
                ]
            show(report.comparison(network, runs), console)
            for one in runs if links else []:
                for ran in one.runs:
                    show(report.busiest(f"{ran.system}, density {one.density:.3g}", ran.links), console)
            if json_file:
                rows = [run.as_json() for run in runs]
                outputs.write_json(json_file, JSON_VERSION, {"network": asdict(network), "slots": slots, "rows": rows})
            if plot:
                report.plot_comparison(plot, network, runs)
            return
        found: list[tuple[Workload, Result]] = []
        with _progress(len(cases) + bool(plot)) as done:
            for case in cases:
                found.append((case, _run(network, case, slots=slots, seed=seed, pcap=pcap, **limits)))
                done()
            if plot:
                case, result = found[0]
                again = _run(network, case, slots=slots, seed=seed, **limits, record=result.now / _INTERVALS)
                report.plot(plot, network, case.density, again)
        show(report.summary(network, found), console)
        for case, result in found if links else []:
            show(report.busiest(f"density {case.density:g}", result.links), console)
        if json_file:
            rows = [{"workload": asdict(case), "result": result.as_json()} for case, result in found]
            outputs.write_json(json_file, JSON_VERSION, {"network": asdict(network), "slots": slots, "rows": rows})
# fmt: on


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr. Yield a function to be called after each of `total` simulations."""
    with outputs.progress(Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=total)
        yield lambda: progress.advance(task)


def _run(network: Network, workload: Workload, **options: Any) -> Result:
    with _errors(options):
        return run(network, workload, **options)


def _compare(network: Network, workload: Workload, systems: list[str], **options: Any) -> Comparison:
    with _errors(options):
        return compare(network, workload, systems, **options)


@contextmanager
def _errors(options: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        limits = f"the limits are --until {options['until']:g}s and --wall {options['wall_limit']:g}"
        raise P4ReduceError(f"{error}: {limits}") from None
    except (LibraryMissing, ValueError, MemoryError) as error:
        raise P4ReduceError(str(error)) from None


def _columns(file: Path) -> int:
    """Return the elements of each tensor in a file."""
    try:
        stored = np.load(file, mmap_mode="r")
        if stored.dtype.kind not in "fiu":
            raise ValueError
    except OSError as error:
        raise P4ReduceError(f"--file {file}: it cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise P4ReduceError(
            f"--file {file}: accepted is a .npy file with numbers, of shape (ranks, elements)"
        ) from None
    if stored.ndim != 2:
        raise P4ReduceError(f"--file {file}: has shape {stored.shape}: accepted is (ranks, elements)")
    return int(stored.shape[1])


def _network(
    topology: str, ranks: int | None, leaves: int | None, spines: int | None, pods: int | None, link: str, core: str
) -> Network:  # fmt: skip
    is_file = topology.endswith((".yaml", ".yml", ".json"))
    for option, value, accepted in (
        ("leaves", leaves, ("tree", "clos")),
        ("spines", spines, ("clos",)),
        ("pods", pods, ("tree", "clos")),
        ("core", core, ("tree", "clos", "FILE")),
    ):
        if value and ("FILE" if is_file else topology) not in accepted:
            raise P4ReduceError(f"--{option} {value}: accepted with --topology {', '.join(accepted)}")
    if is_file:
        return texts.read_network(Path(topology), link, core, ranks)
    edge = texts.properties("--link", link, Link(), texts.LINK)
    between = texts.properties("--core", core, edge, texts.LINK)
    count = 8 if ranks is None else ranks
    try:
        if topology == "star":
            return star(count, edge)
        if topology in ("tree", "clos"):
            return clos(count, leaves or 2, (spines or 2) if topology == "clos" else 1, pods or 0, edge, between)
    except ValueError as error:
        raise P4ReduceError(str(error)) from None
    raise P4ReduceError(f"--topology {topology}: accepted are star, tree, clos, and a file that ends in .yaml or .json")
