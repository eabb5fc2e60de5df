# SPDX-License-Identifier: Apache-2.0
"""Builders of frames, valid and invalid.

The layout of the aggregation header is the host library's, which another test compares with the P4 code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.header import FIXED

AGGREGATION_PORT = 0x7A52
DATA, RESULT, STATUS, ERROR, RESET, QUERY, ABORT, HELLO = range(1, 9)
OPS = ("?", "DATA", "RESULT", "STATUS", "ERROR", "RESET", "QUERY", "ABORT", "HELLO")
NO_KEY = 0xFFFFFFFF
PARENT, NOBODY = 31, 255

IPV4, ARP, IPV6, VLAN = 0x0800, 0x0806, 0x86DD, 0x8100
ICMP, UDP, ICMPV6 = 1, 17, 58
BROADCAST = "ff:ff:ff:ff:ff:ff"

Values = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Host:
    """A source or destination of frames: its MAC address, IP address, UDP port, and VLAN (0: none)."""

    mac: str
    ip: str
    udp_port: int = AGGREGATION_PORT
    vlan: int = 0


@dataclass(frozen=True)
class Aggregation:
    """An aggregation packet.

    values: the int32 values of each lane.
    present: the bitmap of lanes with values. By default it follows from `values`.
    """

    op: int = DATA
    active: int = 0
    worker: int = 0
    job: int = 0
    generation: int = 0
    slot: int = 0
    seq: int = 0
    fingerprint: int = 0
    keys: Sequence[int] = ()
    values: Mapping[int, Values] = field(default_factory=dict)
    present: int | None = None
    version: int = 1

    def pack(self) -> bytes:
        present = sum(1 << lane for lane in self.values) if self.present is None else self.present
        head = FIXED.pack(
            self.version << 4 | self.op,
            self.active,
            present,
            self.worker,
            self.job,
            self.generation,
            self.slot,
            self.seq & 0xFFFFFFFF,
            self.fingerprint,
        )
        keys = struct.pack(f"!{len(self.keys)}I", *self.keys)
        return head + keys + b"".join(self.values[lane].astype(">i4").tobytes() for lane in sorted(self.values))


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def ip_bytes(ip: str) -> bytes:
    return ip_address(ip).packed


def address_number(ip: str, bits: int) -> int:
    """Return an address as the key of a table. In 128 bits, an IPv4 address is ::ffff:a.b.c.d."""
    address = ip_address(ip)
    mapped = bits == 128 and address.version == 4
    return int(address) | (0xFFFF << 32 if mapped else 0)


def mac_number(mac: str) -> int:
    return int.from_bytes(mac_bytes(mac), "big")


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ethernet(source: str, destination: str, ether_type: int, payload: bytes) -> bytes:
    return mac_bytes(destination) + mac_bytes(source) + struct.pack("!H", ether_type) + payload


def tagged(frame: bytes, tag: int, ether_type: int = VLAN) -> bytes:
    """Return the frame with a VLAN tag: the priority and the number of the VLAN."""
    return frame[:12] + struct.pack("!HH", ether_type, tag) + frame[12:]


def in_vlan(frame: bytes, vlan: int) -> bytes:
    return tagged(frame, vlan) if vlan else frame


def ipv4(
    source: str,
    destination: str,
    protocol: int,
    payload: bytes,
    *,
    tos: int = 0,
    ttl: int = 64,
    identification: int = 0,
    fragment: int = 0x4000,
    options: bytes = b"",
    total_length: int | None = None,
    wrong_checksum: int = 0,
    version: int = 4,
) -> bytes:
    """Return an IPv4 packet.

    fragment: the flags and the fragment offset. The default is "do not fragment".
    wrong_checksum: a number that is XORed into the checksum.
    """
    length = 20 + len(options) + len(payload) if total_length is None else total_length
    head = struct.pack(
        "!BBHHHBBH4s4s",
        version << 4 | 5 + len(options) // 4,
        tos,
        length,
        identification,
        fragment,
        ttl,
        protocol,
        0,
        ip_bytes(source),
        ip_bytes(destination),
    )
    head += options
    return head[:10] + struct.pack("!H", checksum(head) ^ wrong_checksum) + head[12:] + payload


def ipv6(
    source: str,
    destination: str,
    next_header: int,
    payload: bytes,
    *,
    tos: int = 0,
    ttl: int = 64,
    payload_length: int | None = None,
    version: int = 6,
    flow_label: int = 0,
) -> bytes:
    """Return an IPv6 packet. `tos` is its traffic class, and `ttl` its hop limit."""
    length = len(payload) if payload_length is None else payload_length
    first = version << 28 | tos << 20 | flow_label
    return struct.pack("!IHBB", first, length, next_header, ttl) + ip_bytes(source) + ip_bytes(destination) + payload


def udp(source_port: int, destination_port: int, payload: bytes, *, length: int | None = None, sum_: int = 0) -> bytes:
    length = 8 + len(payload) if length is None else length
    return struct.pack("!HHHH", source_port, destination_port, length, sum_) + payload


def udp_frame(source: Host, destination: Host, payload: bytes, *, udp_length: int | None = None, **ip: object) -> bytes:
    """Return a frame with a UDP datagram, in the VLAN of either host. Further options are those of `ipv4` or `ipv6`."""
    return ip_frame(
        source, destination, UDP, udp(source.udp_port, destination.udp_port, payload, length=udp_length), **ip
    )


def ip_frame(source: Host, destination: Host, protocol: int, payload: bytes, **ip: object) -> bytes:
    ether_type, packet = (IPV6, ipv6) if ":" in source.ip else (IPV4, ipv4)
    plain = ethernet(
        source.mac, destination.mac, ether_type, packet(source.ip, destination.ip, protocol, payload, **ip)
    )
    return in_vlan(plain, source.vlan or destination.vlan)


def frame(source: Host, destination: Host, packet: Aggregation, **ip: object) -> bytes:
    return udp_frame(source, destination, packet.pack(), **ip)


def arp(op: int, sender: Host, target: Host, *, destination: str = BROADCAST) -> bytes:
    body = struct.pack("!HHBBH", 1, IPV4, 6, 4, op)
    for host in (sender, target):
        body += mac_bytes(host.mac) + ip_bytes(host.ip)
    return in_vlan(ethernet(sender.mac, destination, ARP, body), sender.vlan or target.vlan)


def icmp_echo(kind: int, identifier: int, sequence: int, data: bytes) -> bytes:
    body = struct.pack("!BBHHH", kind, 0, 0, identifier, sequence) + data
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def icmpv6(source: Host, destination: Host, kind: int, rest: bytes, **ip: object) -> bytes:
    """Return a frame with an ICMPv6 message. `rest`: what follows its checksum."""
    pseudo = ip_bytes(source.ip) + ip_bytes(destination.ip) + struct.pack("!II", 4 + len(rest), ICMPV6)
    sum_ = checksum(pseudo + bytes([kind, 0, 0, 0]) + rest)
    return ip_frame(source, destination, ICMPV6, struct.pack("!BBH", kind, 0, sum_) + rest, **ip)


def solicitation(sender: Host, target: str, *, to: Host | None = None, option: int = 1, ttl: int = 255) -> bytes:
    """Return a neighbour solicitation for `target`, to its multicast address, or to a host."""
    last = ip_bytes(target)[-3:]
    group = Host(
        "33:33:ff:" + last.hex(":"), str(IPv6Address(int(IPv6Address("ff02::1:ff00:0")) | int.from_bytes(last, "big")))
    )
    rest = bytes(4) + ip_bytes(target) + bytes([option, 1]) + mac_bytes(sender.mac)
    return icmpv6(sender, to or group, 135, rest, ttl=ttl)


def advertisement(sender: Host, target: str, destination: Host, *, flags: int = 0x60000000) -> bytes:
    rest = struct.pack("!I", flags) + ip_bytes(target) + b"\x02\x01" + mac_bytes(sender.mac)
    return icmpv6(sender, destination, 136, rest, ttl=255)


def icmp_too_big(mtu: int, datagram: bytes) -> bytes:
    """Return the ICMP message "fragmentation needed" of a router that may not fragment this datagram."""
    body = struct.pack("!BBHI", 3, 4, 0, mtu) + datagram[:28]
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def describe(data: bytes) -> str:
    """Return one line that describes a frame, for the message of a failed test."""
    if len(data) < 14:
        return f"{len(data)} bytes {data.hex()}"
    text = f"{len(data)} bytes {data[6:12].hex(':')} > {data[:6].hex(':')}"
    ether_type = int.from_bytes(data[12:14], "big")
    if ether_type == VLAN and len(data) >= 18:
        return f"tag {data[14:16].hex()} of {describe(data[:12] + data[16:])}"
    if ether_type != IPV4 or len(data) < 34:
        return f"{text} type {ether_type:#06x} {data[14:46].hex()}"
    ip = data[14:34]
    text += f" ip {ip[12:16].hex()} > {ip[16:20].hex()} ttl {ip[8]} length {int.from_bytes(ip[2:4], 'big')}"
    text += "" if checksum(ip) == 0 or ip[0] != 0x45 else " WRONG CHECKSUM"
    if ip[0] != 0x45 or ip[9] != UDP or len(data) < 60:
        return f"{text} protocol {ip[9]} {data[34:66].hex()}"
    source, destination, length, sum_ = struct.unpack_from("!HHHH", data, 34)
    first, active, present, worker, job, generation, slot, seq, fingerprint = FIXED.unpack_from(data, 42)
    op = OPS[first & 15] if first & 15 < len(OPS) else first & 15
    return (
        f"{text} udp {source} > {destination} length {length} checksum {sum_:#x} | v{first >> 4} {op}"
        f" active {active:#x} present {present:#x}"
        f" worker {worker} job {job} generation {generation} slot {slot} seq {seq:#x}"
        f" fingerprint {fingerprint:#x} | {data[60:92].hex(' ', 4)} ..."
    )
