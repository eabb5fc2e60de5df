# SPDX-License-Identifier: Apache-2.0
"""The experiment `congestion`: the throughput of an aggregation and a TCP connection that share a bottleneck.

Each also runs alone, for comparison. With few slots, all packets in flight fit into the queue of the link. With many,
only losses limit the aggregation.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import pstdev

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.experiments.measurement import measure
from p4reduce_topos.model import LinkProperties
from p4reduce_topos.topologies import bottleneck

SUMMARY = "Aggregation beside TCP on one slow link."
RATE, QUEUE = 100_000_000, 250_000  # bits a second; bytes, which take 20 ms at this rate
WORKERS = 4
_ALONE_S = 5.0  # how long TCP is measured alone
_LONGEST_S = 600.0  # a limit for iperf3's client, which is ended earlier
_PORT = 5201  # iperf3's default
_CASE = Case(WORKERS, 1 << 20, "float32", 1.0, "all", "block")
_SAMPLE_S = 0.1  # seconds between samples
_WINDOW = 5  # samples: the spread of throughput is that over windows of 0.5 s
_BUSY = 10_000  # bytes: a sample with more from one worker counts as busy


@dataclass(frozen=True)
class Throughput:
    """Throughput over the bottleneck from left to right, in bits a second, headers included.

    tcp: the throughput of the TCP connection.
    aggregation: the throughput of the aggregation.
    tcp_deviation, aggregation_deviation: the standard deviations of the throughput in windows of 0.5 s.
    resent: the share of retransmissions among the packets of a worker.
    wrong: the number of wrong elements in sums.
    """

    tcp: float
    aggregation: float
    tcp_deviation: float = 0.0
    aggregation_deviation: float = 0.0
    resent: float = 0.0
    wrong: int = 0


def run(target: str, repeat: int, slots: Sequence[int] = (64, 512)) -> dict[str, Throughput]:
    """Measure TCP alone, the aggregation alone, and both together. Raises P4ReduceError.

    The runs cover each number of slots and each of TCP's `algorithms`. The keys of the result name them.
    """
    found = {}
    topology = bottleneck.build(WORKERS, core=LinkProperties(rate=RATE, queue=QUEUE), pairs=1)
    with Network(topology, target, controller_options=["--lease", "30"]) as network:
        for algorithm in algorithms():
            with _tcp(network, algorithm), _Sampler(network) as sampler:
                time.sleep(_ALONE_S)
            # No aggregation runs: the rest of the traffic is ARP and the like.
            found[f"{algorithm} alone"] = replace(sampler.throughput(), aggregation=0.0, aggregation_deviation=0.0)
        for one in slots:
            setup = Setup(target=target, slots=one, threads=1, repeat=repeat, warm_up=1, timeout=120)
            found[f"{one} slots alone"] = _aggregate(network, setup)
            for algorithm in algorithms():
                with _tcp(network, algorithm):
                    found[f"{one} slots and {algorithm}"] = _aggregate(network, setup)
    return found


def algorithms() -> list[str]:
    """Return the widely used congestion controls of TCP that this kernel offers."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return [name for name in ("cubic", "bbr") if name in known] or known[:1]


def _aggregate(network: Network, setup: Setup) -> Throughput:
    with _Sampler(network) as sampler:
        row = measure(network, "p4reduce", _CASE, setup).row
    resent = (row.retransmissions or 0) / (row.packets or 1)
    return replace(sampler.throughput(busy=True), resent=resent, wrong=row.wrong or 0)


@contextlib.contextmanager
def _tcp(network: Network, algorithm: str) -> Iterator[None]:
    """Run a TCP connection from x1 to y1 at full speed during the block."""
    server = network.start("y1", "iperf3 server", ["iperf3", "-s", "-1"])
    deadline = time.monotonic() + START_UP_S
    while not network.mininet["y1"].cmd("ss", "-Hltn", "sport", "=", f":{_PORT}").strip():
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise P4ReduceError(f"iperf3 at y1 does not listen on port {_PORT}")
        time.sleep(_SAMPLE_S)
    command = ["iperf3", "-c", network.topology.ip("y1"), "-t", str(round(_LONGEST_S)), "-C", algorithm]
    client = network.start("x1", "iperf3 client", command)
    try:
        yield
    finally:
        network.stop(client)
        network.stop(server)


Sample = tuple[float, int, int, int]
"""The time, and the bytes so far of TCP, of the bottleneck, and of one worker."""


class _Sampler:
    """A thread that samples byte counters of links during a block."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)  # in the network namespace of the thread that starts it

    def _sample(self) -> None:
        carried = self._network.carried
        while not self._over.wait(_SAMPLE_S):
            tcp, link, worker = carried("x1", "s1"), carried("s1", "s2"), carried("h1", "s1")
            self._samples.append((time.monotonic(), tcp, link, worker))

    def throughput(self, *, busy: bool = False) -> Throughput:
        """Return the average throughput of TCP and of the aggregation, and their deviations.

        busy: count only the time in which workers send.
        """
        samples = self._samples
        if busy:
            pairs = enumerate(pairwise(samples))
            busy_pairs = [at for at, (one, other) in pairs if other[3] - one[3] > _BUSY]
            samples = samples[busy_pairs[0] : busy_pairs[-1] + 2]  # both samples of the last pair
        windows = [_rates(one, other) for one, other in pairwise(samples[::_WINDOW])] or [(0.0, 0.0)]
        tcp, aggregation = zip(*windows, strict=True)
        return Throughput(*_rates(samples[0], samples[-1]), pstdev(tcp), pstdev(aggregation))

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _rates(one: Sample, other: Sample) -> tuple[float, float]:
    """Return the throughput of TCP and of the aggregation between two samples, in bits a second."""
    seconds, tcp, link = (other[at] - one[at] for at in range(3))
    return 8 * tcp / seconds, max(0.0, 8 * (link - tcp) / seconds)


def plot(path: Path, found: dict[str, Throughput], target: str, repeat: int) -> None:
    """Draw a stacked bar for each run: TCP below, the aggregation on top. Error bars are standard deviations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 5), layout="constrained")
    tcp, aggregation = ([getattr(one, name) / 1e6 for one in found.values()] for name in ("tcp", "aggregation"))
    axis.bar(list(found), tcp, label="TCP")
    axis.bar(list(found), aggregation, bottom=tcp, label="aggregation")
    ends = [one + other for one, other in zip(tcp, aggregation, strict=True)]
    for name, tops, shift in (("tcp", tcp, -0.1), ("aggregation", ends, 0.1)):  # side by side, so that both are seen
        bars = [
            (at + shift, top, deviation / 1e6)
            for at, (top, one) in enumerate(zip(tops, found.values(), strict=True))
            if (deviation := getattr(one, f"{name}_deviation"))
        ]
        if bars:
            positions, heights, deviations = zip(*bars, strict=True)
            axis.errorbar(positions, heights, deviations, fmt="none", ecolor="black", elinewidth=1, capsize=3)
    axis.axhline(RATE / 1e6, color="black", linewidth=1, linestyle="dashed", label="the link's rate")
    axis.set(
        xlabel="run",
        ylabel="throughput over the link (Mbit/s)",
        title=(
            f"one link of {RATE / 1e6:g} Mbit/s with a queue of {QUEUE / 1e3:g} kB, {WORKERS} workers on {target}\n"
            f"{repeat} reductions of {_CASE.numel * 4 / 2**20:g} MiB of float32, density {_CASE.density:g};"
            f" error bars: standard deviation in windows of {_WINDOW * _SAMPLE_S:g} s"
        ),
    )
    axis.tick_params(axis="x", rotation=30)
    figure.legend(loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
