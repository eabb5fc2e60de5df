# SPDX-License-Identifier: Apache-2.0
"""A controller with a real data plane, and hosts at the ports of its switch."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Assigned
from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.service.run import running
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.frames import Endpoint, build, parse, parse_mac, synthetic_mac
from tests.support.controller.ranks import DEADLINE, Rank, hello_packet, ready
from tests.support.controller.running import Loop
from tests.support.dataplane.targets import PORTS, Target

SWITCH = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", AGGREGATION_PORT)
IPV6_SWITCH = Endpoint(synthetic_mac("fd00::fe"), "fd00::fe", AGGREGATION_PORT)


def host(port: int, *, ipv6: bool = False) -> Endpoint:
    ip = f"fd00::{port}" if ipv6 else f"10.0.0.{port}"
    return Endpoint(f"02:00:00:00:01:{port:02x}", ip, 5000 + port)


class Bench:
    """A controller whose switch is the target. Worker i is behind port i + 1.

    ipv6: whether workers and switch have IPv6 addresses.
    """

    def __init__(self, loop: Loop, target: Target, *, ipv6: bool = False, **options: Any) -> None:
        self.address = IPV6_SWITCH if ipv6 else SWITCH
        self.ipv6 = ipv6
        self.loop = loop
        self.target = target
        self.lanes = 4
        self.ranks: list[Rank] = []
        ports = list(range(1, PORTS + 1))
        defaults = {
            "switch": target.grpc_address,
            "listen": "127.0.0.1:0",
            "address": [self.address.ip],
            "ports": ports,
        }
        self._context = running(load(None, defaults | options), 10.0)
        for sock in target.sockets.values():  # discard frames of earlier tests
            while select.select([sock], [], [], 0)[0]:
                sock.recv(65536)
        self.controller: Controller = loop.run(self._context.__aenter__())
        self.switch: P4RuntimeSwitch = self.controller.inventory.switches[0]  # type: ignore[assignment]
        self.lanes = self.switch.layout.lanes

    def look(self) -> pb.StatusReply:
        return self.loop.run(self.controller.status())

    def stop(self) -> None:
        """Stop the controller, but leave its ranks alone."""
        self.loop.run(self._context.__aexit__(None, None, None))  # type: ignore[arg-type]

    def close(self) -> None:
        for rank in self.ranks:
            rank.session.close()
            rank.outcome()
        self.stop()

    def send(self, worker: int, packet: Packet) -> None:
        self.target.sockets[worker + 1].send(build(packet, host(worker + 1, ipv6=self.ipv6), self.address))

    def hello(self, assigned: Assigned) -> None:
        self.send(assigned.worker, hello_packet(assigned))

    def rank(self, rank: int, world_size: int, **options: Any) -> Rank:
        self.ranks.append(Rank(self.controller.service.address, rank, world_size, send_hello=self.hello, **options))
        return self.ranks[-1]

    def job(self, world_size: int, **options: Any) -> tuple[list[Rank], list[Assigned]]:
        ranks = [self.rank(rank, world_size, **options) for rank in range(world_size)]
        return ranks, ready(ranks)

    def frame(self, port: int, wanted: Callable[[bytes], bool]) -> bytes:
        """Return the first frame out of `port` for which `wanted` is true."""
        end = time.monotonic() + DEADLINE
        while select.select([self.target.sockets[port]], [], [], max(0.0, end - time.monotonic()))[0]:
            frame = self.target.receive(port)
            if frame is not None and wanted(frame):
                return frame
        raise AssertionError(f"no such frame came out of port {port}")

    def received(self, worker: int, op: Op) -> Packet:
        """Return the next packet with this op that the switch sends to the worker's address."""
        to = host(worker + 1, ipv6=self.ipv6)

        def wanted(frame: bytes) -> bool:
            packet = self.answer(frame, to)
            return packet is not None and packet.op == op

        packet = self.answer(self.frame(worker + 1, wanted), to)
        assert packet is not None
        return packet

    def answer(self, frame: bytes, to: Endpoint) -> Packet | None:
        at = 56 if self.ipv6 else 36  # of the UDP port
        if frame[:6] != parse_mac(to.mac) or frame[at : at + 2] != to.udp_port.to_bytes(2, "big"):
            return None
        parsed = parse(frame[:at] + AGGREGATION_PORT.to_bytes(2, "big") + frame[at + 2 :], Codec(self.lanes))
        return parsed[1] if parsed and parsed[0] == self.address else None

    def announce(self, assigned: Assigned, slot: int = 0) -> None:
        """Send the packet of a slot's first round, which carries no values."""
        keys = (NO_KEY - assigned.worker - 1,) + (NO_KEY,) * (self.lanes - 1)
        packet = Packet(
            Op.DATA,
            job=assigned.job,
            generation=assigned.generation,
            worker=assigned.worker,
            slot=2 * slot,
            seq=assigned.first_seq,
            fingerprint=0x7700,
            keys=keys,
        )
        self.send(assigned.worker, packet)

    def round(self, assigned: list[Assigned], slot: int = 0) -> None:
        """Run one round of all workers, and assert that all get the same result."""
        for one in assigned:
            self.announce(one, slot)
        for one in assigned:
            result = self.received(one.worker, Op.RESULT)
            assert (result.job, result.generation, result.slot) == (one.job, one.generation, 2 * slot)
            assert result.keys[0] == NO_KEY - len(assigned)
