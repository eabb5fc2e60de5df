# SPDX-License-Identifier: Apache-2.0
"""Trees of many switches, and jobs without I/O whose ranks fill them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.constants import NOBODY
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.switches.aggregator import Heard, Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees, Uplink
from tests.support.controller.jobs_harness import JobsHarness

UP = 500
"""The port of each switch that leads to its parent."""


def wide_trees(widths: Sequence[int]) -> tuple[Trees, list[int]]:
    """Return a root with so many children on each level, and the indices of the switches of the last level."""
    names, uplinks, level = ["root"], {}, [0]
    for width in widths:
        above, level = level, []
        for parent in above:
            for _ in range(width):
                level.append(len(names))
                uplinks[len(names)] = Uplink(UP, parent)
                names.append(f"switch{len(names)}")
    return Trees(names, uplinks), level


def address_of(number: int, first: int = 1) -> Endpoint:
    """Return an address for each number up to 65,535, and others for each `first`."""
    return Endpoint(
        f"02:00:00:{first:02x}:{number >> 8:02x}:{number & 255:02x}",
        f"10.{first}.{number >> 8}.{number & 255}",
        31314,
    )


class WideHarness(JobsHarness):
    """A harness for a tree of switches whose parents have heard them, and jobs of thousands of ranks."""

    def __init__(self, widths: Sequence[int], slots: int = 512) -> None:
        super().__init__()
        trees, self.leaves = wide_trees(widths)
        self.switches = Switches(
            Layout(4, 64, slots), [address_of(number) for number in range(len(trees.names))], trees, default_slots=64
        )
        self.jobs = Jobs(self.switches)
        ports = count(1)
        for child, up in trees.uplinks.items():
            self.switches.children[child, up.parent] = Heard(next(ports), address_of(child), 0, 0, 0, 1)

    def all_join(self, world_size: int, ranks_per_host: int = 1, name: str = "job") -> list[object]:
        """Let all ranks join. The ranks of a host share a stream if there are several."""
        shared = {"stream": pb.SHARED} if ranks_per_host > 1 else {}
        return [
            self.join(rank, world_size, name, host=f"host{rank // ranks_per_host}", timeout_s=100.0, **shared)
            for rank in range(world_size)
        ]

    def hellos(
        self, sessions: Sequence[object], ranks_per_host: int, hosts_per_leaf: int
    ) -> Iterator[tuple[int, Heard]]:
        """Return the HELLOs of all ranks, each with the leaf that hears it. Hosts fill one leaf after the other."""
        for rank, session in enumerate(sessions):
            host = rank // ranks_per_host
            leaf, port = divmod(host, hosts_per_leaf)
            one = self.assigned(session)
            at = address_of(host, first=2)
            sender = Endpoint(at.mac, at.ip, 5000 + rank % ranks_per_host)
            worker = min(rank, NOBODY)
            yield self.leaves[leaf], Heard(port + 1, sender, one.job, one.generation, worker, one.hello_nonce)
