# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from waiting import receive, wait_until

from p4reduce.transport import Switch, TransportError, open_transport


@pytest.fixture
def switch() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        yield sock


def address(sock: socket.socket) -> Switch:
    return Switch(*sock.getsockname())


def test_carries_payloads_both_ways(switch: socket.socket) -> None:
    transport = open_transport("udp", address(switch))
    assert transport.receive() == []
    payloads = [bytes([number]) * (number + 1) for number in range(40)]
    assert transport.send(payloads) == 40
    for payload in payloads:
        assert switch.recvfrom(2048) == (payload, transport.local_address)
    for payload in payloads:
        switch.sendto(payload, transport.local_address)
    assert receive(transport, 40) == payloads
    transport.close()


def test_hears_the_switch_only(switch: socket.socket) -> None:
    transport = open_transport("udp", address(switch))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.sendto(b"stranger", transport.local_address)
    switch.sendto(b"switch", transport.local_address)
    assert receive(transport, 1) == [b"switch"]
    transport.close()


def test_survives_a_switch_that_is_down_for_a_while(switch: socket.socket) -> None:
    place = address(switch)
    switch.close()
    transport = open_transport("udp", place)
    for _ in range(3):  # the first send brings ICMP "port unreachable", which the later calls meet
        transport.send([b"lost", b"lost too"])
        assert transport.receive() == []
    assert isinstance(transport.trouble, ConnectionRefusedError)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as restarted:
        restarted.bind((place.ip, place.udp_port))
        restarted.setblocking(False)

        def arrives() -> bool:
            transport.send([b"found"])
            try:
                return restarted.recv(100) == b"found"
            except BlockingIOError:
                return False

        wait_until(arrives, "a payload after the switch came back")
        restarted.sendto(b"answer", transport.local_address)
        assert receive(transport, 1) == [b"answer"]
        assert transport.trouble is None
    transport.close()


def test_close_may_be_repeated(switch: socket.socket) -> None:
    transport = open_transport("udp", address(switch))
    transport.close()
    transport.close()


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="transport='carrier pigeon': accepted are udp, raw, scapy"):
        open_transport("carrier pigeon", Switch("127.0.0.1", 1))


def test_unknown_interface_is_named() -> None:
    with pytest.raises(TransportError, match="'nosuch0'"):
        open_transport("udp", Switch("127.0.0.1", 1), interface="nosuch0")


def test_packets_larger_than_the_path_are_refused() -> None:
    with pytest.raises(TransportError, match=r"100028 bytes .* MTU .* 6553"):
        open_transport("udp", Switch("127.0.0.1", 1), largest_payload=100_000)


def test_a_packet_that_can_never_be_sent_is_an_error(switch: socket.socket) -> None:
    transport = open_transport("udp", address(switch))
    with pytest.raises(TransportError, match="a packet of 70000 bytes"):
        transport.send([bytes(70000)])
    transport.close()


def test_missing_route_is_an_error_that_names_the_switch() -> None:
    with pytest.raises(TransportError, match=r"no UDP socket to the switch at 255.255.255.255:1"):
        open_transport("udp", Switch("255.255.255.255", 1))
