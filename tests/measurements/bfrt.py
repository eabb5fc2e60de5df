# SPDX-License-Identifier: Apache-2.0
"""The control plane of a job on a Tofino, without the chip: `p4reduce switch --target tofino` over a stand-in.

The stand-in is a BF Runtime server of the tests, whose device does nothing. "Own ms" is the time at the controller,
without the time of the stand-in's calls: that of P4Runtime, of `p4reduce switch`, of its client of BF Runtime, and of
both connections. The same requests go to sim in turn. "Processor ms" is that of `p4reduce switch` alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finsy.proto import p4r, p4r_grpc

from p4reduce.control.grpc_channels import open_aio_channel
from p4reduce_bench.outputs import machine
from p4reduce_bench.processes.children import Child, ChildProcesses
from p4reduce_controller.p4runtime.program import Program, load_schema
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import Heard, Placement
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange
from tests.measurements import bfrt_stand_in
from tests.measurements.bfrt_stand_in import Served
from tests.support.controller.p4runtime_server import Ear

START_UP_S = 60.0
CONNECT_S = 120.0
AGGREGATOR = Endpoint("02:00:00:00:01:00", "10.0.0.254", 31314)
_STEPS = {
    "install": "group, deliveries, admissions and hosts",
    "reset": "RESETs",
    "counters": "all counters in one read",
    "status": "counters as the controller reads them",
    "remove": "removal",
}


@dataclass(frozen=True)
class Took:
    """The time of one step in seconds: at the controller, and of the switch's processor; and what the stand-in did."""

    seconds: float
    processor_s: float
    served: Served


@dataclass
class Measured:
    """A switch that is measured: the controller's side of it, its process, and the stand-in's totals."""

    switch: P4RuntimeSwitch
    process: Child
    served: Callable[[], Served]

    async def time(self, work: Awaitable[object]) -> Took:
        """Do something, and return what it took."""
        before, used, begun = self.served(), self._processor_s(), time.perf_counter()
        await work
        seconds = time.perf_counter() - begun
        return Took(seconds, self._processor_s() - used, self.served().since(before))

    def _processor_s(self) -> float:
        return time.clock_gettime(~self.process.process.pid << 3 | 2)  # the clock of a process, as Linux numbers it


def placement(workers: int, slots: int) -> Placement:
    """Return a job with a port and a host for each worker."""
    heard = [
        Heard(port, Endpoint(f"02:00:00:00:00:{port:02x}", f"10.0.0.{port}", 31314), 1, 1, port - 1, 0)
        for port in range(1, workers + 1)
    ]
    hosts = tuple((one.sender.mac, one.port) for one in heard)
    return Placement(1, 1, SlotRange(0, slots), 2, tuple(heard), hosts=hosts)


async def _read_all(channel: Any) -> None:
    """Read every cell of every counter by one request."""
    request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(counter_entry=p4r.CounterEntry())])
    assert [answer async for answer in p4r_grpc.P4RuntimeStub(channel).Read(request)]


async def _status(switch: P4RuntimeSwitch) -> None:
    await switch.outcomes()
    await switch.losses()
    await switch.job_traffic()


async def _remove(switch: P4RuntimeSwitch, job: Placement) -> None:
    await switch.fence(job)
    await switch.forget(job)


async def take_turn(measured: Measured, job: Placement) -> dict[str, Took]:
    """Install one job and remove it, and return what each step took."""
    switch = measured.switch
    found = {"install": await measured.time(switch.install(job)), "reset": await measured.time(switch.reset(job))}
    async with open_aio_channel(switch.target) as channel:
        await _read_all(channel)  # connects
        found["counters"] = await measured.time(_read_all(channel))
    found["status"] = await measured.time(_status(switch))
    found["remove"] = await measured.time(_remove(switch, job))
    return found


def start_tofino(processes: ChildProcesses, folder: Path) -> tuple[Child, str]:
    """Start the stand-in, and `p4reduce switch` in front of it; return the latter and its address."""
    bfrt_stand_in.write_build(folder)
    Served.file(folder)[:] = 0
    module = "tests.measurements.bfrt_stand_in"
    stand_in = processes.start("stand-in", module, "serve", str(folder))
    address = stand_in.first(START_UP_S)["address"]
    switch = processes.start("switch (tofino)", module, "switch", str(folder), address)
    return switch, switch.first(START_UP_S)["grpc"]


def start_sim(processes: ChildProcesses) -> tuple[Child, str]:
    """Start sim; return it and its address."""
    options = ("--port", "1=udp:127.0.0.1:0", "--grpc", "127.0.0.1:0", "--json")
    switch = processes.start("switch (sim)", "p4reduce", "switch", "--target", "sim", *options)
    return switch, switch.first(START_UP_S)["grpc"]


async def measure(workers: int, slots: int, repeat: int) -> dict[str, list[dict[str, Took]]]:
    """Return what each step took, by target and turn. Raises ChildFailed, SwitchError."""
    job = placement(workers, slots)
    ports = range(1, workers + 1)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-measure-")))
        processes = stack.enter_context(ChildProcesses())
        targets: dict[str, Measured] = {}
        started = {"tofino": (*start_tofino(processes, folder), folder), "sim": (*start_sim(processes), None)}
        totals = Served.file(folder)
        for name, (process, address, program) in started.items():
            config = SwitchConfig(address, AGGREGATOR, ports=ports)
            switch = P4RuntimeSwitch(config, Program(load_schema(program)))
            stack.push_async_callback(switch.close)
            await switch.start(Ear(), CONNECT_S)
            targets[name] = Measured(switch, process, lambda: Served(*totals.tolist()))
        found: dict[str, list[dict[str, Took]]] = {name: [] for name in targets}
        for _ in range(repeat + 1):
            for name, measured in targets.items():
                found[name].append(await take_turn(measured, job))
        return {name: turns[1:] for name, turns in found.items()}  # the first one warms up


def rows(found: dict[str, list[dict[str, Took]]]) -> list[dict[str, Any]]:
    """Return medians of the turns in milliseconds, and `own_quartiles`."""
    made = []
    for step, title in _STEPS.items():
        tofino, sim = ([turn[step] for turn in found[name]] for name in ("tofino", "sim"))
        lower, own, upper = statistics.quantiles([1e3 * (one.seconds - one.served.seconds) for one in tofino], n=4)
        sim_ms = _median(sim, lambda one: one.seconds)
        served = tofino[0].served
        made.append(
            {
                "step": title,
                "bfrt_writes": served.writes,
                "bfrt_updates": served.updates,
                "bfrt_reads": served.reads,
                "bfrt_entries": served.entries,
                "stand_in_ms": _median(tofino, lambda one: one.served.seconds),
                "own_ms": own,
                "own_quartiles_ms": [lower, upper],
                "processor_ms": _median(tofino, lambda one: one.processor_s),
                "sim_ms": sim_ms,
                "sim_processor_ms": _median(sim, lambda one: one.processor_s),
                "ratio": own / sim_ms,
            }
        )
    return made


def _median(turns: list[Took], figure: Callable[[Took], float]) -> float:
    return 1e3 * statistics.median(figure(one) for one in turns)


def table(made: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| step | writes (updates) | reads (entries) | own ms (quartiles) | processor ms | sim ms | own / sim |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in made:
        lower, upper = one["own_quartiles_ms"]
        lines.append(
            f"| {one['step']} | {one['bfrt_writes']:.0f} ({one['bfrt_updates']:.0f}) | "
            f"{one['bfrt_reads']:.0f} ({one['bfrt_entries']:.0f}) | {one['own_ms']:.1f} ({lower:.1f} to {upper:.1f}) | "
            f"{one['processor_ms']:.1f} | {one['sim_ms']:.1f} | {one['ratio']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measurements.bfrt", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=20, help="jobs on each target")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.workers, options.slots, options.repeat))
    made = rows(found)
    print(json.dumps({"version": 1, "machine": machine(), "rows": made}) if options.json else table(made))


if __name__ == "__main__":
    main()
