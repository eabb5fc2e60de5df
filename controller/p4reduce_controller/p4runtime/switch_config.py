# SPDX-License-Identifier: Apache-2.0
"""One switch as settings describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from p4reduce_controller.switches.frames import Endpoint


@dataclass(frozen=True)
class Route:
    destination: IPv4Network
    port: int
    next_hop_mac: str


@dataclass(frozen=True)
class SwitchConfig:
    """Where the switch is, who it is on the network, and what it forwards besides.

    `address` is where workers send to; `more_addresses` are answered for ARP and ping too. All have `address.mac`,
    which is the routers' MAC as well. `ports` are flooded, and lose the share `drop_rate` of their packets both ways.
    From each port there is, `hello_rate` HELLOs a second come to the controller, and as many at once. `uplink` is the
    port toward its parent, and the parent's name.
    """

    target: str
    address: Endpoint
    device_id: int = 1
    more_addresses: Sequence[str] = ()
    ports: Sequence[int] = (1,)
    hosts: Mapping[str, int] = field(default_factory=dict)
    routes: Sequence[Route] = ()
    drop_rate: float = 0.0
    hello_rate: int = 200
    name: str = ""
    uplink: tuple[int, str] | None = None

    @property
    def fixed(self) -> dict[str, int]:
        """The ports of MAC addresses that do not have to be learned: of hosts and of routers."""
        return {**{route.next_hop_mac: route.port for route in self.routes}, **self.hosts}
