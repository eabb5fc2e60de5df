# SPDX-License-Identifier: Apache-2.0
"""Packets a second that the embedded switch aggregates in one process, without sockets.

Workers take turns with full packets of one slot, so the last one of each round is answered to all.
"""

from __future__ import annotations

import argparse
import json
import platform
import struct
import time
from importlib.resources import files
from pathlib import Path

import numpy as np

from p4reduce.protocol.constants import AGGREGATION_PORT, Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce_targets.dataplane import Call, Exact, Replica
from p4reduce_targets.sim import Switch, load

SWITCH_MAC, SWITCH_IP = 0x020000000001, 0x0AFF0001
JOB, GENERATION, FIRST_SEQ = 1, 1, 2
GROUP = 1


def worker_mac(rank: int) -> int:
    """Return a worker's Ethernet address; its IPv4 address and UDP port follow the same idea."""
    return 0x020000010000 | rank


def udp_frame(rank: int, payload: bytes) -> bytes:
    """Return a datagram from a worker to the switch, with its headers."""
    source_ip, port = 0x0A000000 | rank, 40000 + rank
    ethernet = struct.pack("!6s6sH", SWITCH_MAC.to_bytes(6, "big"), worker_mac(rank).to_bytes(6, "big"), 0x0800)
    fields = [0x4500, 28 + len(payload), 0, 0x4000, 0x4011, 0, *divmod(source_ip, 1 << 16), *divmod(SWITCH_IP, 1 << 16)]
    fields[5] = 0xFFFF - sum(fields) % 0xFFFF
    udp = struct.pack("!4H", port, AGGREGATION_PORT, 8 + len(payload), 0)
    return ethernet + struct.pack("!10H", *fields) + udp + payload


def set_up(switch: Switch, workers: int) -> None:
    """Admits the workers of a job, each behind a port of its own (from 1)."""
    full = (1 << workers) - 1
    own = Call("SwitchIngress.own_address.own", (SWITCH_MAC,))
    switch.insert("SwitchIngress.own_address.own_addresses", (Exact(SWITCH_IP),), 0, own)
    for rank in range(workers):
        ip, port = 0x0A000000 | rank, 40000 + rank
        member = (Exact(rank + 1), Exact(ip), Exact(port), Exact(JOB), Exact(GENERATION), Exact(rank))
        admit = Call("SwitchIngress.aggregation.admission.admit", (1 << rank, full, 0, 2, GROUP))
        switch.insert("SwitchIngress.aggregation.admission.jobs", member, 0, admit)
        address = Call("SwitchEgress.delivery.address", (worker_mac(rank), ip, port))
        switch.insert("SwitchEgress.delivery.workers", (Exact(JOB), Exact(rank + 1)), 0, address)
    switch.set_group(GROUP, [Replica(rank + 1, rank + 1) for rank in range(workers)])


def rounds(codec: Codec, workers: int, count: int) -> list[list[tuple[int, bytes]]]:
    """For each round, each worker's ingress port and frame, all lanes full."""
    random = np.random.default_rng(0)
    lanes = (1 << codec.lanes) - 1
    made = []
    for number in range(count):
        frames = []
        for rank in range(workers):
            values = random.integers(-(2**31), 2**31, (codec.lanes, codec.block_size), np.int32)
            packet = Packet(
                Op.DATA,
                JOB,
                GENERATION,
                rank,
                number % 2,
                FIRST_SEQ + number,
                active=lanes,
                present=lanes,
                keys=(number << 8,) * codec.lanes,
                values=values,
            )
            frames.append((rank + 1, udp_frame(rank, codec.encode(packet))))
        made.append(frames)
    return made


def measure(program: bytes, codec: Codec, workers: int, count: int) -> dict[str, object]:
    """Load the program and run `count` rounds; raise RuntimeError if a round is not answered to all."""
    began = time.perf_counter()
    switch = load(program)
    loaded = time.perf_counter()
    set_up(switch, workers)
    traffic = rounds(codec, workers, count)
    sent = 0
    start = time.perf_counter()
    for frames in traffic:
        for port, frame in frames:
            sent += len(switch.process(port, frame))
    seconds = time.perf_counter() - start
    if sent != count * workers:
        raise RuntimeError(f"{count} rounds gave {sent} results, not {count * workers}")
    return {
        "benchmark": "sim_packets",
        "python": platform.python_version(),
        "lanes": codec.lanes,
        "block_size": codec.block_size,
        "workers": workers,
        "packets_in": count * workers,
        "packets_out": sent,
        "load_s": round(loaded - began, 3),
        "seconds": round(seconds, 3),
        "packets_per_s": round(count * workers / seconds),
        "values_per_s": round(count * workers * codec.lanes * codec.block_size / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, help="program as BMv2 JSON; default: the installed one")
    parser.add_argument("--lanes", type=int, default=4, help="lanes of that program (default 4)")
    parser.add_argument("--block-size", type=int, default=64, help="block size of that program (default 64)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    shipped = files("p4reduce_controller.compiled").joinpath("p4reduce.json")
    program = shipped.read_bytes() if options.program is None else options.program.read_bytes()
    result = measure(program, Codec(options.lanes, options.block_size), options.workers, options.rounds)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['packets_per_s']:,} packets/s in ({result['lanes']} lanes of {result['block_size']} values, "
            f"{result['workers']} workers; loading took {result['load_s']} s)"
        )


if __name__ == "__main__":
    main()
