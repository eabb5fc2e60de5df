# SPDX-License-Identifier: Apache-2.0
"""The native switch as the P4Runtime server uses it. Its ports and threads are in the C library."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from p4reduce.transport.addresses import join_host_port
from p4reduce_targets.dataplane import DataPlane
from p4reduce_targets.interfaces import BoundInterface, InterfaceWatch
from p4reduce_targets.native.dataplane import NativeDataPlane
from p4reduce_targets.native.handle import Handle
from p4reduce_targets.native.library import Words
from p4reduce_targets.native.loading import load
from p4reduce_targets.native.numbers import MAX_FRAME, MAX_THREADS, address_words
from p4reduce_targets.ports import PortError, PortSpec, cannot_open, check_interface, check_interfaces, udp_address

_JOIN_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PortCounts:
    """The packets that a port has received, sent, and dropped because it could not send them."""

    received: int
    sent: int
    dropped: int


@dataclass(frozen=True, slots=True)
class NativePort:
    """A port in the C library, as `ports.PortInfo`."""

    number: int
    name: str
    interface: BoundInterface | None = None


class NativeSwitch:
    """An implementation of `p4runtime.Device`; use it as a context manager. Entering it starts the packet processing.

    The constructor raises PortError for a port that cannot be opened.
    """

    def __init__(self, ports: Sequence[PortSpec] = (), cpu_port: int = 510, threads: int = 1) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads is {threads}; accepted are 1 to {MAX_THREADS}")
        self.cpu_port = cpu_port
        self.on_packet_in: Callable[[bytes], None] = lambda _: None
        self.ports: dict[int, NativePort] = {}
        self._handle = Handle(threads)
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._data_plane: DataPlane | None = None
        self._reader = threading.Thread(target=self._read_packet_ins, name="native-packet-ins", daemon=True)
        try:
            for port in ports:
                self.ports[port.number] = self._open(port)
            check_interfaces(ports)
        except BaseException:
            self._close()
            raise
        self._watch = InterfaceWatch(self._interfaces())

    def add_socket(self, number: int, descriptor: int) -> None:
        """Add a port that is a socket on which each message is a frame; the switch then owns the socket.

        This is possible only before the switch is entered.
        """
        self._check(number, "socket", self._handle.call("add_socket", number, descriptor))
        self.ports[number] = NativePort(number, f"socket:{descriptor}")

    def port_counts(self, number: int) -> PortCounts:
        """Return a port's counters. Raises KeyError if there is no such port."""
        counts = (ctypes.c_uint64 * 3)()
        if self._handle.call("port_counts", number, counts):
            raise KeyError(f"there is no port {number}")
        return PortCounts(*counts)

    # --- for the P4Runtime server -----------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude other users of the data plane. Packets are still processed: the C code locks each change."""
        with self._lock:
            yield

    def load(self, program: bytes) -> DataPlane:
        """Return a data plane for `program`, not yet in use; raise ValueError if it cannot be loaded."""
        return load(program, self.cpu_port, self._handle)

    def run_program(self, data_plane: DataPlane) -> None:
        """Process packets with this data plane from now on."""
        assert isinstance(data_plane, NativeDataPlane)
        self._handle.call("run", data_plane.handle)
        self._data_plane = data_plane

    def packet_out(self, frame: bytes) -> None:
        """Process a frame as if it had arrived at the CPU port."""
        if self._handle.call("packet_out", frame, len(frame)):
            log.warning("a packet-out of %d bytes is too long, and is dropped", len(frame))

    # --- start and end ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait until `stop` is called."""
        while not self._stopped.wait(1.0):  # with a timeout, so that Python runs its signal handlers
            pass

    def stop(self) -> None:
        """Make `run` return, now or as soon as it begins. Safe in a signal handler."""
        self._stopped.set()

    def __enter__(self) -> NativeSwitch:
        error = self._handle.call("start")
        if error:
            raise OSError(-error, f"the native switch cannot start its threads: {os.strerror(-error)}")
        self._reader.start()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._watch.close()
        self._handle.call("stop")
        if self._reader.is_alive():
            self._reader.join(_JOIN_TIMEOUT_S)
        self._close()

    def _close(self) -> None:
        for interface in self._interfaces():
            interface.close()
        self._handle.close()

    def _read_packet_ins(self) -> None:
        buffer = ctypes.create_string_buffer(MAX_FRAME)
        while (length := self._handle.call("packet_in", buffer)) >= 0:
            try:
                self.on_packet_in(buffer.raw[:length])
            except Exception:
                log.exception("a packet-in of %d bytes is dropped", length)

    def _interfaces(self) -> list[BoundInterface]:
        return [port.interface for port in self.ports.values() if port.interface is not None]

    def _open(self, spec: PortSpec) -> NativePort:
        number, name = spec.number, spec.name
        if spec.kind == "eth":
            check_interface(number, spec.address)
            self._check(number, name, self._handle.call("add_ethernet", number, os.fsencode(spec.address)))
            sock = socket.socket(fileno=os.dup(self._handle.call("port_descriptor", number)))
            return NativePort(number, name, BoundInterface(number, spec.address, sock, offloads_off=False))
        ip, port = udp_address(spec)
        udp_port = ctypes.c_uint16(port)
        words = Words(*address_words(ip))
        self._check(number, name, self._handle.call("add_udp", number, words, ctypes.byref(udp_port)))
        return NativePort(number, f"udp:{join_host_port(ip, udp_port.value)}")

    @staticmethod
    def _check(number: int, name: str, error: int) -> None:
        if error == -errno.EPERM:
            raise PortError(f"port {number}: {name} needs root, or the capability CAP_NET_RAW")
        if error == -errno.EEXIST:
            raise PortError(f"port {number} is given twice")
        if error:
            raise cannot_open(number, name, OSError(-error, os.strerror(-error)))
