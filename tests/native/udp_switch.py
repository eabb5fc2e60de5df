# SPDX-License-Identifier: Apache-2.0
"""A native switch on UDP ports beside a data plane that is given the same as frames, for comparison."""

from __future__ import annotations

import queue
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from p4reduce_targets.dataplane import Call, Exact, Replica
from p4reduce_targets.native import NativeDataPlane, NativeSwitch, load
from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation
from tests.support.dataplane.switch import OUTCOME_NAMES, OUTCOMES, OWN_SOURCES

COMPILED = Path(__file__).resolve().parents[2] / "p4src" / "compiled"
LANES, BLOCK = 4, 64
CPU_PORT = 510
DEADLINE_S = 10.0
LOOPBACK = "127.0.0.1"
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
JOB, GENERATION = 5, 3

JOBS = "SwitchIngress.aggregation.admission.jobs"
WORKERS = "SwitchEgress.delivery.workers"
OWN = "SwitchIngress.own_address.own_addresses"


class UdpSwitch(ExitStack):
    """Whatever is done here is done to both; `switch` is the one with ports."""

    def __init__(
        self,
        workers: int,
        *,
        ports: int = 1,
        threads: int = 1,
        pool_base: int = 0,
        halves: int = 8,
        ip: str = LOOPBACK,
    ) -> None:
        super().__init__()
        self.ip, self._ip = ip, frames.ip_number(ip)
        program = (COMPILED / "p4reduce.json").read_bytes()
        texts = [f"{number}=udp:{ip}:0" for number in range(1, ports + 1)]
        self.switch = NativeSwitch(texts, threads=threads)
        self.packet_ins: queue.Queue[bytes] = queue.Queue()
        self.switch.on_packet_in = self.packet_ins.put
        self.enter_context(self.switch)
        running, self.reference = self.switch.load(program), load(program)
        assert isinstance(running, NativeDataPlane)
        self.running = running
        self.planes = (self.running, self.reference)
        self.switch.run_program(self.running)
        self.workers: list[socket.socket] = []
        self._sent: Counter[int] = Counter()
        self.pool_base, self.halves = pool_base, halves
        self._addresses = [self.switch.names[port].split(":")[1:] for port in range(1, ports + 1)]
        full = (1 << workers) - 1
        self.insert(OWN, (self._ip,), "SwitchIngress.own_address.own", 0x020000000001)
        self.insert(OWN_SOURCES, (self._ip,), "SwitchIngress.own_address.forged")  # workers have it, too
        replicas = []
        for rank in range(workers):
            worker = self.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            worker.bind((ip, 0))
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            worker.setblocking(False)
            self.workers.append(worker)
            udp_port = self.udp_port(rank)
            key = (self.port_of(rank), self._ip, udp_port, JOB, GENERATION, rank)
            self.insert(JOBS, key, "SwitchIngress.aggregation.admission.admit", 1 << rank, full, pool_base, halves, JOB)
            self.deliver(rank, ip, udp_port)
            replicas.append(Replica(self.port_of(rank), rank + 1))
        self.set_group(replicas)
        for half in range(halves):
            self.reset(half, half & 1)

    def port_of(self, rank: int) -> int:
        return 1 + rank % len(self._addresses)

    def udp_port(self, rank: int) -> int:
        return int(self.workers[rank].getsockname()[1])

    def address(self, rank: int) -> tuple[str, int]:
        host, port = self._addresses[self.port_of(rank) - 1]
        return host, int(port)

    # --- tables -----------------------------------------------------------------------------------------------------

    def insert(self, table: str, key: Sequence[int], action: str, *arguments: int) -> None:
        for plane in self.planes:
            plane.insert(table, tuple(map(Exact, key)), 0, Call(action, arguments))

    def deliver(self, rank: int, ip: str, udp_port: int) -> None:
        """What is for the rank goes there."""
        to = (0x02000000AA00 + rank, frames.ip_number(ip), udp_port)
        self.insert(WORKERS, (JOB, rank + 1), "SwitchEgress.delivery.address", *to)

    def delete(self, table: str, key: Sequence[int]) -> None:
        for plane in self.planes:
            plane.delete(table, tuple(map(Exact, key)), 0)

    def set_group(self, replicas: Sequence[Replica]) -> None:
        for plane in self.planes:
            plane.set_group(JOB, replicas)

    def reset(self, half: int, seq: int) -> None:
        packet = Aggregation(op=frames.RESET, slot=self.pool_base + half, seq=seq, keys=(frames.NO_KEY,) * LANES)
        host = frames.Host("02:5a:00:00:00:02", "10.255.0.2")
        frame = struct.pack("!HH", 1 << 15, 0) + frames.frame(host, host, packet)
        self.switch.packet_out(frame)
        (wanted,) = self.reference.process(CPU_PORT, frame)
        assert self.packet_ins.get(timeout=DEADLINE_S) == wanted[1]

    # --- datagrams --------------------------------------------------------------------------------------------------

    def frame(self, rank: int, payload: bytes) -> bytes:
        """The frame that a datagram of this worker stands for."""
        mac = (0x0200 << 32 | self._ip).to_bytes(6, "big").hex(":")
        return frames.udp_frame(frames.Host(mac, self.ip, self.udp_port(rank)), frames.Host(mac, self.ip), payload)

    def send(self, rank: int, *payloads: bytes) -> None:
        """Several payloads go as one chain: all as long as the first, but the last, which may be shorter."""
        control = []
        if len(payloads) > 1:
            control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(payloads[0])))]
        self._sent[self.port_of(rank)] += len(payloads)
        self.workers[rank].sendmsg([b"".join(payloads)], control, 0, self.address(rank))

    def expected(self, rank: int, *payloads: bytes) -> tuple[dict[int, list[bytes]], list[bytes]]:
        """What the reference says comes of them: datagrams by worker, and packet-ins."""
        ranks = {self.udp_port(rank): rank for rank in range(len(self.workers))}
        datagrams: dict[int, list[bytes]] = {}
        packet_ins = []
        for payload in payloads:
            for port, frame in self.reference.process(self.port_of(rank), self.frame(rank, payload)):
                if port == CPU_PORT:
                    packet_ins.append(frame)
                elif 1 <= port <= len(self._addresses) and frame[12:15] == b"\x08\x00\x45":
                    to = ranks.get(int.from_bytes(frame[36:38], "big"))
                    if to is not None:
                        datagrams.setdefault(to, []).append(frame[42 : 34 + int.from_bytes(frame[38:40], "big")])
        return datagrams, packet_ins

    def exchange(self, rank: int, *payloads: bytes) -> None:
        """Send them and fail unless just what is expected comes back."""
        datagrams, packet_ins = self.expected(rank, *payloads)
        self.send(rank, *payloads)
        for wanted in packet_ins:
            assert self.packet_ins.get(timeout=DEADLINE_S) == wanted
        for to, wanted in datagrams.items():
            assert sorted(self.receive(to, len(wanted))) == sorted(wanted)
        self._await_received()

    def _await_received(self) -> None:
        """Until the switch has processed all that was sent: then nothing overtakes it, and tables may change."""
        deadline = time.monotonic() + DEADLINE_S
        for port, count in self._sent.items():
            while self.switch.port_counts(port).received != count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"port {port} got {self.switch.port_counts(port).received} of {count} datagrams")

    def receive(self, rank: int, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            ready, _, _ = select.select([self.workers[rank]], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"rank {rank} got {len(found)} datagrams of {count}")
            found.append(self.workers[rank].recv(65536))
        return found

    def check_end(self) -> None:
        """Fail if anything is left over, or if slots or counters are not the same."""
        hello = self.data(0, 0, op=frames.HELLO)
        self.exchange(0, hello)  # what came before has been processed
        for rank, worker in enumerate(self.workers):
            ready, _, _ = select.select([worker], [], [], 0)
            assert not ready, f"rank {rank} got {worker.recv(65536)[:40].hex()} besides"
        assert self.packet_ins.empty()
        for half in range(self.halves):
            query = Aggregation(op=frames.QUERY, slot=self.pool_base + half, keys=(0,) * LANES, active=0)
            host = frames.Host("02:5a:00:00:00:02", "10.255.0.2")
            frame = struct.pack("!HH", 1 << 15, 0) + frames.frame(host, host, query)
            assert self.running.process(CPU_PORT, frame) == self.reference.process(CPU_PORT, frame)
        for index in range(len(OUTCOME_NAMES)):
            counts = [plane.read_counter(OUTCOMES, index) for plane in self.planes]
            assert counts[0] == counts[1], f"outcome {index}: {counts[0]}, expected {counts[1]}"

    def data(self, rank: int, seq: int, **fields: object) -> bytes:
        """The payload of a DATA packet."""
        values: dict[str, object] = {
            "op": frames.DATA,
            "worker": rank,
            "job": JOB,
            "generation": GENERATION,
            "slot": seq & 1,
            "seq": seq,
            "keys": (frames.NO_KEY,) * LANES,
            "fingerprint": fields.get("active", 0),
            **fields,
        }
        return Aggregation(**values).pack()  # type: ignore[arg-type]
