# SPDX-License-Identifier: Apache-2.0
"""A network in virtual time: latencies, losses, partitions, and connections that break as TCP's do.

A `Wire` is one direction of a connection: what is sent arrives in order. While the way is blocked, it is held back, as
TCP would send it again. A connection across a blocked way breaks after its keepalive; if a process dies, its kernel
resets its connections, unless the host is down. Datagrams may be lost, come twice, and overtake each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import Process, World

LEAST_LATENCY, MOST_LATENCY = 20e-6, 400e-6
CONNECT_TIMEOUT = 20.0
RETRY = 0.5  # seconds between attempts of a call that waits for a listener
MOST_RESENT_AFTER = 1.0  # seconds from the end of a partition until TCP sends again


class Wire:
    """One direction between two hosts, in order."""

    def __init__(self, net: Network, source: str, target: str) -> None:
        self.net, self.source, self.target = net, source, target
        self._last = 0.0
        self._held: list[Callable[[], None]] = []

    def send(self, deliver: Callable[[], None]) -> None:
        self._last = max(self._last, self.net.world.now + self.net.latency())
        self.net.world.at(self._last, lambda: self._arrive(deliver))

    def _arrive(self, deliver: Callable[[], None]) -> None:
        if self._held or self.net.is_blocked(self.source, self.target):
            if not self._held:
                self.net.holding.append(self)
            self._held.append(deliver)
        else:
            deliver()

    def flush(self) -> None:
        """Deliver what was held back, since the way is free again."""
        held, self._held = self._held, []
        for deliver in held:
            self.send(deliver)


@dataclass
class Listener:
    """A bound address. `accept` is called with each call that arrives, or None before the server is started."""

    process: Process
    accept: Callable[[Any], None] | None = None
    keepalive: float = 60.0
    backlog: list[Any] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)


class Network:
    """All hosts. `calls` are the open remote procedure calls, and `holding` the wires that hold something back.

    `loss`, `duplicates`: shares of datagrams. `delay`: the most seconds by which a datagram is late.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        world.net = self
        self.loss = self.duplicates = 0.0
        self.delay = 0.0
        self.listeners: dict[str, Listener] = {}
        self.calls: dict[Any, None] = {}
        self.holding: list[Wire] = []
        self.cables: dict[str, list[tuple[Any, int]]] = {}  # of each host: switches and their ports
        self.sockets: dict[tuple[str, int], Any] = {}  # of ranks, by IP address and UDP port
        self.disks: dict[str, Any] = {}  # by host
        self.etcd: Any = None
        self.udp_ports: dict[str, int] = {}
        self._blocked: dict[tuple[str, str], int] = {}
        self._down: set[str] = set()
        self._blocks = 0

    def latency(self) -> float:
        return self.world.random.uniform(LEAST_LATENCY, MOST_LATENCY)

    def is_blocked(self, source: str, target: str) -> bool:
        if source == target:
            return source in self._down
        return (source, target) in self._blocked or source in self._down or target in self._down

    def block(self, source: str, target: str) -> None:
        """Block one direction between two hosts."""
        self._blocks += 1
        block = self._blocked[source, target] = self._blocks
        for call in list(self.calls):
            if {source, target} == {call.client.host, call.host}:
                self.world.after(call.keepalive, lambda call=call: self._expire(call, source, target, block))

    def _expire(self, call: Any, source: str, target: str, block: int) -> None:
        if call in self.calls and self._blocked.get((source, target)) == block:
            call.broken("keepalive timed out")

    def free(self, source: str, target: str) -> None:
        self._blocked.pop((source, target), None)
        self._flush()

    def power_off(self, host: str) -> None:
        """Kill all processes of the host, and let nobody know."""
        self._down.add(host)
        for process in list(self.world.processes):
            if process.host == host:
                process.kill()
        for call in list(self.calls):
            if host in (call.client.host, call.host):
                self.world.after(call.keepalive, lambda call=call: self._lost(call, host))

    def _lost(self, call: Any, host: str) -> None:
        if call in self.calls and host in self._down:
            call.broken("keepalive timed out")

    def power_on(self, host: str) -> None:
        self._down.discard(host)
        self._flush()

    def _flush(self) -> None:
        held, self.holding = self.holding, []
        for wire in held:
            if self.is_blocked(wire.source, wire.target):
                self.holding.append(wire)
            else:
                self.world.after(self.world.random.uniform(0, MOST_RESENT_AFTER), wire.flush)

    def datagram(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        random = self.world.random
        if self.is_blocked(source, target):
            return
        copies = (random.random() >= self.loss) + (random.random() < self.duplicates)
        for _ in range(copies):
            late = random.uniform(0, self.delay) if self.delay and random.random() < 0.2 else 0.0
            self.world.after(self.latency() + late, deliver)

    def to_switch(self, host: str, switch: str, frame: bytes) -> None:
        """Send a frame of a host: by the cable to this switch, or if there is none, to any."""
        cables = self.cables[host]
        found, port = next((one for one in cables if one[0].ip == switch), cables[0])
        self.datagram(host, found.ip, lambda: found.arrive(port, frame))

    def from_switch(self, switch: str, there: Any, frame: bytes) -> None:
        """Send a frame of a switch to a host, or to a port of another switch."""
        if isinstance(there, tuple):
            other, port = there
            self.datagram(switch, other.ip, lambda: other.arrive(port, frame))
            return
        udp_port = int.from_bytes(frame[36:38], "big")

        def arrive() -> None:
            if (found := self.sockets.get((there, udp_port))) is not None:
                found.arrive(frame)

        self.datagram(switch, there, arrive)

    def listen(self, address: str, process: Process, keepalive: float) -> Listener:
        """Bind the address. Raises RuntimeError if it is in use."""
        if address in self.listeners:
            raise RuntimeError(f"{address} is in use")
        listener = self.listeners[address] = Listener(process, keepalive=keepalive)
        process.on_kill.append(lambda: self.close(address, listener))
        return listener

    def close(self, address: str, listener: Listener) -> None:
        if self.listeners.get(address) is listener:
            del self.listeners[address]
        for wire, protocol, process in listener.connections:
            wire.send(lambda protocol=protocol, process=process: process.soon(_end, protocol))
        listener.connections = []
        for call in listener.backlog:
            call.refused("Connection reset by peer")
        listener.backlog = []

    async def connect(self, process: Process, factory: Callable[[], Any], address: str) -> Any:
        """Connect as TCP does. Raises ConnectionRefusedError. Whoever calls has a deadline."""
        host = host_of(address)
        there, back = Wire(self, process.host, host), Wire(self, host, process.host)
        answer: asyncio.Future[Any] = process.loop.create_future()

        def arrive() -> None:
            found = self.listeners.get(address)
            back.send(lambda: process.soon(lambda: answer.done() or answer.set_result(found)))

        there.send(arrive)
        found = await answer
        if found is None:
            raise ConnectionRefusedError(111, f"{address} refuses")
        protocol = factory()
        transport = _Transport(protocol)
        found.connections.append((back, protocol, process))
        protocol.connection_made(transport)
        if self.listeners.get(address) is not found:
            self.close(address, found)
        return transport, protocol


def _end(protocol: Any) -> None:
    protocol.eof_received()
    protocol.connection_lost(None)


class _Transport(asyncio.Transport):
    """A connection that carries nothing."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol: Any = protocol

    def close(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self._protocol is None


def host_of(address: str) -> str:
    return address.rpartition(":")[0]
