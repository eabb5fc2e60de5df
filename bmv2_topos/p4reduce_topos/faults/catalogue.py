# SPDX-License-Identifier: Apache-2.0
"""The faults by name: what is done to a network while ranks reduce, and the outcome that is required.

Every fault must end within its deadline, in the right sums or in an error that names the cause: see `Fault.outcome`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_controller.jobs.deadlines import REJOIN_TIME
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.faults.ranks import Ranks
from p4reduce_topos.model import Topology

LEASE_S = 5.0
_ROUNDS_AHEAD = 10**6  # forged packets are so many rounds ahead of the job
VICTIM = 1  # the rank that is the target of faults
CALLS_BEFORE_FAULT = 3  # calls that every rank completes before the fault


@dataclass(frozen=True)
class Fault:
    """A fault, and the outcome that it must have.

    act: the function that causes the fault. It is called when all ranks reduce.
    outcome: "sums" for right sums, or the class of the error at every remaining rank.
    says: a text that the messages of these errors contain.
    seconds: the deadline, from the call of `act` to the end of the last rank.
    impairments: impairments of every host's link, from the start.
    options: options of the ranks.
    pause: seconds between a rank's calls, chosen so that the fault is over before the last call.
    needs_outsider: whether a host that is no worker causes the fault.
    """

    summary: str
    act: Callable[[Network, Ranks], None] = lambda _, __: None
    outcome: str = "sums"
    says: str = ""
    seconds: float = 30.0
    impairments: Mapping[str, float] = field(default_factory=dict)
    options: Sequence[str] = ()
    pause: float = 0.02
    needs_outsider: bool = False


def kill_worker(_: Network, ranks: Ranks) -> None:
    ranks.children[VICTIM].process.kill()
    ranks.forget(VICTIM)


def pause_worker(_: Network, ranks: Ranks) -> None:
    process = ranks.children[VICTIM].process
    process.send_signal(signal.SIGSTOP)
    time.sleep(2 * LEASE_S)  # longer than the lease, which the kernel of a stopped process still renews
    process.send_signal(signal.SIGCONT)


def cut_link(network: Network, _: Ranks) -> None:
    host = network.topology.workers[VICTIM]
    switch = network.topology.ports(host)[1]
    network.set_link(host, switch, up=False)
    time.sleep(2.0)
    network.set_link(host, switch, up=True)


def restart_switch(network: Network, _: Ranks) -> None:
    """Restart the switch of a worker, if it adds up, or else all roots. Jobs go on without one of several roots."""
    topology = network.topology
    own = topology.ports(topology.workers[VICTIM])[1]
    network.restart_switches([own] if topology.has_trees else topology.roots)


def restart_controller(network: Network, ranks: Ranks) -> None:
    """Restart the controller, and wait until all ranks have rejoined and reduce again."""
    network.stop_controller(kill=True)
    network.start_controller()
    deadline = time.monotonic() + REJOIN_TIME
    while True:
        jobs = [job for job in network.status()["jobs"] if job["name"] == ranks.job]
        if not any(member["away"] for job in jobs for member in job["members"]):
            break
        if time.monotonic() > deadline:
            raise P4ReduceError(f"not all ranks are back: {jobs}")
    ranks.wait_calls(CALLS_BEFORE_FAULT)


def kill_controller(network: Network, _: Ranks) -> None:
    network.stop_controller(kill=True)


def partition_worker(network: Network, _: Ranks) -> None:
    network.partition_controller([network.topology.workers[VICTIM]], cut=True)


def partition_all(network: Network, _: Ranks) -> None:
    network.partition_controller(network.topology.workers, cut=True)


def outsider(topology: Topology) -> str:
    """Return the first host that is no worker."""
    return next(host for host in topology.hosts if host not in topology.workers)


def forge(network: Network, ranks: Ranks) -> None:
    """Send packets of the job from a host outside it, with the host's own addresses and with those of a worker.

    The sender knows everything that a member of the job knows.
    """
    topology = network.topology
    rogue = outsider(topology)
    worker = topology.workers[VICTIM]
    switch = (
        topology.ports(worker)[1] if topology.has_trees else topology.roots[0]
    )  # the switch that aggregates the worker's packets
    job = next((one for one in network.status()["jobs"] if one["name"] == ranks.job), None)
    if job is None:
        raise P4ReduceError(f"the job {ranks.job} has ended before its packets could be forged")
    udp_port = job["members"][VICTIM]["places"][0]["udp_port"]
    senders = [(topology.ip(host), topology.mac(host), udp_port) for host in (rogue, worker)]
    command = [
        sys.executable, "-m", "p4reduce_topos.faults.forger",
        "--interface", topology.interface(rogue, topology.ports(rogue)[1]),
        "--switch", topology.ip(switch), topology.mac(switch), "--senders", json.dumps(senders),
        "--workers", str(len(topology.workers)), "--job", str(job["number"]), "--generation", str(job["generation"]),
        "--slots", str(job["slots"]), "--seq", str((ranks.events[VICTIM][0]["first_seq"] + _ROUNDS_AHEAD) % 2**32),
    ]  # fmt: skip
    network.start(rogue, "forger", command).first(START_UP_S)


FAULTS: dict[str, Fault] = {
    "worker-killed": Fault("A worker's process is killed.", kill_worker, "JobAborted", "rank 1", 10.0),
    "worker-paused": Fault("A worker's process is stopped for 10 s, and continues.", pause_worker),
    "link-down": Fault("A worker's link is down for 2 s.", cut_link),
    "switch-restarted": Fault(
        "The switch is restarted, and has lost all its state.", restart_switch, "JobAborted", "restarted", 20.0
    ),
    "controller-restarted": Fault(
        "The controller is killed and started again.", restart_controller, seconds=60.0, pause=0.2
    ),
    "controller-killed": Fault(
        "The controller is killed and not started again.", kill_controller, "JobAborted", "controller", 20.0
    ),
    "worker-partitioned": Fault(
        "A worker cannot reach the controller any more.", partition_worker, "JobAborted"
    ),
    "controller-partitioned": Fault(
        "No worker can reach the controller any more.", partition_all, "JobAborted"
    ),
    "corrupted": Fault("Bits flip in 5 % of the packets.", impairments={"corrupt": 0.05}),
    "duplicated": Fault("20 % of the packets arrive twice.", impairments={"duplicate": 0.2}),
    "delayed": Fault("Every packet takes 20 ms on every link.", impairments={"delay": 0.02}, seconds=60.0),
    "reordered": Fault(
        "Many packets are reordered, some arrive twice, some are lost.",
        impairments={"jitter": 0.1, "duplicate": 0.3, "loss": 0.03}, seconds=100.0,
    ),
    "forged": Fault("A host outside the job forges the job's packets.", forge, pause=0.1, needs_outsider=True),
    "other-shape": Fault(
        "A rank calls with a tensor of another shape.", outcome="MismatchError", says="different operations",
        options=("--odd", str(VICTIM)),
    ),
}  # fmt: skip
