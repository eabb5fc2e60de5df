# SPDX-License-Identifier: Apache-2.0
"""The time that ns-3 needs for the packets of a simulation: the program ns3_rounds.cc, and its input."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from p4reduce.protocol.constants import Op
from p4reduce_simulator import Network, Workload, simulate
from p4reduce_simulator.network import ETHERNET_OVERHEAD
from tests.support.c_builds import ROOT, run, tool

SOURCE = Path(__file__).with_name("ns3_rounds.cc")
MODULES = ("ns3-core", "ns3-network", "ns3-point-to-point")
PROGRAM = ROOT / "build" / "tests" / "ns3_rounds"


def program() -> Path:
    """Return the compiled program; skip the test where ns-3 is not installed."""
    compiler, pkg_config = tool("g++"), tool("pkg-config")
    if subprocess.run([pkg_config, "--exists", *MODULES], check=False).returncode:
        pytest.skip("needs ns-3 (libns3-dev)")
    if not PROGRAM.is_file() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        made = PROGRAM.with_suffix(".new")
        run(compiler, "-std=c++17", "-O2", SOURCE, *(f"-l{module}" for module in MODULES), "-o", made)
        shutil.move(made, PROGRAM)
    return PROGRAM


def both(network: Network, workload: Workload, slots: int = 64) -> tuple[float, float, int]:
    """Return the seconds of one allreduce by the simulator, and by ns-3 with the same packets.

    The third number is how many packets the simulator's workers sent again, which ns-3's do not.
    """
    with TemporaryDirectory() as folder:
        pcap = Path(folder, "all.pcap")
        result = simulate(network, workload, slots=slots, pcap=pcap)
        assert result.exact
        lines = [*_topology(network), *_packets(pcap.read_bytes(), network)]
    done = subprocess.run(
        [program()], input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    return result.times[0], int(done.stdout) / 1e9, int(result.totals["retransmissions"])


def _topology(network: Network) -> Iterator[str]:
    number = _numbers(network)
    links = [(cable.a, cable.b, cable.link or network.core) for cable in network.cables]
    links += [(f"rank{rank}", switch, network.edge) for rank, switch in enumerate(network.ranks)]
    for a, b, link in links:
        yield f"link {number[a]} {number[b]} {link.rate} {link.delay * 1e9:.0f} {link.queue or 10**9}"
    yield f"delay {network.switch.delay * 1e9:.0f}"
    for tree_number, tree in enumerate(network.trees, 1):
        for child, parent in tree.parents.items():
            if parent is not None:
                yield f"parent {tree_number} {number[child]} {number[parent]}"
        for rank, switch in enumerate(network.ranks):
            yield f"parent {tree_number} {number[f'rank{rank}']} {number[switch]}"


def _numbers(network: Network) -> dict[str, int]:
    names = [*(f"rank{rank}" for rank in range(len(network.ranks))), *network.switches]
    return {name: number for number, name in enumerate(names)}


def _packets(pcap: bytes, network: Network) -> Iterator[str]:
    """Yield a line for each DATA and RESULT, without copies that were sent again."""
    number = _numbers(network)
    nodes = {0x0A000001 + rank: number[f"rank{rank}"] for rank in range(len(network.ranks))}
    nodes |= {0x0AFF0001 + index: number[name] for index, name in enumerate(network.switches)}
    seen = set()
    at = 24
    while at < len(pcap):
        kept, length = struct.unpack_from("<8xII", pcap, at)
        frame = pcap[at + 16 : at + 16 + kept]
        at += 16 + kept
        source, destination = struct.unpack_from(">II", frame, 26)
        op = frame[42] & 0xF
        job, slot, seq = struct.unpack_from(">H2xHI", frame, 46)
        key = (job, slot >> 1, seq, nodes[source], nodes[destination])
        if op in (Op.DATA, Op.RESULT) and key not in seen:
            seen.add(key)
            yield f"packet {' '.join(map(str, key))} {length + ETHERNET_OVERHEAD}"
