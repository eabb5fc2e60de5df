# SPDX-License-Identifier: Apache-2.0
"""Parsers of addresses, ports, routes and uplinks, as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

from p4reduce.control.diagnostics import canonical_address, check_address
from p4reduce.protocol.constants import AGGREGATION_PORT
from p4reduce.transport.addresses import split_host_port, why_not_a_host
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.p4runtime.switch_config import Route
from p4reduce_controller.switches.frames import format_mac, parse_mac
from p4reduce_controller.switches.trees import NamedUplink


def parse_address(text: str) -> tuple[str, int]:
    """Return IP address and UDP port of "10.0.0.254", "127.0.0.1:40001", "fd00::fe" or "[fd00::fe]:40001"."""
    try:
        ip, port = split_host_port(text)
    except ValueError:
        ip, port = "", None
    number = AGGREGATION_PORT if port is None else port
    if not ip or not 0 < number < 65536:
        raise SettingsError(
            f"--address {text!r}: must be an IP address, or one with a UDP port, as 10.0.0.254:31314 or "
            "[fd00::fe]:31314"
        )
    if why := why_not_a_host(ip):
        raise SettingsError(f"--address {text!r}: {why}; give the address that ranks send to")
    return ip, number


def parse_host(text: str) -> tuple[str, int]:
    """Return MAC address and port of "02:00:00:00:00:01=3"."""
    mac, _, port = text.partition("=")
    if not port.isdigit():
        raise SettingsError(f"--host {text}: must be MAC=PORT, as 02:00:00:00:00:01=3")
    return mac, int(port)


def parse_route(text: str) -> dict[str, Any]:
    """Return the parts of "10.0.1.0/24=2,02:00:00:00:00:02"."""
    destination, _, rest = text.partition("=")
    port, _, mac = rest.partition(",")
    if not port.isdigit() or not mac:
        raise SettingsError(f"--route {text}: must be CIDR=PORT,MAC, as 10.0.1.0/24=2,02:00:00:00:00:02")
    return {"destination": destination, "port": int(port), "next_hop_mac": mac}


def parse_uplink(text: str) -> tuple[str, int, str]:
    """Return the parts of "127.0.0.1:9560:2=127.0.0.1:9559"."""
    uplink, _, to = text.partition("=")
    name, _, port = uplink.rpartition(":")
    if not name or not port.isdigit() or not to:
        raise SettingsError(f"--uplink {text}: must be LEAF:PORT=SPINE, as 127.0.0.1:9560:2=127.0.0.1:9559")
    return canonical_address(name), int(port), canonical_address(to)


def parse_ports(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise SettingsError(f"--ports {text}: must be numbers separated by commas, as 1,2,3")
    return [int(part) for part in parts]


def as_route(route: Mapping[str, Any]) -> Route:
    try:
        destination, port, mac = route["destination"], route["port"], route["next_hop_mac"]
    except (KeyError, TypeError) as error:
        raise SettingsError(f"route {dict(route)}: destination, port and next_hop_mac are needed ({error})") from None
    try:
        network = IPv4Network(destination)
    except ValueError as error:
        raise SettingsError(f"route {dict(route)}: destination must be an IPv4 network ({error})") from None
    return Route(network, as_port(port), as_mac(mac))


def as_mac(text: str) -> str:
    try:
        octets = parse_mac(text)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if octets[0] & 1 or not any(octets):
        raise SettingsError(f"MAC address {text}: not a host's address; give one without the multicast bit")
    return format_mac(octets)


def as_uplinks(ways: object) -> tuple[NamedUplink, ...]:
    """Return the uplinks in the value of `uplink` in a [[switches]] table: one, or a list."""
    found = []
    for way in ways if isinstance(ways, list) else [ways]:
        if not isinstance(way, dict) or way.keys() != {"port", "to"}:
            raise SettingsError(f"uplink = {way!r}: accepted is as {{ port = 3, to = 'spine' }}, or a list of these")
        found.append((as_port(way["port"]), canonical_address(str(way["to"]))))
    return tuple(found)


def as_port(port: object) -> int:
    if not isinstance(port, int) or not 0 < port < 510:
        raise SettingsError(f"port {port}: must be from 1 to 509")
    return port


_STORE_SCHEME = "etcd://"
_STORE_PREFIX = "/p4reduce"
_ETCD_PORT = 2379
SHORTEST_STORE_LEASE = 2  # seconds of a lease: etcd's own minimum by default


def parse_store(text: str) -> tuple[list[str], str]:
    """Return the members and the key prefix of etcd://HOST:PORT,HOST:PORT[/PREFIX]. Raises SettingsError."""
    refused = SettingsError(f"--store {text}: must be etcd://HOST:PORT,HOST:PORT or etcd://HOST:PORT/PREFIX")
    if not text.startswith(_STORE_SCHEME):
        raise refused
    listed, _, prefix = text.removeprefix(_STORE_SCHEME).partition("/")
    members = [one if ":" in one.rpartition("]")[2] else f"{one}:{_ETCD_PORT}" for one in listed.split(",")]
    members = list(map(canonical_address, members))
    for member in members:
        if "@" in member:
            raise refused
        try:
            check_address(f"--store {text}: member", member, f"127.0.0.1:{_ETCD_PORT}", of_grpc=False)
        except ValueError as error:
            raise SettingsError(str(error)) from None
    if len(set(members)) != len(members):
        raise SettingsError(f"--store {text}: the members must differ")
    return members, f"/{prefix.strip('/')}" if prefix.strip("/") else _STORE_PREFIX
