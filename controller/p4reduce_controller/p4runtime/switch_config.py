# SPDX-License-Identifier: Apache-2.0
"""The configuration of one switch, as the settings describe it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.switches.frames import Endpoint, have_one_family
from p4reduce_controller.switches.trees import NamedUplink


@dataclass(frozen=True)
class Route:
    """A route: packets to `destination` leave by `port`, to the router with this MAC address."""

    destination: IPv4Network
    port: int
    next_hop_mac: str


@dataclass(frozen=True)
class SwitchConfig:
    """A switch: where it is, its addresses, and what else it forwards.

    `address`: where workers send to.
    `more_addresses`: more addresses for which it answers ARP and ping. All have `address.mac`, which is also its MAC
    address as a router.
    `ports`: those that frames are flooded to. They lose the share `drop_rate` of their packets in both directions.
    `lags`: groups of ports; packets that could arrive at one of a group may arrive at any of it.
    `hello_rate`: HELLOs a second from each port that reach the controller, and as many in a burst.
    `uplinks`: for each parent, the port toward it and its name.
    `spare`: new jobs use it only while no other switch can be used.
    """

    target: str
    address: Endpoint
    device_id: int = 1
    more_addresses: Sequence[str] = ()
    ports: Sequence[int] = (1,)
    lags: Sequence[Sequence[int]] = ()
    hosts: Mapping[str, int] = field(default_factory=dict)
    routes: Sequence[Route] = ()
    drop_rate: float = 0.0
    hello_rate: int = 200
    name: str = ""
    uplinks: tuple[NamedUplink, ...] = ()
    spare: bool = False

    def lag_of(self, port: int) -> tuple[int, ...]:
        """Return the group that has the port; () if none has."""
        return next((tuple(group) for group in self.lags if port in group), ())

    @property
    def parents(self) -> frozenset[str]:
        """The names of its parents."""
        return frozenset(name for _, name in self.uplinks)

    def uplinks_among(self, addresses: Mapping[str, Endpoint]) -> list[NamedUplink]:
        """Return the uplinks to parents with an address of the same family. `addresses`: those of all, by name."""
        return [up for up in self.uplinks if up[1] in addresses and have_one_family(addresses[up[1]], self.address)]

    @property
    def fixed(self) -> dict[str, int]:
        """The configured ports of MAC addresses, of hosts and of routers, which need not be learned."""
        return {**{route.next_hop_mac: route.port for route in self.routes}, **self.hosts}


def check_groups(config: SwitchConfig) -> None:
    """Raise SettingsError if a link group has uplinks to several parents: it leads to one switch or host."""
    for group in config.lags:
        ports = {name: port for port, name in config.uplinks if port in group}
        if len(ports) > 1:
            ups = " and ".join(f"port {port} to {name}" for name, port in ports.items())
            raise SettingsError(
                f"--lag {','.join(map(str, group))}: the switch {config.name} has uplinks from {ups}; the ports of a "
                "group must lead to one parent. If the group is another switch's, use [[switches]] tables"
            )


def addresses_of(configs: Iterable[SwitchConfig]) -> dict[str, Endpoint]:
    """Return the addresses of switches by name."""
    return {one.name: one.address for one in configs}


def check_addresses(configs: Iterable[SwitchConfig], addresses: Mapping[str, Endpoint]) -> None:
    """Raise SettingsError if one of these switches has an address of another family than a parent.

    `addresses`: those of all switches, by name.
    """
    for one in configs:
        for _, name in one.uplinks:
            if name in addresses and not have_one_family(addresses[name], one.address):
                raise SettingsError(
                    f"the switch {one.name} has --address {one.address}, and its parent {name} has {addresses[name]}: "
                    "give both IPv4 addresses, or both IPv6"
                )
