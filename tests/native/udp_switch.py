# SPDX-License-Identifier: Apache-2.0
"""A native switch on UDP ports beside a data plane that is given the same as frames, for comparison."""

from __future__ import annotations

import queue
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from p4reduce.protocol.constants import ECN_ECT_0, ECN_MASK
from p4reduce.transport.addresses import family_of, is_ipv6, join_host_port
from p4reduce.transport.ecn import ANCILLARY_BYTES, ecn_message, ecn_of
from p4reduce_controller.switches.frames import synthetic_mac
from p4reduce_targets.dataplane import PacketProcessor
from p4reduce_targets.native import NativeSwitch, load
from p4reduce_targets.ports import PortSpec
from tests.support.dataplane import frames
from tests.support.dataplane.direct import Direct
from tests.support.dataplane.fuzz import counters
from tests.support.dataplane.jobs import Job, Member
from tests.support.dataplane.switch import SHIPPED
from tests.support.dataplane.targets import CPU_PORT
from tests.support.waiting import wait_until

DEADLINE_S = 10.0
LOOPBACK, LOOPBACK_IPV6 = "127.0.0.1", "::1"
SOL_UDP, UDP_NO_CHECK6_TX, UDP_SEGMENT, UDP_GRO = 17, 101, 103, 104
Datagram = tuple[int, bytes]  # its ECN and its payload
CONFIG = (SHIPPED / "p4reduce.json").read_bytes()


class Both:
    """Two data planes that both get every call, and must return the same."""

    def __init__(self, *planes: PacketProcessor) -> None:
        self._planes = planes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            first, second = (getattr(plane, name)(*arguments) for plane in self._planes)
            assert first == second, (name, arguments)
            return first

        return call


class UdpSwitch(ExitStack):
    """A job of ranks with UDP sockets. `both` has the tables of switch and reference, `switch` the ports."""

    def __init__(
        self, workers: int, *, ports: int = 1, threads: int = 1, pool_base: int = 0, slots: int = 4, ip: str = LOOPBACK
    ) -> None:
        super().__init__()
        self.switch = NativeSwitch(
            [PortSpec(number, "udp", join_host_port(ip, 0)) for number in range(1, ports + 1)], threads=threads
        )
        self._ipv6 = is_ipv6(ip)
        self.packet_ins: queue.Queue[bytes] = queue.Queue()
        self.switch.on_packet_in = self.packet_ins.put
        self.enter_context(self.switch)
        self.running, self.reference = self.switch.load(CONFIG), load(CONFIG)
        self.switch.run_program(self.running)
        self.both = Direct("both", Both(self.running, self.reference), SHIPPED)
        self.host = frames.Host(synthetic_mac(ip), ip)
        self.both.own_address(self.host)
        self.workers: list[socket.socket] = []
        self._sent: Counter[int] = Counter()
        self.addresses = [(ip, int(self.switch.ports[port].name.rpartition(":")[2])) for port in range(1, ports + 1)]
        self.job = Job(self.both, workers, number=5, generation=3, pool_base=pool_base, slots=slots, own=self.host)
        for rank in range(workers):
            worker = self.enter_context(socket.socket(family_of(ip), socket.SOCK_DGRAM))
            worker.bind((ip, 0))
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            if self._ipv6:
                worker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
            else:
                worker.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            worker.setblocking(False)
            self.workers.append(worker)
            member = Member(1 + rank % ports, replace(self.host, udp_port=worker.getsockname()[1]))
            self.job.members[rank] = member
        self.job.start()

    def deliver(self, rank: int, ip: str, udp_port: int) -> None:
        """Deliver the rank's packets to this address instead."""
        entry = self.job.delivery(rank)
        self.both.delete(entry)
        self.both.insert(replace(entry, params={**entry.params, "ip": ip, "udp_port": udp_port}))

    def set_group(self, *replicas: tuple[int, int]) -> None:
        self.both.client.write_group(0, self.job.group, replicas)

    # --- datagrams --------------------------------------------------------------------------------------------------

    def data(self, rank: int, seq: int, **fields: object) -> bytes:
        """Return the payload of a DATA packet."""
        return self.job.packet(rank, seq, **fields).pack()

    def send(self, rank: int, *payloads: bytes, ecn: int = ECN_ECT_0) -> None:
        """Send payloads, several of them as one chain. All are as long as the first; the last may be shorter."""
        control = [ecn_message(ecn, ipv6=self._ipv6)]
        if len(payloads) > 1:
            control += [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(payloads[0])))]
        port = self.job.members[rank].port
        self._sent[port] += len(payloads)
        self.workers[rank].sendmsg([b"".join(payloads)], control, 0, self.addresses[port - 1])

    def expected(
        self, rank: int, *payloads: bytes, ecn: int = ECN_ECT_0
    ) -> tuple[dict[int, list[Datagram]], list[bytes]]:
        """Return what the reference switch sends for these payloads: datagrams by worker, and packet-ins."""
        ranks = {member.host.udp_port: rank for rank, member in enumerate(self.job.members)}
        start = frames.udp_frame(self.host, self.host, b"")[12:15]  # the EtherType, and the IP header's first byte
        udp, ecn_shift = (54, 4) if self._ipv6 else (34, 0)
        datagrams: dict[int, list[Datagram]] = {}
        packet_ins = []
        member = self.job.members[rank]
        for payload in payloads:
            received = frames.udp_frame(member.host, self.host, payload, tos=ecn)
            for port, frame in self.reference.process(member.port, received):
                if port == CPU_PORT:
                    packet_ins.append(frame)
                elif 1 <= port <= len(self.addresses) and frame[12:15] == start:
                    to = ranks.get(int.from_bytes(frame[udp + 2 : udp + 4], "big"))
                    if to is not None:
                        end = udp + int.from_bytes(frame[udp + 4 : udp + 6], "big")
                        datagrams.setdefault(to, []).append((frame[15] >> ecn_shift & ECN_MASK, frame[udp + 8 : end]))
        return datagrams, packet_ins

    def exchange(self, rank: int, *payloads: bytes, ecn: int = ECN_ECT_0) -> None:
        """Send them and fail unless just what is expected comes back."""
        datagrams, packet_ins = self.expected(rank, *payloads, ecn=ecn)
        self.send(rank, *payloads, ecn=ecn)
        for wanted in packet_ins:
            assert self.packet_ins.get(timeout=DEADLINE_S) == wanted
        for to, wanted in datagrams.items():
            assert sorted(self.receive(to, len(wanted))) == sorted(wanted)
        self.await_received()

    def await_received(self) -> None:
        """Wait until the switch has received all that was sent, so that nothing overtakes it and tables may change."""

        def received() -> dict[int, int]:
            return {port: self.switch.port_counts(port).received for port in self._sent}

        wait_until(lambda: received() == self._sent, lambda: f"by port, {received()} of {self._sent} datagrams came")

    def receive(self, rank: int, count: int) -> list[Datagram]:
        found: list[Datagram] = []
        while len(found) < count:
            ready, _, _ = select.select([self.workers[rank]], [], [], DEADLINE_S)
            assert ready, f"rank {rank} got {len(found)} datagrams of {count}"
            data, ancillary, _, _ = self.workers[rank].recvmsg(65536, ANCILLARY_BYTES)
            found.append((ecn_of(ancillary), data))
        return found

    def check_end(self) -> None:
        """Fail if anything is left over, or if slots or counters are not the same."""
        self.exchange(0, self.data(0, 0, op=frames.HELLO))  # what came before has been processed
        for rank, worker in enumerate(self.workers):
            ready, _, _ = select.select([worker], [], [], 0)
            assert not ready, f"rank {rank} got {worker.recv(65536)[:40].hex()} besides"
        assert self.packet_ins.empty()
        for half in range(2 * self.job.slots):
            self.both.query(self.job.pool_base + half)
        counters(self.both)
