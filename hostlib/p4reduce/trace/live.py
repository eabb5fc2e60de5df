# SPDX-License-Identifier: Apache-2.0
"""A recorder of packets that pass this host's network interfaces. It does not slow down their senders or receivers."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import AGGREGATION_PORT
from p4reduce.protocol.packet import Codec
from p4reduce.trace.frames import ETHERNET, TAGS, Datagram, codec_of, datagram, split
from p4reduce.transport.frames import ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6
from p4reduce.transport.packet_filter import Instruction, attach

_ALL_PROTOCOLS = 3
_OUTGOING = 4
_ETHERNETS = (1, 772)  # ARPHRD_ETHER, ARPHRD_LOOPBACK
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_FRAME_BYTES = 1 << 17
_BUFFER_BYTES = 16 << 20
_CODEC_SAMPLE = 200  # datagrams from which the codec is determined


def only_udp(ports: Sequence[int]) -> list[Instruction]:
    """Return a BPF program that passes UDP from or to one of the ports, and nothing else.

    The datagrams have no IPv4 options and no IPv6 extension headers. The frames may have up to two VLAN tags. The
    kernel removes one from frames that arrive, and none from those that a switch sends.
    """
    # X is the length of the tags, then also what the IP header is longer than that of IPv4. It is 0 at first.
    tests = [test for at in (34, 36) for test in [(0x48, 0, 0, at), *((0x15, 1, 0, port) for port in ports)]]
    taken = len(tests)  # a check before these tests that fails jumps over all of them, to the drop
    second_tag = _past_tag(8, 0)
    program = [
        (0x28, 0, 0, 12),
        *_past_tag(4, len(second_tag)),
        *second_tag,
        (0x15, 0, 6, ETHERTYPE_IPV6),
        (0x50, 0, 0, 20),
        (0x15, 0, taken + 9, socket.IPPROTO_UDP),
        (0x87, 0, 0, 0),
        (0x04, 0, 0, IPV6.size - IPV4.size),
        (0x07, 0, 0, 0),
        (0x05, 0, 0, 5),
        (0x15, 0, taken + 4, ETHERTYPE_IPV4),
        (0x50, 0, 0, 14),
        (0x15, 0, taken + 2, 0x45),
        (0x50, 0, 0, 23),
        (0x15, 0, taken, socket.IPPROTO_UDP),
    ]
    for left, (code, met, other, value) in zip(range(taken, 0, -1), tests, strict=True):
        program.append((code, left if met else 0, other, value))
    return [*program, (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]


def _past_tag(tags: int, skipped: int) -> list[Instruction]:
    """Return instructions that go on behind a tag, if A is the EtherType of one; else they jump, over `skipped` more.

    tags: the length of the tags up to this one, in bytes.
    """
    kinds = [(0x15, left, 0 if left else 2 + skipped, tag) for left, tag in zip((2, 1, 0), TAGS, strict=True)]
    return [*kinds, (0x01, 0, 0, tags), (0x28, 0, 0, 12 + tags)]


class Recorder:
    """A recorder, to be used as a context manager. It keeps the headers of the latest `packets` packets."""

    def __init__(
        self, interfaces: Sequence[str] = (), packets: int = 200_000, ports: Sequence[int] = (AGGREGATION_PORT,)
    ) -> None:
        """Begin to listen. Raises P4ReduceError if that is not permitted, as it needs root, or an interface is unknown.

        interfaces: by default all. ports: UDP ports of switches, 64 at most.
        """
        self.missed = 0
        self.seen = 0
        self._interfaces = set(interfaces)
        self._kept: deque[tuple[str, Datagram]] = deque(maxlen=packets)
        self._first: list[tuple[str, Datagram]] = []  # datagrams that came before the codec is known
        self._codec: Codec | None = None
        known = {name for _, name in socket.if_nameindex()}
        if unknown := self._interfaces - known:
            accepted = ", ".join(sorted(known))
            raise P4ReduceError(
                f"--interface {sorted(unknown)[0]}: this host has no such interface; accepted are {accepted}"
            )
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        except PermissionError as error:
            raise P4ReduceError(
                "recording packets needs root or CAP_NET_RAW; or capture them by other means (tcpdump -w FILE udp port "
                "31314), and give --pcap FILE"
            ) from error
        self._ports = frozenset(ports)
        attach(self._socket, only_udp(ports))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:  # with CAP_NET_RAW alone, net.core.rmem_max is the limit
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setblocking(False)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def record(self, seconds: float, told: Callable[[int], None] = lambda _: None) -> None:
        """Record for `seconds`, or until KeyboardInterrupt. told: called every half second with the packets seen."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([self._socket], [], [], min(0.5, left))
            until = min(deadline, time.monotonic() + 0.5)
            while time.monotonic() < until and self._take():
                pass
            told(self.seen)
        while self._take():  # packets that came before the end
            if time.monotonic() > deadline + 5:
                break

    def forget(self) -> None:
        """Drop all packets recorded so far, and reset the counts of packets seen and missed."""
        self._kept.clear()
        self._first.clear()
        self._count_missed()
        self.missed = self.seen = 0

    def _count_missed(self) -> None:
        """Add the kernel's count of missed packets, which the kernel then resets."""
        _, missed = struct.unpack("II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        self.missed += missed

    def _take(self) -> bool:
        """Take one frame, and return whether there was one."""
        try:
            frame, extra, _, source = self._socket.recvmsg(_FRAME_BYTES, socket.CMSG_SPACE(16))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ENETDOWN:  # ENETDOWN: an interface was removed or set down
                raise
            return True
        name, _, kind, hardware = source[:4]
        # On loopback each frame is seen twice, going out and coming in.
        if hardware in _ETHERNETS and not (hardware == 772 and kind == _OUTGOING) and self._wanted(name):
            found = datagram(_stamp(extra), ETHERNET, frame, self._ports)
            if found is not None:
                self.seen += 1
                self._keep(name, found)
        return True

    def _keep(self, name: str, one: Datagram) -> None:
        if self._codec is None:
            self._first.append((name, one))
            if len(self._first) >= _CODEC_SAMPLE:
                self._keep_first()
        else:
            self._kept.extend((name, packet) for packet in split(one, self._codec))

    def _keep_first(self) -> None:
        first, self._first = self._first, []
        self._codec = codec_of(one for _, one in first) or Codec()
        for name, one in first:
            self._keep(name, one)

    def _wanted(self, name: str) -> bool:
        return not self._interfaces or name in self._interfaces

    def captures(self) -> list[list[Datagram]]:
        """Return the packets of each interface."""
        self._count_missed()
        self._keep_first()
        made: dict[str, list[Datagram]] = defaultdict(list)
        for name, one in self._kept:
            made[name].append(one)
        return list(made.values())


@contextlib.contextmanager
def listening(recorder: Recorder) -> Iterator[None]:
    """Record while the context lasts, in a thread in this thread's network namespace."""
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            recorder.record(0.2)
        recorder.record(0)  # packets that came before the end

    thread = threading.Thread(target=listen, name="p4reduce trace", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stamp(extra: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the kernel's time stamp of a frame, in ns since 1970."""
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(data) >= 16:
            seconds, nanoseconds = struct.unpack_from("qq", data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return time.time_ns()
