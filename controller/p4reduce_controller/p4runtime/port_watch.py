# SPDX-License-Identifier: Apache-2.0
"""The states of a switch's ports, from its gNMI server, which runs beside P4Runtime.

They are OpenConfig's `oper-status`, as Stratum and the switches of `p4reduce switch` implement it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import finsy as fy
import grpc.aio
from finsy.gnmiclient import GNMIClientError

from p4reduce.control.diagnostics import of_grpc

_INDEX = fy.GNMIPath("interfaces/interface[name=*]/state/ifindex")
_STATUS = fy.GNMIPath("interfaces/interface[name=*]/state/oper-status")
NO_GNMI = "it has no gNMI server"
ANSWER_TIMEOUT = 10.0  # seconds for the first state of all ports

States = Mapping[int, str]  # a port's number -> OpenConfig's name of its state, such as "UP"


async def watch_ports(channel: grpc.aio.Channel, changed: Callable[[States], None]) -> str:
    """Call `changed` with all ports at once, and whenever one changes, until the stream ends. Return why it ended."""
    client = fy.GNMIClient("")
    await client.open(channel=channel)
    try:
        return await _watch(client, changed)
    except GNMIClientError as error:
        return NO_GNMI if error.code is fy.GRPCStatusCode.UNIMPLEMENTED else of_grpc(error.message, error.code.name)
    except asyncio.TimeoutError:
        return f"no answer within {ANSWER_TIMEOUT:g} s"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"it reports its ports in a form that is not understood: {type(error).__name__}: {error}"
    finally:
        await client.close()


async def _watch(client: fy.GNMIClient, changed: Callable[[States], None]) -> str:
    numbers = {one.path["name"]: int(one.value) for one in await asyncio.wait_for(client.get(_INDEX), ANSWER_TIMEOUT)}
    if not numbers:
        return "it has no ports"
    states: dict[int, str] = {}
    subscription = client.subscribe()
    subscription.on_change(*(_STATUS.set(name=name) for name in sorted(numbers)))

    async def first() -> None:
        async for update in subscription.synchronize():
            states[numbers[update.path["name"]]] = str(update.value)

    try:
        await asyncio.wait_for(first(), ANSWER_TIMEOUT)
        changed(dict(states))
        async for update in subscription.updates():
            states[numbers[update.path["name"]]] = str(update.value)
            changed(dict(states))
        return "it has ended its stream"
    finally:
        subscription.cancel()
