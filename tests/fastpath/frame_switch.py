# SPDX-License-Identifier: Apache-2.0
"""The model of the switch at the bare end of a veth pair, in a thread of its own."""

from __future__ import annotations

import socket
import struct

from p4reduce.protocol import Membership
from p4reduce.protocol.constants import AGGREGATION_PORT
from p4reduce.transport import Switch
from p4reduce.transport.addresses import is_ipv6
from p4reduce.transport.frames import ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, internet_checksum, ip_and_udp_bytes
from tests.support.hostlib.udp_switch import Receiver
from tests.support.own_network import OwnNetwork
from tests.support.protocol.model_switch import ModelSwitch

UDP = struct.Struct("!HHHH")


class FrameSwitch(Receiver):
    """The aggregator of one job with all ranks on one host. It learns a rank's UDP port from the rank's packets."""

    def __init__(self, network: OwnNetwork, membership: Membership) -> None:
        self.endpoint = Switch(network.switch_ip, AGGREGATION_PORT, network.switch_mac)
        self.frames: list[bytes] = []
        """What the ranks sent."""
        self.traffic_class = 0
        """The TOS or traffic class of its frames."""
        self._model = ModelSwitch(membership)
        self._ports: dict[int, int] = {}
        self._ipv6 = is_ipv6(network.switch_ip)
        self._headers = ETHERNET.size + ip_and_udp_bytes(network.switch_ip)
        ether_type = ETHERTYPE_IPV6 if self._ipv6 else ETHERTYPE_IPV4
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ether_type))
        self._socket.bind((network.wire, ether_type))
        super().__init__(self._socket)

    @property
    def ranks_heard(self) -> int:
        return len(self._ports)

    def _receive(self, sock: socket.socket) -> None:
        frame, (_, _, kind, *_) = sock.recvfrom(16384)
        if kind != socket.PACKET_OUTGOING and frame[20 if self._ipv6 else 23] == socket.IPPROTO_UDP:
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        source, destination, length, _ = UDP.unpack_from(frame, self._headers - UDP.size)
        if destination != AGGREGATION_PORT:
            return
        if self._ipv6:
            assert int.from_bytes(frame[18:20], "big") == length
        else:
            assert internet_checksum(frame[14:34]) == 0
        self.frames.append(frame)
        payload = frame[self._headers : self._headers - UDP.size + length]
        self._ports[payload[3]] = source
        answer = self._model.receive(payload[3], payload)
        for rank in answer[0] if answer else ():
            if rank in self._ports:
                assert answer is not None
                self._socket.send(self._frame(frame, answer[1], self._ports[rank]))

    def _frame(self, frame: bytes, payload: bytes, port: int) -> bytes:
        length = UDP.size + len(payload)
        udp = UDP.pack(AGGREGATION_PORT, port, length, 0)
        if self._ipv6:
            ipv6 = (
                struct.pack("!IHBB", 6 << 28 | self.traffic_class << 20, length, socket.IPPROTO_UDP, 64)
                + frame[38:54]
                + frame[22:38]
            )
            return frame[6:12] + frame[:6] + b"\x86\xdd" + ipv6 + udp + payload
        ipv4 = struct.pack("!BBHHHBBH", 0x45, self.traffic_class, 20 + length, 0, 0, 64, socket.IPPROTO_UDP, 0)
        ipv4 += frame[30:34] + frame[26:30]
        ipv4 = ipv4[:10] + struct.pack("!H", internet_checksum(ipv4)) + ipv4[12:]
        return frame[6:12] + frame[:6] + b"\x08\x00" + ipv4 + udp + payload


def traffic_class_of(frame: bytes) -> int:
    """Return the TOS or traffic class of a frame."""
    return frame[15] if frame[14] >> 4 == 4 else int.from_bytes(frame[14:16], "big") >> 4 & 0xFF
