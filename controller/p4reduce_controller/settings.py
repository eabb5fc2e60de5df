# SPDX-License-Identifier: Apache-2.0
"""What the controller is told, by options and by a TOML file: options win."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from p4reduce.protocol.constants import AGGREGATION_PORT, MAX_AGGREGATORS
from p4reduce_controller.frames import Endpoint, format_mac, parse_mac, synthetic_mac
from p4reduce_controller.switch_config import Route, SwitchConfig
from p4reduce_controller.trees import Trees, Uplink

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

EXAMPLE = """\
switch = ["127.0.0.1:9559"]    # the switch's P4Runtime server, or those of several
listen = "0.0.0.0:7700"
address = ["10.0.0.254"]       # of each switch; where there is one, also others that it answers for
mac = ["02:00:0a:00:00:fe"]
ports = [1, 2, 3]              # to flood
tls_cert = "cert.pem"
tls_key = "key.pem"
token_file = "token"

[hosts]                        # MAC address = port
"02:00:00:00:00:01" = 1

[[routes]]
destination = "10.0.1.0/24"
port = 2
next_hop_mac = "02:00:00:00:00:02"
"""

EXAMPLE_OF_A_TREE = """\
listen = "0.0.0.0:7700"
insecure = true

[[switches]]                   # instead of switch, address, mac, ports, hosts and routes: each has its own
name = "spine"
switch = "127.0.0.1:9559"
address = ["10.0.255.1"]
ports = [1, 2]

[[switches]]
name = "leaf1"
switch = "127.0.0.1:9560"
address = ["10.0.255.2"]
ports = [1, 2, 3]
uplink = { port = 3, to = "spine" }
hosts = { "02:00:00:00:00:01" = 1 }

[[switches]]
name = "leaf2"
switch = "127.0.0.1:9561"
address = ["10.0.255.3"]
ports = [1, 2, 3]
uplink = { port = 3, to = "spine" }
"""


class SettingsError(Exception):
    """A setting is not accepted; the message says which and what would be."""


@dataclass
class Settings:
    """Fields have the names of the TOML keys; paths are relative to the working directory."""

    switch: list[str] = field(default_factory=lambda: ["127.0.0.1:9559"])
    device_id: int = 1
    listen: str = "127.0.0.1:7700"
    address: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    mac: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [1])
    hosts: dict[str, int] = field(default_factory=dict)
    routes: list[dict[str, Any]] = field(default_factory=list)
    uplink: list[str] = field(default_factory=list)
    switches: list[dict[str, Any]] = field(default_factory=list)
    lease: float = 5.0
    slots: int = 32
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    metrics: str = ""
    drop_rate: float = 0.0
    pipeline: str = ""
    state: str = ""

    @property
    def names(self) -> list[str]:
        """Of the switches: as they are called in [[switches]], else their P4Runtime addresses."""
        return [str(one.get("name") or one.get("switch")) for one in self.switches] or self.switch

    def trees(self) -> Trees:
        """How the switches hang together. Raises SettingsError."""
        names = self.names
        if len(set(names)) != len(names):
            raise SettingsError(f"switches {', '.join(names)}: names that differ are accepted")
        ways = [parse_uplink(text) for text in self.uplink]
        for one in self.switches:
            if way := one.get("uplink"):
                if not isinstance(way, dict) or way.keys() != {"port", "to"}:
                    raise SettingsError(f"uplink = {way!r}: accepted is as {{ port = 3, to = 'spine' }}")
                ways.append((str(one.get("name") or one.get("switch")), _port(way["port"]), str(way["to"])))
        uplinks: dict[int, Uplink] = {}
        for name, port, to in ways:
            if strange := [each for each in (name, to) if each not in names]:
                raise SettingsError(
                    f"uplink {name}:{port}={to}: {strange[0]} is no switch; there are {', '.join(names)}"
                )
            if names.index(name) in uplinks:
                raise SettingsError(f"uplink {name}:{port}={to}: one for a switch is accepted")
            uplinks[names.index(name)] = Uplink(_port(port), names.index(to))
        try:
            trees = Trees(names, uplinks)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        if len(trees.roots) > MAX_AGGREGATORS:
            raise SettingsError(f"{len(trees.roots)} switches without a parent: up to {MAX_AGGREGATORS} are accepted")
        return trees

    def switch_configs(self) -> list[SwitchConfig]:
        """One for each switch. Raises SettingsError."""
        if self.switches:
            usual = Settings()
            for name in ("switch", "address", "mac", "ports", "hosts", "routes"):
                if getattr(self, name) != getattr(usual, name):
                    raise SettingsError(f"{name} is of each of the [[switches]], and is not accepted beside them")
            return [config for one in self.switches for config in _of_one(one, self.device_id).switch_configs()]
        for port in [*self.ports, *self.hosts.values()]:
            _port(port)
        addresses = [parse_address(text) for text in self.address or [""]]
        switches = len(self.switch)
        if switches == 1:
            addresses, more = addresses[:1], addresses[1:]
        else:
            more = []
            self._check_several(addresses)
        macs = [_mac(text) for text in self.mac] or [synthetic_mac(ip) for ip, _ in addresses]
        if len(macs) != switches:
            raise SettingsError(f"--mac is given {len(macs)} times for {switches} switches: one for each is accepted")
        return [
            SwitchConfig(
                target=target,
                address=Endpoint(mac, *address),
                device_id=self.device_id,
                more_addresses=[ip for ip, _ in more],
                ports=self.ports,
                hosts={_mac(host): port for host, port in self.hosts.items()},
                routes=[_route(route) for route in self.routes],
            )
            for target, address, mac in zip(self.switch, addresses, macs, strict=True)
        ]

    def _check_several(self, addresses: list[tuple[str, int]]) -> None:
        """What only makes sense for one switch is refused for several."""
        switches = len(self.switch)
        if len(set(self.switch)) != switches or not switches:
            raise SettingsError(f"--switch {', '.join(self.switch)}: 1 or more that differ are accepted")
        if len(addresses) != switches or len(set(addresses)) != switches:
            raise SettingsError(
                f"--address {', '.join(self.address)} for {switches} switches: one for each is accepted, in the order "
                "of --switch, and no two alike"
            )
        if self.hosts or self.routes:
            raise SettingsError(f"--host and --route are of one switch, and there are {switches}: none is accepted")

    def token(self) -> str | None:
        """The token file's contents without white space around them. Raises SettingsError."""
        if not self.token_file:
            return None
        token = read(self.token_file).decode().strip()
        if not token:
            raise SettingsError(f"--token-file {self.token_file} is empty")
        return token


def load(file: Path | None, options: Mapping[str, Any]) -> Settings:
    """Settings from the file, where there is one, and the options that are not None. Raises SettingsError."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(read(str(file)).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"--config {file}: {error}") from None
    known = {item.name: item for item in fields(Settings)}
    if strange := sorted(set(values) - set(known)):
        raise SettingsError(f"--config {file}: unknown {', '.join(strange)}; known are {', '.join(known)}")
    values |= {name: value for name, value in options.items() if value is not None}
    for name in ("switch", "mac"):
        if isinstance(values.get(name), str):
            values[name] = [values[name]]
    settings = Settings(**values)
    _check_types(settings)
    if not 0 <= settings.drop_rate <= 1:
        raise SettingsError(f"--drop-rate {settings.drop_rate}: 0 to 1 is accepted")
    if not 0.1 <= settings.lease <= 3600:
        raise SettingsError(f"--lease {settings.lease}: 0.1 to 3600 seconds are accepted")
    if settings.slots < 1:
        raise SettingsError(f"--slots {settings.slots}: 1 or more are accepted")
    return settings


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None


def parse_address(text: str) -> tuple[str, int]:
    """IP and UDP port of "10.0.0.254" or "127.0.0.1:40001"."""
    ip, colon, port = text.partition(":")
    try:
        IPv4Address(ip)
        number = int(port) if colon else AGGREGATION_PORT
    except (AddressValueError, ValueError):
        number = 0
    if not 0 < number < 65536:
        raise SettingsError(
            f"--address {text!r}: an IPv4 address is accepted, or one with a UDP port, as 10.0.0.254:31314"
        )
    return ip, number


def parse_host(text: str) -> tuple[str, int]:
    """MAC and port of "02:00:00:00:00:01=3"."""
    mac, _, port = text.partition("=")
    if not port.isdigit():
        raise SettingsError(f"--host {text}: MAC=PORT is accepted, as 02:00:00:00:00:01=3")
    return mac, int(port)


def parse_route(text: str) -> dict[str, Any]:
    """The parts of "10.0.1.0/24=2,02:00:00:00:00:02"."""
    destination, _, rest = text.partition("=")
    port, _, mac = rest.partition(",")
    if not port.isdigit() or not mac:
        raise SettingsError(f"--route {text}: CIDR=PORT,MAC is accepted, as 10.0.1.0/24=2,02:00:00:00:00:02")
    return {"destination": destination, "port": int(port), "next_hop_mac": mac}


def parse_uplink(text: str) -> tuple[str, int, str]:
    """The parts of "127.0.0.1:9560:2=127.0.0.1:9559"."""
    place, _, to = text.partition("=")
    name, _, port = place.rpartition(":")
    if not name or not port.isdigit() or not to:
        raise SettingsError(f"--uplink {text}: LEAF:PORT=SPINE is accepted, as 127.0.0.1:9560:2=127.0.0.1:9559")
    return name, int(port), to


def _of_one(switch: Mapping[str, Any], device_id: int) -> Settings:
    """The settings of one of [[switches]], as if it were the only one."""
    accepted = {"switch", "address", "mac", "ports", "hosts", "routes", "device_id"}
    if strange := sorted(set(switch) - accepted - {"name", "uplink"}):
        raise SettingsError(
            f"switches: unknown {', '.join(strange)}; known are name, uplink, {', '.join(sorted(accepted))}"
        )
    if "switch" not in switch:
        raise SettingsError(f"switches: {dict(switch)} lacks switch, the address of its P4Runtime server")
    values = {"device_id": device_id, **{name: value for name, value in switch.items() if name in accepted}}
    for name in ("switch", "address", "mac"):
        if isinstance(values.get(name), str):
            values[name] = [values[name]]
    settings = Settings(**values)
    _check_types(settings)
    if len(settings.switch) != 1:
        raise SettingsError(f"switch = {settings.switch!r}: one for each of the [[switches]] is accepted")
    return settings


def parse_ports(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise SettingsError(f"--ports {text}: numbers with commas between are accepted, as 1,2,3")
    return [int(part) for part in parts]


def _route(route: Mapping[str, Any]) -> Route:
    try:
        destination = IPv4Network(route["destination"])
        port, mac = route["port"], route["next_hop_mac"]
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"route {dict(route)}: destination, port and next_hop_mac are needed ({error})") from None
    return Route(destination, _port(port), _mac(mac))


def _mac(text: str) -> str:
    try:
        return format_mac(parse_mac(text))
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _port(port: object) -> int:
    if not isinstance(port, int) or not 0 < port < 510:
        raise SettingsError(f"port {port}: 1 to 509 is accepted")
    return port


def _check_types(settings: Settings) -> None:
    defaults = Settings()
    for item in fields(Settings):
        value, kind = getattr(settings, item.name), type(getattr(defaults, item.name))
        if kind is float and isinstance(value, int):
            setattr(settings, item.name, float(value))
        elif not isinstance(value, kind):
            raise SettingsError(f"{item.name} = {value!r}: a {kind.__name__} is accepted")
