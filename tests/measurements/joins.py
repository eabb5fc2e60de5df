# SPDX-License-Identifier: Apache-2.0
"""Time in which thousands of ranks join a job, and what the controller needs for it.

A real controller serves ranks, which are gRPC streams from a few client processes: each rank has a connection of its
own. Switches are fakes in the controller's process, a tree whose leaves have 31 ranks each. They hear the ranks' HELLOs
by UDP, and accept table entries and RESETs at once: the figures are of the control service, not of switches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.channel import LEASE, keepalive
from p4reduce.control.grpc_channels import open_aio_channel
from p4reduce.protocol.constants import NOBODY
from p4reduce.protocol.packet import Codec, hello
from p4reduce_bench.outputs import machine
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import ServiceConfig, take_all_sockets
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.watch import Watch
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.webpage.page_data import view_of
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.wide_trees import address_of, wide_trees

RANKS_A_LEAF = 31
TIMEOUT_S = 300.0
HELLO_S = 0.4  # between two HELLOs of a rank


def widths_for(ranks: int) -> list[int]:
    """Return the levels of a tree that has room for so many ranks, each with a stream of its own."""
    leaves = -(-ranks // RANKS_A_LEAF)
    above = -(-leaves // RANKS_A_LEAF)
    return [] if ranks <= RANKS_A_LEAF else [leaves] if leaves <= RANKS_A_LEAF else [above, -(-leaves // above)]


@dataclass
class Found:
    """The figures of one job. Sizes are in bytes, and processor times those of the controller."""

    ranks: int
    switches: int
    join_s: float  # from the first Join until the last rank has Ready
    join_processor_s: float
    leave_s: float
    rss: int
    threads: int
    status_s: float
    status_bytes: int
    metrics_s: float
    metrics_bytes: int
    page_bytes: int


# The controller's process.


def serve(ranks: int, commands: Connection) -> None:
    """Run a controller until the other end of `commands` is closed. Send its address, and figures when asked."""
    take_all_sockets()
    asyncio.run(_serve(ranks, commands))


async def _serve(ranks: int, commands: Connection) -> None:
    trees, leaves = wide_trees(widths_for(ranks))
    switches = [FakeSwitch(512, number) for number in range(len(trees.names))]
    for number, switch in enumerate(switches):
        switch.address, switch.target = address_of(number), f"fake {number}"
    inventory = Inventory(switches, trees)
    inventory.children = {
        (at, up.parent): Heard(at, switches[at].address, 0, 0, 0, 1) for at, up in trees.uplinks.items()
    }
    config = ServiceConfig("127.0.0.1:0", rates=Rates(joins=1e6, calls=1e6, messages=1e6, ranks=1e6))
    controller = Controller(inventory, Jobs(inventory), config)
    controller.restore()
    controller.bind()
    for number, switch in enumerate(switches):
        await switch.start(controller.listener(number), 1.0)
    await controller.start()
    heard = await _listen([switches[at] for at in leaves])
    commands.send((controller.service.address, heard))
    with contextlib.suppress(EOFError):
        while await asyncio.to_thread(commands.recv) == "figures":
            commands.send(await _figures(controller))
    await controller.close()


async def _listen(leaves: Sequence[FakeSwitch]) -> int:
    """Let leaves hear HELLOs, and return the UDP port for them. Two bytes before a HELLO are the leaf's number."""
    codec = Codec()

    class Hellos(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, address: Any) -> None:  # noqa: ARG002
            packet = codec.decode(data[4:])
            rank = int.from_bytes(data[2:4], "big")
            at = address_of(rank, first=2)
            port = 1 + rank % RANKS_A_LEAF
            heard = Heard(
                port, Endpoint(at.mac, at.ip, 5000), packet.job, packet.generation, packet.worker, packet.nonce
            )
            switch = leaves[int.from_bytes(data[:2], "big")]
            if switch.listener is not None and switch.listener.awaits(packet.nonce):
                switch.hear(heard)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Hellos, local_addr=("127.0.0.1", 0))
    udp: socket.socket = transport.get_extra_info("socket")
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    port: int = udp.getsockname()[1]
    return port


async def _figures(controller: Controller) -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    status = await controller.status()
    sent = status.SerializeToString()
    status_s = time.perf_counter() - begin
    watch = Watch(controller.status, controller.reports.ports)
    watch.look(status, time.time())
    registry = CollectorRegistry()
    registry.register(Metrics(lambda: watch.last_view))
    begin = time.perf_counter()
    metrics = generate_latest(registry)
    metrics_s = time.perf_counter() - begin
    assert watch.last_view is not None
    return {
        "processor_s": used.ru_utime + used.ru_stime,
        "rss": used.ru_maxrss << 10,
        "threads": _threads(),
        "status_s": status_s,
        "status_bytes": len(sent),
        "metrics_s": metrics_s,
        "metrics_bytes": len(metrics),
        "page_bytes": len(json.dumps(view_of(watch.last_view, None))),
    }


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


# A process of ranks.


def join(address: str, heard: int, ranks: Sequence[int], world_size: int, commands: Connection) -> None:
    """Let ranks join when told, tell when all of them have Ready, and leave when told."""
    take_all_sockets()
    asyncio.run(_join(address, heard, ranks, world_size, commands))


async def _join(address: str, heard: int, ranks: Sequence[int], world_size: int, commands: Connection) -> None:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.connect(("127.0.0.1", heard))
    udp.setblocking(False)
    each = [Rank(address, udp, rank, world_size) for rank in ranks]
    commands.send("prepared")
    await asyncio.to_thread(commands.recv)
    sessions = [asyncio.create_task(one.session()) for one in each]
    await asyncio.gather(*(_first(one.ready.wait(), session) for one, session in zip(each, sessions, strict=True)))
    commands.send("ready")
    await asyncio.to_thread(commands.recv)
    for one in each:
        one.leaves.set()
    await asyncio.gather(*sessions)
    commands.send("left")


async def _first(event: Any, session: asyncio.Task[None]) -> None:
    """Wait for the event, and raise what ends the session before."""
    waiting = asyncio.ensure_future(event)
    await asyncio.wait([waiting, session], return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        session.result()


@dataclass(eq=False)
class Rank:
    """A rank: its connection, and its HELLOs."""

    address: str
    udp: socket.socket
    rank: int
    world_size: int
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    leaves: asyncio.Event = field(default_factory=asyncio.Event)

    async def session(self) -> None:
        async with open_aio_channel(self.address, options=keepalive(LEASE)) as channel:
            call = rpc.JobsStub(channel).Session(timeout=TIMEOUT_S)
            request = pb.Join(job="job", rank=self.rank, world_size=self.world_size, timeout_s=TIMEOUT_S)
            await call.write(pb.ClientMessage(join=request))
            hellos = None
            while not isinstance(message := await call.read(), int) and hasattr(message, "WhichOneof"):
                kind = message.WhichOneof("message")
                if kind == "assigned":
                    hellos = asyncio.create_task(self._say_hello(message.assigned))
                elif kind == "ready":
                    self.ready.set()
                    await self.leaves.wait()
                    await call.write(pb.ClientMessage(leave=pb.Leave()))
                elif kind == "left":
                    break
                elif kind == "abort":
                    raise RuntimeError(message.abort.message)
            if hellos is not None:
                await hellos

    async def _say_hello(self, assigned: pb.Assigned) -> None:
        worker = min(self.rank, NOBODY)
        packet = hello(
            assigned.lanes, assigned.hello_nonce, job=assigned.job, generation=assigned.generation, worker=worker
        )
        leaf = (self.rank // RANKS_A_LEAF).to_bytes(2, "big")
        payload = leaf + self.rank.to_bytes(2, "big") + Codec().encode(packet)
        while not self.ready.is_set():
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                self.udp.send(payload)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.ready.wait(), HELLO_S)


# The measurement.


@contextlib.contextmanager
def _process(work: Any, *arguments: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(30.0)
        if process.is_alive():
            process.kill()


def _receive(commands: Connection) -> Any:
    if not commands.poll(TIMEOUT_S):
        raise TimeoutError(f"no answer within {TIMEOUT_S:g} s")
    return commands.recv()


def measure(ranks: int, clients: int = 2) -> Found:
    """Let a job of so many ranks join and leave once."""
    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(_process(serve, ranks))
        address, heard = _receive(controller)
        each = [
            stack.enter_context(_process(join, address, heard, range(client, ranks, clients), ranks))
            for client in range(clients)
        ]

        def all_do(said: str | None, answer: str) -> float:
            begin = time.perf_counter()
            for one in each if said else ():
                one.send(said)
            for one in each:
                assert _receive(one) == answer
            return time.perf_counter() - begin

        def figures() -> dict[str, Any]:
            controller.send("figures")
            found: dict[str, Any] = _receive(controller)
            return found

        all_do(None, "prepared")
        before = figures()
        join_s = all_do("join", "ready")
        then = figures()
        leave_s = all_do("leave", "left")
    return Found(
        ranks=ranks,
        switches=len(wide_trees(widths_for(ranks))[0].names),
        join_s=join_s,
        join_processor_s=then.pop("processor_s") - before["processor_s"],
        leave_s=leave_s,
        **then,
    )


def table(rows: Sequence[Found]) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| ranks | switches | all joined | processor | all left | memory | threads | status | metrics | page |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        cells = [
            f"{one.ranks:,}",
            f"{one.switches}",
            f"{one.join_s:.1f} s",
            f"{one.join_processor_s:.1f} s",
            f"{one.leave_s:.1f} s",
            f"{one.rss / 2**20:.0f} MiB",
            f"{one.threads}",
            f"{1000 * one.status_s:.0f} ms, {one.status_bytes / 1e6:.2f} MB",
            f"{1000 * one.metrics_s:.0f} ms, {one.metrics_bytes / 1e6:.2f} MB",
            f"{one.page_bytes / 1e6:.2f} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measurements.joins", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--clients", type=int, default=2, help="processes that the ranks' streams come from")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=True)
    rows = []
    for ranks in options.ranks:
        rows.append(measure(ranks, options.clients))
        console.print(f"{ranks} ranks: joined in {rows[-1].join_s:.1f} s", highlight=False)
    found = {"version": 1, "machine": machine(), "rows": [vars(one) for one in rows]}
    print(json.dumps(found) if options.json else table(rows))


if __name__ == "__main__":
    main()
