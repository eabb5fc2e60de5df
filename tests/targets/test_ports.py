# SPDX-License-Identifier: Apache-2.0
"""Switch ports: frames in and out of UDP sockets and of network interfaces."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator

import pytest

from p4reduce.transport.ecn import ANCILLARY_BYTES, ecn_of
from p4reduce.transport.frames import HEADERS, internet_checksum
from p4reduce_targets.ports import (
    REMEMBERED,
    EthPort,
    Port,
    PortError,
    PortSpec,
    UdpPort,
    check_ports,
    open_port,
)
from tests.support.own_network import ip, own_cables, wait_until_up

ETH_P_ALL = 3
TIMEOUT_S = 10.0


def wait_for(port: Port) -> None:
    assert select.select([port], [], [], TIMEOUT_S)[0], "nothing came"


def reply_to(frame: bytes) -> bytes:
    """Return the frame with its IPv4 addresses and UDP ports swapped. Its checksum stays right."""
    return frame[:26] + frame[30:34] + frame[26:30] + frame[36:38] + frame[34:36] + frame[38:]


@pytest.fixture
def port() -> Iterator[UdpPort]:
    port = UdpPort(1, "127.0.0.1", 0)
    yield port
    port.close()


@pytest.fixture
def peer(port: UdpPort) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.2", 0))
        sock.settimeout(TIMEOUT_S)
        sock.connect(("127.0.0.1", int(port.name.rpartition(":")[2])))
        yield sock


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 4, bytes(60000)])
def test_a_datagram_becomes_a_frame(port: UdpPort, peer: socket.socket, payload: bytes) -> None:
    peer.send(payload)
    wait_for(port)
    [frame] = port.receive(10)
    assert frame[42:] == payload
    assert internet_checksum(frame[14:34]) == 0
    assert HEADERS.unpack(frame[:24] + b"\0\0" + frame[26:42]) == (
        bytes.fromhex("02007f000001"),
        bytes.fromhex("02007f000002"),
        0x0800,
        *(0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17, 0),
        bytes([127, 0, 0, 2]),
        bytes([127, 0, 0, 1]),
        *(peer.getsockname()[1], 0x7A52, 8 + len(payload), 0),
    )
    assert (port.received, port.sent, port.dropped) == (1, 0, 0)
    port.send(reply_to(frame))
    assert peer.recv(65536) == payload
    assert (port.received, port.sent, port.dropped) == (1, 1, 0)


@pytest.mark.parametrize("ecn", range(4))
def test_a_datagram_keeps_its_ecn(port: UdpPort, peer: socket.socket, ecn: int) -> None:
    peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ecn)
    peer.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    peer.send(b"payload")
    wait_for(port)
    [frame] = port.receive(1)
    assert (frame[15], internet_checksum(frame[14:34])) == (ecn, 0)
    port.send(reply_to(frame))
    payload, ancillary, _, _ = peer.recvmsg(100, ANCILLARY_BYTES)
    assert (payload, ecn_of(ancillary)) == (b"payload", ecn)


def test_padding_after_the_datagram_is_not_sent(port: UdpPort, peer: socket.socket) -> None:
    peer.send(b"short")
    wait_for(port)
    port.send(reply_to(port.receive(1)[0]) + bytes(13))
    assert peer.recv(100) == b"short"


def test_what_is_not_a_datagram_is_dropped(port: UdpPort, peer: socket.socket) -> None:
    peer.send(b"payload")
    wait_for(port)
    good = reply_to(port.receive(1)[0])

    def changed(offset: int, *values: int) -> bytes:
        return good[:offset] + bytes(values) + good[offset + len(values) :]

    bad = [
        *(b"", b"x" * 14, b"x" * 15, good[:41], bytes(60)),
        changed(12, 0x08, 0x06),  # ARP
        changed(14, 0x46),  # options
        changed(14, 0x65),  # version 6
        changed(20, 0x20),  # a first fragment
        changed(20, 0x40, 0x01),  # a later one
        changed(23, 6),  # TCP
        changed(38, 0, 7),  # shorter than its own header
        good[:-1],
        changed(36, 0, 0),  # to port 0, which the kernel refuses
    ]
    for frame in bad:
        port.send(frame)
    assert (port.sent, port.dropped) == (0, len(bad))
    port.send(good)
    assert peer.recv(100) == b"payload"


def test_no_more_than_the_limit(port: UdpPort, peer: socket.socket) -> None:
    for index in range(5):
        peer.send(bytes([index]))
    wait_for(port)
    assert [frame[-1] for frame in port.receive(3)] == [0, 1, 2]
    assert [frame[-1] for frame in port.receive(3)] == [3, 4]
    assert port.receive(3) == []


def test_what_is_remembered_is_bounded(port: UdpPort, peer: socket.socket) -> None:
    peer.send(b"x")
    wait_for(port)
    frame = reply_to(port.receive(1)[0])
    for source in range(REMEMBERED + 10):
        port._header(("10.0.0.1", source), 1, 0)
        port.send(frame[:34] + struct.pack("!H", source) + frame[36:])
    assert len(port._headers) <= REMEMBERED
    assert len(port._addresses) <= REMEMBERED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1=",
        "1=udp",
        "1=udp:",
        "=udp:127.0.0.1:1",
        "x=udp:127.0.0.1:1",
        "-1=eth:lo",
        "1=tcp:127.0.0.1:1",
        "999999=eth:lo",
    ],
)
def test_a_port_that_is_written_wrongly(text: str) -> None:
    with pytest.raises(PortError, match=r"accepted are 1=eth:INTERFACE and 1=udp:ADDRESS:PORT"):
        PortSpec.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1=udp:127.0.0.1", "PORT a number"),
        ("1=udp:127.0.0.1:x", "PORT a number"),
        ("1=udp:127.0.0.1:70000", "PORT a number"),
        ("1=udp:localhost:1", "ADDRESS must be an IP address, as 127.0.0.1"),
        ("1=udp:::1:1", r"ADDRESS must be an IP address, as 127.0.0.1 or \[::1\]"),
        ("1=udp:[::]:1", "one of this machine's own"),
        ("1=udp:[fe80::1]:1", "one of this machine's own.* it is valid on one link only"),
        ("1=udp:[::ffff:127.0.0.1]:1", "it is an IPv4-mapped address; write 127.0.0.1"),
        ("1=udp:[2001:db8::1]:0", r"cannot open udp:\[2001:db8::1\]:0"),
        ("1=udp:0.0.0.0:1", "one of this machine's own"),
        ("1=udp:224.0.0.1:1", "one of this machine's own"),
        ("1=udp:192.0.2.1:0", "cannot open udp:192.0.2.1:0"),
        ("1=eth:there-is-none", "cannot open interface 'there-is-none'"),
    ],
)
def test_a_port_that_cannot_be_opened(text: str, message: str) -> None:
    with pytest.raises(PortError, match=message):
        open_port(PortSpec.parse(text))


def test_an_address_that_is_taken(port: UdpPort) -> None:
    with pytest.raises(PortError, match=r"another program uses the port; `ss -lunp 'sport = :\d+'` shows which"):
        open_port(PortSpec.parse(f"2={port.name}"))


@pytest.mark.parametrize("numbers", [[1, 1], [0], [511], [510], [1, 2, 1]])
def test_port_numbers_that_are_refused(numbers: list[int]) -> None:
    with pytest.raises(PortError, match="port"):
        check_ports([PortSpec(number, "eth", "lo") for number in numbers], 510)


def test_ports_of_both_kinds_are_refused() -> None:
    with pytest.raises(PortError, match="here are both"):
        check_ports([PortSpec(1, "eth", "lo"), PortSpec(2, "udp", "127.0.0.1:0")], 510)


@pytest.mark.root
class TestInterfaces:
    """Tests of frames on a cable."""

    @pytest.fixture
    def eth(self) -> Iterator[EthPort]:
        with own_cables():
            port = EthPort(1, "switch1")
            yield port
            port.close()

    @pytest.fixture
    def host(self, eth: EthPort) -> Iterator[socket.socket]:
        del eth
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sock:
            sock.bind(("host1", ETH_P_ALL))
            sock.settimeout(TIMEOUT_S)
            yield sock

    @pytest.mark.parametrize("length", [14, 60, 1514, 9014])
    def test_frames_pass_as_they_are(self, eth: EthPort, host: socket.socket, length: int) -> None:
        frame = (bytes(range(1, 256)) * 36)[:12] + b"\x88\xb5" + bytes(length - 14)  # to a MAC that nobody has
        host.send(frame)
        wait_for(eth)
        assert eth.receive(10) == [frame]
        eth.send(frame[::-1])
        assert host.recvfrom(65536)[0] in (frame, frame[::-1])
        assert (eth.received, eth.sent, eth.dropped) == (1, 1, 0)

    @pytest.mark.parametrize("tag", ["81000005", "81000000", "8100e02a", "88a80005", "88a8000581000007"])
    def test_vlan_tags_stay_in_frames(self, eth: EthPort, host: socket.socket, tag: str) -> None:
        """The kernel takes the first one out."""
        frame = b"\xff" * 6 + bytes(range(6)) + bytes.fromhex(tag) + b"\x88\xb5" + bytes(range(60))
        host.send(frame)
        wait_for(eth)
        assert eth.receive(10) == [frame]
        other = EthPort(2, "host1")
        try:
            eth.send(frame)
            wait_for(other)
            assert other.receive(10) == [frame]
        finally:
            other.close()

    def test_its_own_frames_do_not_come_back(self, eth: EthPort, host: socket.socket) -> None:
        eth.send(bytes(60))
        assert host.recv(100) == bytes(60)
        assert eth.receive(10) == []

    def test_frames_that_the_interface_cannot_send_are_dropped(self, eth: EthPort, host: socket.socket) -> None:
        del host
        eth.send(bytes(10000))
        eth.send(b"short")
        assert (eth.sent, eth.dropped) == (0, 2)

    def test_an_interface_that_goes_down_and_comes_back(self, eth: EthPort, host: socket.socket) -> None:
        ip("link", "set", "switch1", "down")
        assert eth.receive(10) == []
        eth.send(bytes(60))
        assert eth.dropped == 1
        ip("link", "set", "switch1", "up")
        wait_until_up("host1", "switch1")
        host.close()
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as again:
            again.bind(("host1", 0))
            again.send(bytes(60))
            wait_for(eth)
        assert eth.receive(10) == [bytes(60)]
