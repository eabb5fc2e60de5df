# SPDX-License-Identifier: Apache-2.0
"""The raw transport, with frames that scapy builds and reads: slow, and the easiest to read."""

from __future__ import annotations

from p4reduce.protocol.constants import ECN_ECT_0
from p4reduce.transport.addresses import is_ipv6
from p4reduce.transport.base import Switch, TransportError
from p4reduce.transport.raw import RawTransport

try:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether
    from scapy.packet import Packet

    from p4reduce.transport.scapy_layer import P4Reduce
except ImportError as error:
    raise TransportError(
        "transport 'scapy' needs scapy, which is not installed: pip install 'p4reduce[scapy]'"
    ) from error


class ScapyTransport(RawTransport):
    """`RawTransport`, with scapy packets in place of packed structs."""

    def __init__(self, switch: Switch, *, interface: str | None = None, largest_payload: int = 0) -> None:
        super().__init__(switch, interface=interface, largest_payload=largest_payload)
        # Everything but the payload is the same in every frame.
        ip: Packet
        if is_ipv6(switch.ip):
            ip = IPv6(src=self._ip, dst=switch.ip, tc=ECN_ECT_0, hlim=64)
        else:
            ip = IP(src=self._ip, dst=switch.ip, tos=ECN_ECT_0, ttl=64, id=0, flags="DF")
        ethernet = Ether(dst=switch.mac, src=self._mac.hex(":"))
        self._envelope = ethernet / ip / UDP(sport=self._port, dport=switch.udp_port, chksum=0)

    def _frame(self, payload: bytes) -> bytes:
        return bytes(self._envelope / P4Reduce(payload))

    def _payload(self, frame: bytes) -> bytes | None:
        datagram = Ether(frame)[UDP]
        payload = bytes(datagram.payload)[: datagram.len - 8]
        return payload if len(payload) == datagram.len - 8 else None
