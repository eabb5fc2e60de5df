# SPDX-License-Identifier: Apache-2.0
"""The model of the switch behind a UDP socket, in its own thread."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from p4reduce.protocol import Membership
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce.transport import Switch
from tests.support.loopbacks import LOOPBACKS, bound
from tests.support.protocol.model_switch import ModelSwitch


@dataclass
class _Job:
    model: ModelSwitch
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    nonces: dict[int, int] = field(default_factory=dict)


class Receiver:
    """A thread that calls `_receive` with each readable socket, until `close`."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets = sockets
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="model switch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the sockets. Further calls do nothing."""
        self._stop.close()
        self._thread.join(5)
        for one in (*self._sockets, self._stopped):
            one.close()

    def _run(self) -> None:
        while self._stopped not in (ready := select.select([*self._sockets, self._stopped], [], [])[0]):
            for one in ready:
                self._receive(one)

    def _receive(self, sock: socket.socket) -> None:
        raise NotImplementedError


class UdpSwitch(Receiver):
    """A switch that aggregates for the admitted jobs. It learns the address of a rank from any packet of the rank."""

    def __init__(self, ip: str = LOOPBACKS[0]) -> None:
        self.deaf = False
        """Whether it drops every packet, as if the switch were gone."""
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._changed = threading.Condition()
        self._socket = bound(ip)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        super().__init__(self._socket)

    @property
    def endpoint(self) -> Switch:
        return Switch(*self._socket.getsockname()[:2], mac="02:00:00:00:00:01")

    def admit(self, membership: Membership) -> None:
        self._jobs[membership.job, membership.generation] = _Job(ModelSwitch(membership))

    def heard(self, membership: Membership, rank: int, nonce: int, timeout: float) -> bool:
        """Wait until a HELLO of the rank with this nonce has come. Return whether it has."""
        job = self._jobs[membership.job, membership.generation]
        with self._changed:
            return self._changed.wait_for(lambda: job.nonces.get(rank) == nonce, timeout)

    def ranks_heard(self, membership: Membership) -> set[int]:
        return set(self._jobs[membership.job, membership.generation].addresses)

    def send(self, payload: bytes, membership: Membership) -> None:
        """Send a payload to every rank whose address is known."""
        for address in self._jobs[membership.job, membership.generation].addresses.values():
            self._socket.sendto(payload, address)

    def abort(self, membership: Membership, rank: int) -> None:
        """Fence a job, and send an ABORT that names `rank` to all its ranks, as the controller makes a switch do."""
        job = self._jobs.pop((membership.job, membership.generation))
        seq, fingerprint = divmod(membership.abort_secret, 2**32)
        keys = [1] + [0] * (membership.lanes - 1)
        packet = Packet(Op.ABORT, membership.job, membership.generation, rank, 0, seq, fingerprint, keys=keys)
        payload = Codec(membership.lanes, membership.block_size).encode(packet)
        for address in job.addresses.values():
            self._socket.sendto(payload, address)

    def _receive(self, sock: socket.socket) -> None:
        payload, address = sock.recvfrom(16384)
        if not self.deaf:
            self._take(payload, address)

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        op, rank = payload[0] & 0xF, payload[3]
        number, generation = int.from_bytes(payload[4:6], "big"), int.from_bytes(payload[6:8], "big")
        job = self._jobs.get((number, generation))
        if job is None:
            return
        with self._changed:
            job.addresses[rank] = address
            if op == Op.HELLO:
                packet = job.model.codec.decode(payload)
                job.nonces[rank] = packet.fingerprint << 32 | packet.keys[0]
            self._changed.notify_all()
        answer = job.model.receive(rank, payload)
        if answer is not None:
            ranks, reply = answer
            for receiver in ranks:
                # A real switch sends to every member, also to one that has not been heard.
                if receiver in job.addresses:
                    self._socket.sendto(reply, job.addresses[receiver])


@pytest.fixture
def switch() -> Iterator[UdpSwitch]:
    with contextlib.closing(UdpSwitch()) as switch:
        yield switch


def members(world_size: int, *, job: int = 1, slots: int = 8, lanes: int = 4, block_size: int = 64) -> list[Membership]:
    """Return the memberships that a controller would assign to the ranks of a job."""
    first = Membership(
        job=job, generation=3, rank=0, world_size=world_size, slots=slots, lanes=lanes, block_size=block_size,
        first_seq=2**32 - 4,  # so that sequence numbers wrap around in every test
        abort_secret=0x0123456789ABCDEF,
    )  # fmt: skip
    return [replace(first, rank=rank) for rank in range(world_size)]


@pytest.fixture
def loopback() -> str:
    """Return the address of pretended switches. Test files may override it, for another family."""
    return LOOPBACKS[0]


@pytest.fixture
def switches(loopback: str) -> Iterator[list[socket.socket]]:
    """Yield the UDP sockets of three pretended switches."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(bound(loopback)) for _ in range(3)]
        for one in made:
            one.settimeout(20)
        yield made


def endpoints(sockets: Sequence[socket.socket]) -> list[Switch]:
    return [Switch(*one.getsockname()[:2]) for one in sockets]
