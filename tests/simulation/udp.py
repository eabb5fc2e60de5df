# SPDX-License-Identifier: Apache-2.0
"""A rank's UDP transport in virtual time: its datagrams become frames at a port of the switch, as on a wire."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from p4reduce.protocol.constants import AGGREGATION_PORT
from p4reduce.transport import Switch
from p4reduce.transport.frames import HEADERS, frame_headers
from p4reduce_controller.switches.frames import parse_mac, synthetic_mac
from tests.simulation import threads

FIRST_PORT = 40_000


def packed(ip: str) -> bytes:
    return bytes(map(int, ip.split(".")))


class UdpTransport(threads.Readable):
    """A UDP socket of the process that runs, connected to the switch."""

    trouble: OSError | None = None

    def __init__(self, switch: Switch, *, interface: str | None = None, largest_payload: int = 0) -> None:
        super().__init__()
        del interface, largest_payload
        self._process = threads.here()
        ip = self._process.host
        ports = self._process.world.net.udp_ports
        number = ports[ip] = ports.get(ip, FIRST_PORT) + 1
        self.local_address = (ip, number)
        self._switch = switch
        self._arrived: deque[bytes] = deque()
        self._mine = (parse_mac(synthetic_mac(ip)), packed(ip), number)
        self._theirs = (parse_mac(switch.mac), packed(switch.ip), switch.udp_port)
        self._sockets: dict[Any, Any] = self._process.world.net.sockets
        self._sockets[ip, number] = self

    def send(self, payloads: Sequence[bytes]) -> int:
        net = self._process.world.net
        for payload in payloads:
            frame = frame_headers(self._mine, self._theirs, len(payload), fragment=0) + payload
            net.to_switch(self._process.host, self._switch.ip, frame)
        return len(payloads)

    def arrive(self, frame: bytes) -> None:
        """Take a frame from the network."""
        if frame[34:36] == AGGREGATION_PORT.to_bytes(2, "big") and frame[26:30] == packed(self._switch.ip):
            self._process.soon(self._take, frame[HEADERS.size :])

    def _take(self, payload: bytes) -> None:
        if not self.closed:
            self._arrived.append(payload)
            self.changed()

    def ready(self) -> bool:
        return bool(self._arrived)

    def receive(self) -> list[bytes]:
        payloads = list(self._arrived)
        self._arrived.clear()
        return payloads

    def quietest(self) -> None:
        return None

    def look_up_route(self) -> None:
        """Do nothing: only one path leads to the switch."""

    closed = False

    def close(self) -> None:
        self.closed = True
        self._sockets.pop(self.local_address, None)
        super().close()
