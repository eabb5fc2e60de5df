# SPDX-License-Identifier: Apache-2.0
"""A switch of this machine and its controller, as processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.channel import open_channel
from p4reduce_bench.processes.children import Child, Family

START_UP_S = 60.0


def rank_environment(controller: str, rank: int, workers: int, **more: str) -> dict[str, str]:
    """Of a rank that sends for itself. more: P4REDUCE_ variables, in lower case."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "P4REDUCE_CONTROLLER": controller,
        "P4REDUCE_LOCAL": "off",
        "OMP_NUM_THREADS": "1",
        **{f"P4REDUCE_{name.upper()}": value for name, value in more.items()},
    }


def start_switch(
    family: Family,
    target: str = "native",
    ports: Sequence[str] = ("1=udp:127.0.0.1:0",),
    *,
    address: str = "",
    switch_options: Sequence[str] = (),
    controller_options: Sequence[str] = (),
) -> tuple[Child, Child, str]:
    """Return the switch, its controller, and the controller's address.

    ports: as `p4reduce switch` takes them. address: of the aggregator; by default its first port's.
    Raises ChildFailed if one of them does not start.
    """
    flags = [part for port in ports for part in ("--port", port)]
    switch = family.start(
        "switch", "p4reduce", "switch", "--target", target, *flags, *switch_options, "--grpc", "127.0.0.1:0", "--json"
    )
    ready = switch.first(START_UP_S)
    controller = family.start(
        "controller", "p4reduce", "controller", "--switch", ready["grpc"],
        "--address", address or ready["ports"]["1"].removeprefix("udp:"),
        "--ports", ",".join(port.partition("=")[0] for port in ports),
        "--listen", "127.0.0.1:0", *controller_options, "--json",
    )  # fmt: skip
    return switch, controller, controller.first(START_UP_S)["listen"]


def packets_lost_on_purpose(controller: str) -> dict[str, int]:
    """Of all ports, by direction: "in" (toward the switch) and "out"."""
    with open_channel(controller, None) as channel:
        reply: Any = rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)
    lost = {"in": 0, "out": 0}
    for switch in reply.switches:
        for port in switch.losses:
            lost["in" if port.direction == pb.IN else "out"] += port.lost
    return lost
