# SPDX-License-Identifier: Apache-2.0
"""Packets a second that each target takes, side by side, on the demo's traffic. Needs root, for network interfaces.

The gradients of one step of the demo's model are reduced once by real workers. What they sent is recorded, and then
sent again and again, as fast as the target answers: so the target is what is measured, not the workers.
"""

import argparse
import json
import os
import select
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from threading import Thread

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from p4reduce.control.client import Assigned, Session
from p4reduce.demo import network
from p4reduce.joining import membership
from p4reduce.processes import Family
from p4reduce.protocol import Operation, Worker
from p4reduce.transport import Switch, Transport, open_transport

WORKERS = 4
SLOT, SEQ = struct.Struct("!H"), struct.Struct("!I")
SLOT_AT, SEQ_AT = 8, 10
LOST = 0.5  # seconds without any answer
INSIDE = "P4REDUCE_DEMO_NETWORK"

Rounds = list[list[bytearray]]
"""Of one slot: each round's packets, one a worker."""


def gradients() -> list[npt.NDArray[np.float32]]:
    """Each worker's gradient in the first step of the demo's model."""
    import torch

    from p4reduce.demo.model import LanguageModel
    from p4reduce.demo.text import corpus
    from p4reduce.demo.worker import SAMPLES, batches

    made = []
    for rank in range(WORKERS):
        torch.manual_seed(1)
        model = LanguageModel(3072, 64)
        samples = torch.randint(0, 3072, (SAMPLES,), generator=torch.Generator().manual_seed(1))
        model(batches(corpus(3072), torch.Generator().manual_seed(rank)), samples).backward()
        made.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).numpy())
    return made


class Job:
    """Four ranks in this process, joined to a running switch."""

    def __init__(self, controller: str, kind: str) -> None:
        self.undo = ExitStack()
        self.sessions = [self.undo.enter_context(Session(controller)) for _ in range(WORKERS)]
        self.places: list[Assigned] = [None] * WORKERS  # type: ignore[list-item]
        self.transports: list[Transport] = [None] * WORKERS  # type: ignore[list-item]
        threads = [Thread(target=self._join, args=(rank, kind), daemon=True) for rank in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if None in self.transports:
            raise SystemExit("the workers could not join")
        self.workers = [Worker(membership(place, WORKERS)) for place in self.places]
        self.seqs: list[int] = []  # of each slot: the round that comes next

    def _join(self, rank: int, kind: str) -> None:
        session = self.sessions[rank]
        place = session.join("bench", rank, WORKERS)
        [at] = place.aggregators
        switch = Switch(at.ip, at.udp_port, at.mac)
        interface = f"worker{rank}" if kind == "raw" else None
        transport = open_transport(kind, switch, interface=interface)
        hello = Worker(membership(place, WORKERS)).hello(place.hello_nonce)
        session.wait_ready(lambda: transport.send([hello]) and None)
        self.places[rank] = place
        self.transports[rank] = transport

    def record(self, arrays: Sequence[npt.NDArray[np.float32]]) -> list[Rounds]:
        """Reduce `arrays` with real workers; gives what they sent, by slot and round."""
        operations = [Operation(array.copy()) for array in arrays]
        for worker, operation in zip(self.workers, operations, strict=True):
            worker.submit(operation, time.monotonic())
        slots: list[dict[int, list[bytearray]]] = [{} for _ in range(self.places[0].slots)]
        with select.epoll() as poll:
            for transport in self.transports:
                poll.register(transport, select.EPOLLIN)
            while not all(operation.done for operation in operations):
                for worker, transport in zip(self.workers, self.transports, strict=True):
                    now = time.monotonic()
                    for payload in transport.receive():
                        worker.receive(payload, now)
                    worker.tick(now)
                    for packet in packets if (packets := worker.take_packets()) else ():
                        slot, seq = SLOT.unpack_from(packet, SLOT_AT)[0] >> 1, SEQ.unpack_from(packet, SEQ_AT)[0]
                        sent = slots[slot].setdefault(seq, [bytearray()] * WORKERS)
                        sent[worker.membership.rank] = bytearray(packet)
                    transport.send(packets)
                poll.poll(0.001)
        used = [rounds for rounds in slots if rounds]
        self.seqs = [max(rounds) + 1 for rounds in used]
        return [[rounds[seq] for seq in sorted(rounds)] for rounds in used]

    def replay(self, slots: list[Rounds], seconds: float) -> tuple[int, float, int]:
        """Send the recorded rounds over and over; gives packets that the target took, seconds, and packets lost."""
        nexts = [0] * len(slots)  # round to send
        seqs = self.seqs
        missing = [0] * len(slots)  # workers without the result
        sent = lost = 0
        started = heard = time.monotonic()
        codec_slot, codec_seq = SLOT.unpack_from, SEQ.unpack_from

        def send(slot: int) -> None:
            nonlocal sent
            missing[slot] = (1 << WORKERS) - 1
            for packet, transport in zip(slots[slot][nexts[slot]], self.transports, strict=True):
                SLOT.pack_into(packet, SLOT_AT, slot << 1 | seqs[slot] & 1)
                SEQ.pack_into(packet, SEQ_AT, seqs[slot])
                transport.send([packet])  # type: ignore[list-item]
            sent += WORKERS

        for slot in range(len(slots)):
            send(slot)
        with select.epoll() as poll:
            for transport in self.transports:
                poll.register(transport, select.EPOLLIN)
            while (now := time.monotonic()) - started < seconds:
                if not poll.poll(LOST / 5):
                    if now - heard > LOST:
                        for slot in range(len(slots)):
                            if missing[slot]:
                                lost += missing[slot].bit_count()
                                send(slot)
                        heard = now
                    continue
                heard = now
                for rank, transport in enumerate(self.transports):
                    for payload in transport.receive():
                        slot = codec_slot(payload, SLOT_AT)[0] >> 1
                        if codec_seq(payload, SEQ_AT)[0] != seqs[slot] or not missing[slot] >> rank & 1:
                            continue
                        missing[slot] ^= 1 << rank
                        if not missing[slot]:
                            seqs[slot] += 1
                            nexts[slot] = (nexts[slot] + 1) % len(slots[slot])
                            send(slot)
        return sent, time.monotonic() - started, lost

    def close(self) -> None:
        """Leave the job."""
        for transport in self.transports:
            transport.close()
        self.undo.close()


def measure(target: str, ports: str, arrays: Sequence[npt.NDArray[np.float32]], seconds: float) -> dict[str, float]:
    """Start a target with ports of a kind ("eth" or "udp"), measure it, stop it."""
    numbers = range(1, WORKERS + 1) if ports == "eth" else [1]
    options = [f"{port}=eth:port{port}" if ports == "eth" else "1=udp:127.0.0.1:0" for port in numbers]
    with Family() as family:
        flags = [part for option in options for part in ("--port", option)]
        switch = family.start(target, "p4reduce", "switch", "--target", target, *flags, "--grpc=127.0.0.1:0", "--json")
        ready = switch.first(30)
        address = "10.0.0.254:31314" if ports == "eth" else ready["ports"]["1"].removeprefix("udp:")
        flags = ["--switch", ready["grpc"], "--address", address, "--ports", ",".join(map(str, numbers))]
        controller = family.start("controller", "p4reduce", "controller", *flags, "--listen=127.0.0.1:0", "--json")
        job = Job(controller.first(30)["listen"], "raw" if ports == "eth" else "udp")
        try:
            slots = job.record(arrays)
            job.replay(slots, seconds / 4)
            packets, elapsed, lost = job.replay(slots, seconds)
        finally:
            job.close()
    return {"packets_per_s": packets / elapsed, "lost": lost}


def rows(
    targets: Sequence[tuple[str, str]], seconds: float, repeat: int, console: Console
) -> Iterator[dict[str, object]]:
    """One row a target: the median of `repeat` turns, in which the targets alternate."""
    arrays = gradients()
    figures: dict[tuple[str, str], list[dict[str, float]]] = {target: [] for target in targets}
    for turn in range(repeat):
        for target in targets:
            figures[target].append(measure(*target, arrays, seconds))
            console.print(f"{turn + 1}/{repeat} {target}: {figures[target][-1]['packets_per_s']:,.0f} packets/s")
    reference = statistics.median(figure["packets_per_s"] for figure in figures[targets[0]])
    for (target, ports), measured in figures.items():
        rates = [figure["packets_per_s"] for figure in measured]
        yield {
            "target": target,
            "ports": ports,
            "packets_per_s": statistics.median(rates),
            "min": min(rates),
            "max": max(rates),
            "lost": sum(figure["lost"] for figure in measured),
            f"of_{targets[0][0]}": statistics.median(rates) / reference,
        }


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.targets", description=__doc__)
    parser.add_argument(
        "--targets", default="bmv2:eth,sim:eth,sim:udp", help="TARGET:PORTS,..., the first is compared to"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not os.environ.get(INSIDE):
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            sys.exit("needs root and unshare (util-linux), to make network interfaces")
        environment = {**os.environ, INSIDE: "1"}
        sys.exit(subprocess.run(["unshare", "--net", sys.executable, "-m", "bench.targets", *sys.argv[1:]],
                                env=environment, check=False).returncode)  # fmt: skip
    network.star(WORKERS)
    console = Console(stderr=True)
    targets = [tuple(part.split(":")) for part in options.targets.split(",")]
    table = Table(title="packets that a target takes a second, on the demo's traffic")
    results = list(rows(targets, options.seconds, options.repeat, console))  # type: ignore[arg-type]
    if options.json:
        print(json.dumps({"version": 1, "rows": results}))
        return
    for name in results[0]:
        table.add_column(name, justify="right")
    for row in results:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
