# SPDX-License-Identifier: Apache-2.0
"""Artificial packet loss at ports, for tests of how jobs cope with it."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.tasks import isolate_cancellation
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.switches.aggregator import DIRECTIONS, Aggregator, SwitchError
from p4reduce_controller.tenants.access import LONGEST_NAME


def chosen_to_lose(inventory: Inventory, request: pb.SetLossRequest) -> list[tuple[str, Aggregator]]:
    """Return the switches that are meant, with their names. Raises ValueError if one of them cannot do it."""
    if not 0 <= request.rate <= 1:
        raise ValueError(f"rate={request.rate}: accepted are 0 to 1")
    if not 0 <= request.port < 512:
        raise ValueError(f"port={request.port}: accepted are 0 to 511")
    known = [(inventory.name(number), switch) for number, switch in inventory.switches.items()]
    chosen = [(name, one) for name, one in known if request.switch in ("", name, one.target)]
    if not chosen:
        names = ", ".join(name for name, _ in known)
        raise ValueError(f"switch={request.switch[:LONGEST_NAME]!r}: accepted are {names}")
    for name, switch in chosen:
        if why := switch.unavailable:
            raise ValueError(f"the switch {name} is unavailable: {why.reason}; choose others with --switch")
    able = [(name, one) for name, one in chosen if not one.ports or request.port in one.ports]
    if able and request.rate == 0:  # a port that does not exist loses nothing
        return able
    for name, switch in chosen:
        if (name, switch) not in able:
            ports = ", ".join(map(str, sorted(switch.ports)))
            raise ValueError(f"port={request.port}: the ports of the switch {name} are {ports}")
    return chosen


async def set_loss(request: pb.SetLossRequest, chosen: list[tuple[str, Aggregator]]) -> Exception | None:
    excluded = {pb.IN: "out", pb.OUT: "in"}.get(request.direction)
    done: list[str] = []
    try:
        for name, switch in chosen:
            for direction in DIRECTIONS:
                if direction != excluded:
                    await isolate_cancellation(switch.set_loss(request.port, direction, request.rate))
            done.append(name)
    except Exception as error:
        return SwitchError(f"{error}; it was set before at {', '.join(done)}") if done else error
    return None
