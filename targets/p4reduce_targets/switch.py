# SPDX-License-Identifier: Apache-2.0
"""The packet loop of sim: it passes packets between ports and a data plane, which the P4Runtime server changes."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from p4reduce_targets.dataplane import DataPlane, PacketProcessor
from p4reduce_targets.interfaces import InterfaceWatch
from p4reduce_targets.ports import Port

log = logging.getLogger(__name__)

RECEIVE_BATCH = 32  # frames of one port, before another port is served and before a waiting controller gets the lock

Load = Callable[[bytes, int], PacketProcessor]  # (program, CPU port); ValueError says what is wrong with the program


class Switch:
    """A switch that owns its ports; use it as a context manager.

    One thread calls `run`. All other methods may be called from any thread.
    """

    def __init__(self, load: Load, ports: Sequence[Port], cpu_port: int) -> None:
        self.ports = {port.number: port for port in ports}
        self.cpu_port = cpu_port
        self.undeliverable = 0  # frames to ports that do not exist
        self.on_packet_in: Callable[[bytes], None] = lambda _: None
        self._load = load
        self._data_plane: PacketProcessor | None = None
        # Lock order: `_next`, then `_lock`, which guards the data plane. A thread that waits for `_lock` holds `_next`,
        # so it gets `_lock` next: a busy packet loop cannot take it again first.
        self._next = threading.Lock()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watch = InterfaceWatch(port.interface for port in ports if port.interface is not None)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the data plane: no packet is processed meanwhile."""
        with self._next:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def load(self, program: bytes) -> PacketProcessor:
        """Return a data plane for `program`, not yet in use; raise ValueError if it cannot be loaded."""
        return self._load(program, self.cpu_port)

    def run_program(self, data_plane: DataPlane) -> None:
        """Process packets with a result of `load` from now on. The caller is in `exclusive`."""
        self._data_plane = cast(PacketProcessor, data_plane)

    def packet_out(self, frame: bytes) -> None:
        """Process a frame as if it had arrived at the CPU port."""
        self._process(self.cpu_port, [frame])

    def run(self) -> None:
        """Process packets until `stop` is called."""
        ports = {port.fileno(): port for port in self.ports.values()}
        with select.epoll() as poll:
            for descriptor in (self._wake, *ports):
                poll.register(descriptor, select.EPOLLIN)
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == self._wake:
                        return
                    port = ports[descriptor]
                    frames = port.receive(RECEIVE_BATCH)
                    if frames:
                        self._process(port.number, frames)

    def stop(self) -> None:
        """Make `run` return, now or as soon as it begins. Safe in a signal handler."""
        os.eventfd_write(self._wake, 1)

    def _process(self, port: int, frames: list[bytes]) -> None:
        out: list[tuple[int, bytes]] = []
        with self._next:
            self._lock.acquire()
        try:
            if self._data_plane is None:
                return
            process = self._data_plane.process
            for frame in frames:
                try:
                    out += process(port, frame)
                except Exception:
                    # A packet that makes the program fail is dropped, and the switch continues.
                    log.exception("port %d: a frame of %d bytes is dropped", port, len(frame))
        finally:
            self._lock.release()
        ports, cpu_port = self.ports, self.cpu_port
        for egress, frame in out:
            if egress == cpu_port:
                self.on_packet_in(frame)
            elif egress in ports:
                ports[egress].send(frame)
            else:
                self.undeliverable += 1

    def __enter__(self) -> Switch:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        for port in self.ports.values():
            port.close()
        os.close(self._wake)
