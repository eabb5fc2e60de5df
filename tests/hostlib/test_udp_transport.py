# SPDX-License-Identifier: Apache-2.0
"""UDP: one aggregator, and several as one transport."""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from p4reduce.protocol import Membership, Worker
from p4reduce.protocol.constants import AGGREGATION_PORT, ECN_CE, ECN_ECT_0, Op
from p4reduce.transport import StripedTransport, Switch, Transport, TransportError, open_transport, open_transports
from p4reduce.transport.addresses import family_of, is_ipv6, protocol_of
from p4reduce.transport.ecn import ANCILLARY_BYTES, MarkedPayload
from p4reduce.transport.frames import ip_and_udp_bytes
from p4reduce.transport.udp import UdpTransport, path_mtu
from tests.support.hostlib.operations import receive
from tests.support.hostlib.udp_switch import endpoints
from tests.support.loopbacks import LOOPBACKS, bound, set_traffic_class
from tests.support.own_network import OwnNetwork, ip
from tests.support.waiting import wait_until


@pytest.fixture(params=LOOPBACKS)
def loopback(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def switch(switches: list[socket.socket]) -> socket.socket:
    return switches[0]


def address(sock: socket.socket) -> Switch:
    return Switch(*sock.getsockname()[:2])


@pytest.fixture
def plain(switch: socket.socket) -> Iterator[Transport]:
    """Yield a transport to one aggregator."""
    transport = open_transport("udp", address(switch))
    yield transport
    transport.close()


def test_carries_payloads_both_ways(switch: socket.socket, plain: Transport) -> None:
    assert plain.receive() == []
    payloads = [bytes([number]) * (number + 1) for number in range(40)]
    assert plain.send(payloads) == 40
    for payload in payloads:
        came, sender = switch.recvfrom(2048)
        assert (came, sender[:2]) == (payload, plain.local_address)
    for payload in payloads:
        switch.sendto(payload, plain.local_address)
    assert receive(plain, 40) == payloads


@pytest.mark.parametrize("ecn", range(4))
def test_marks(switch: socket.socket, plain: Transport, ecn: int) -> None:
    """Packets leave with ECT(0), and only CE is a mark. A switch of an earlier release answers with ECN 0."""
    set_traffic_class(switch, 0x28 | ecn)
    plain.send([b"data"])
    payload, ancillary, _, peer = switch.recvmsg(2048, ANCILLARY_BYTES)
    assert (payload, ancillary[0][2][0]) == (b"data", ECN_ECT_0)
    switch.sendto(b"result", peer)
    [answer] = receive(plain, 1)
    assert answer == b"result"
    assert isinstance(answer, MarkedPayload) == (ecn == ECN_CE)


def test_a_mark_passes_a_transport_to_several_switches(switches: list[socket.socket]) -> None:
    endpoints = [address(one) for one in switches[:2]]
    striped = open_transports("udp", endpoints)
    assert isinstance(striped, StripedTransport)
    set_traffic_class(switches[1], ECN_CE)
    for part, one in zip(striped.parts, switches, strict=False):
        one.sendto(bytes([Op.RESULT]) + bytes(33), part.local_address)
    answers = receive(striped, 2)
    striped.close()
    assert sorted(isinstance(answer, MarkedPayload) for answer in answers) == [False, True]


def test_hears_the_switch_only(switch: socket.socket, plain: Transport) -> None:
    with bound(address(switch).ip) as stranger:
        stranger.sendto(b"stranger", plain.local_address)
    switch.sendto(b"switch", plain.local_address)
    assert receive(plain, 1) == [b"switch"]


def test_survives_a_switch_that_is_down_for_a_while(switch: socket.socket, plain: Transport) -> None:
    endpoint = address(switch)
    switch.close()
    for _ in range(3):  # the first send brings ICMP "port unreachable", which the later calls meet
        plain.send([b"lost", b"lost too"])
        assert plain.receive() == []
    assert isinstance(plain.trouble, ConnectionRefusedError)
    with socket.socket(family_of(endpoint.ip), socket.SOCK_DGRAM) as restarted:
        restarted.bind((endpoint.ip, endpoint.udp_port))
        restarted.setblocking(False)

        def arrives() -> bool:
            plain.send([b"found"])
            try:
                return restarted.recv(100) == b"found"
            except BlockingIOError:
                return False

        wait_until(arrives, "a payload after the switch came back")
        restarted.sendto(b"answer", plain.local_address)
        assert receive(plain, 1) == [b"answer"]
        assert plain.trouble is None
    plain.close()  # which may be repeated


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="transport='carrier pigeon': accepted are udp, raw, scapy"):
        open_transport("carrier pigeon", Switch("127.0.0.1", 1))


def test_unknown_interface_is_named() -> None:
    with pytest.raises(TransportError, match="'nosuch0'"):
        open_transport("udp", Switch("127.0.0.1", 1), interface="nosuch0")


def test_packets_larger_than_the_path_are_refused(switch: socket.socket) -> None:
    to = address(switch)
    with pytest.raises(TransportError, match=rf"{100_000 + ip_and_udp_bytes(to.ip)} bytes .* MTU .* 6553"):
        open_transport("udp", to, largest_payload=100_000)


@pytest.mark.root
def test_the_largest_packet_that_a_path_carries(either_network: OwnNetwork) -> None:
    """The kernel makes no fragments, and says so of a packet that would need them."""
    ip("neighbour", "add", either_network.switch_ip, "lladdr", either_network.switch_mac, "dev", either_network.host)
    to = Switch(either_network.switch_ip, AGGREGATION_PORT)
    largest = 1500 - ip_and_udp_bytes(to.ip)
    with pytest.raises(TransportError, match=f"have 1501 bytes with {protocol_of(to.ip)} headers, .* is 1500"):
        open_transport("udp", to, largest_payload=largest + 1)
    with closing(open_transport("udp", to, largest_payload=largest)) as transport:
        assert transport.send([bytes(largest)]) == 1
        assert transport.trouble is None
        with pytest.raises(TransportError, match=f"a packet of {largest + 1} bytes is longer than the MTU"):
            transport.send([bytes(largest + 1)])


@pytest.mark.root
def test_forged_icmp_does_not_lower_the_mtu(either_network: OwnNetwork) -> None:
    """Any host can send a "packet too big" to one of a rank's ports. The kernel believes it for ten minutes."""
    network = either_network
    ip("neighbour", "add", network.switch_ip, "lladdr", network.switch_mac, "dev", network.host)
    to = Switch(network.switch_ip, AGGREGATION_PORT)
    ipv6 = is_ipv6(to.ip)
    layer: type[Packet] = IPv6 if ipv6 else IP
    with (
        closing(UdpTransport(to)) as transport,
        socket.socket(family_of(to.ip), socket.SOCK_DGRAM) as victim,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire,
    ):
        victim.connect((to.ip, to.udp_port))
        wire.bind((network.wire, 0))
        for port in (victim.getsockname()[1], transport.local_address[1]):
            about = layer(src=network.host_ip, dst=to.ip) / UDP(sport=port, dport=to.udp_port) / bytes(100)
            says = ICMPv6PacketTooBig(mtu=1280) if ipv6 else ICMP(type=3, code=4, nexthopmtu=552)
            forged = Ether(dst=network.host_mac) / layer(src=network.switch_ip, dst=network.host_ip) / says / about
            wire.send(bytes(forged))
        wait_until(lambda: path_mtu(victim) < 1400, "the kernel to believe it")
        assert transport.send([bytes(1400)]) == 1
        with closing(open_transport("udp", to, largest_payload=1400)) as another:
            assert another.send([bytes(1400)]) == 1
            assert another.trouble is None


def test_errors_from_icmp_are_not_about_the_payload(plain: UdpTransport) -> None:
    """A flood of forged ICMP may come between a rank's attempts."""
    sock, refusals = plain._socket, 3

    class Flooded:
        def send(self, payload: bytes) -> int:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise OSError(errno.EMSGSIZE, "Message too long")
            return sock.send(payload)

        def __getattr__(self, name: str) -> object:
            return getattr(sock, name)

    plain._socket = Flooded()  # type: ignore[assignment]
    assert plain.send([b"payload"]) == 1
    assert refusals == 0
    refusals = 1000
    assert plain.send([b"payload"]) == 1  # lost, as on a wire
    assert plain.trouble is not None
    with pytest.raises(TransportError, match="a packet of 70000 bytes is longer than the MTU"):
        plain.send([bytes(70000)])


@pytest.mark.root
def test_checksums_over_ipv6(either_network: OwnNetwork) -> None:
    """Switches send datagrams without one. Those of a host have one, because the kernel makes no super-packets else."""
    network = either_network
    ip("neighbour", "add", network.switch_ip, "lladdr", network.switch_mac, "dev", network.host)
    layer: type[Packet] = IPv6 if is_ipv6(network.switch_ip) else IP
    with (
        closing(open_transport("udp", Switch(network.switch_ip, AGGREGATION_PORT))) as transport,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire,
    ):
        wire.bind((network.wire, 3))
        wire.settimeout(20)
        assert transport.send([b"to the switch"]) == 1
        while not (frame := wire.recv(2000)).endswith(b"to the switch"):
            pass
        assert Ether(frame)[UDP].chksum != 0
        (own, port), switch = transport.local_address, (network.switch_ip, network.switch_mac)
        wrong, none = (
            Ether(src=switch[1], dst=network.host_mac)
            / layer(src=switch[0], dst=own)
            / UDP(sport=AGGREGATION_PORT, dport=port, chksum=checksum)
            / payload
            for checksum, payload in ((1, b"with a wrong one"), (0, b"without one"))
        )
        wire.send(bytes(wrong))
        wire.send(bytes(none))
        assert receive(transport, 1) == [b"without one"]


def test_ipv4_is_not_reached_by_an_ipv6_address() -> None:
    with pytest.raises(TransportError, match=r"at \[::ffff:127.0.0.1\]:1"):
        open_transport("udp", Switch("::ffff:127.0.0.1", 1))


def test_a_packet_that_can_never_be_sent_is_an_error(plain: Transport) -> None:
    with pytest.raises(TransportError, match="a packet of 70000 bytes"):
        plain.send([bytes(70000)])


def test_missing_route_is_an_error_that_names_the_switch() -> None:
    with pytest.raises(TransportError, match=r"no UDP socket to the switch at 255.255.255.255:1"):
        open_transport("udp", Switch("255.255.255.255", 1))
    with pytest.raises(TransportError, match=r"no UDP socket to the switch at \[100::1\]:1"):
        open_transport("udp", Switch("100::1", 1), interface="lo")


@pytest.fixture
def transport(switches: list[socket.socket]) -> Iterator[Transport]:
    transport = open_transports("udp", endpoints(switches))
    yield transport
    transport.close()


def packet(half: int, op: Op = Op.DATA) -> bytes:
    return struct.pack("!BBBBHHHII", 0x10 | op, 1, 1, 2, 3, 4, half, 5, 6) + b"the rest"


def test_a_hello_goes_to_every_aggregator(switches: list[socket.socket], transport: Transport) -> None:
    member = Membership(
        job=1, generation=1, rank=0, world_size=1, slots=4, lanes=4, block_size=64, first_seq=0
    )  # fmt: skip
    hello = Worker(member).hello(77)
    assert transport.send([hello]) == 1
    assert [switch.recv(2048) for switch in switches] == [hello] * 3


def test_a_slot_that_no_job_can_have_is_dropped(switches: list[socket.socket], transport: Transport) -> None:
    transport.send([packet(0, Op.HELLO)])
    sender = switches[2].recvfrom(2048)[1]
    for half in (2 * (32768 // 3), 0xFFFF, 0):
        switches[2].sendto(packet(half), sender)
    assert receive(transport, 1) == [packet(4)]


def test_only_the_aggregators_are_heard(switches: list[socket.socket], transport: Transport) -> None:
    transport.send([packet(0, Op.HELLO)])
    sender = switches[0].recvfrom(2048)[1]
    switches[1].sendto(packet(0), sender)  # another of the job's, but not this one
    switches[0].sendto(packet(2), sender)
    assert receive(transport, 1) == [packet(6)]


def test_one_aggregator_needs_no_dealing(switches: list[socket.socket]) -> None:
    transport = open_transports("udp", endpoints(switches[:1]))
    assert type(transport) is UdpTransport
    assert transport.quietest() is None
    transport.close()


def test_the_one_that_owes_an_answer_is_named(switches: list[socket.socket]) -> None:
    now = 0.0
    parts: list[Transport] = [UdpTransport(endpoint) for endpoint in endpoints(switches)]
    transport = StripedTransport(parts, endpoints(switches), clock=lambda: now)
    transport.send([packet(slot << 1) for slot in range(3)])
    assert transport.quietest() == (endpoints(switches)[0], float("-inf"))
    for index in (0, 1):
        now += 1
        payload, sender = switches[index].recvfrom(2048)
        switches[index].sendto(payload, sender)
        receive(transport, 1)
    assert transport.quietest() == (endpoints(switches)[2], float("-inf"))
    assert transport.local_address == parts[2].local_address
    payload, sender = switches[2].recvfrom(2048)
    switches[2].sendto(payload, sender)
    receive(transport, 1)
    assert transport.quietest()[1] == 2.0  # nobody owes anything
    transport.send([packet(0), packet(4)])
    now += 5
    assert transport.quietest() == (endpoints(switches)[0], 1.0)
    transport.close()


def test_ranks_keep_their_ports_when_routes_are_looked_up(switches: list[socket.socket], transport: Transport) -> None:
    transport.send([packet(slot << 1) for slot in range(3)])
    senders = [switch.recvfrom(2048)[1] for switch in switches]
    transport.look_up_route()
    transport.send([packet(slot << 1) for slot in range(3)])
    arrived = [switch.recvfrom(2048) for switch in switches]
    assert [sender for _, sender in arrived] == senders
    for switch, (payload, sender) in zip(switches, arrived, strict=True):
        switch.sendto(payload, sender)
    assert sorted(receive(transport, 3)) == [packet(slot << 1) for slot in range(3)]
    transport.close()
    transport.look_up_route()


def test_one_that_is_gone_is_trouble(switches: list[socket.socket], transport: Transport) -> None:
    switches[1].close()
    transport.send([packet(2)])
    select.select([transport], [], [], 5)
    assert transport.receive() == []
    assert isinstance(transport.trouble, ConnectionRefusedError)


class FullTransport(UdpTransport):
    """A transport whose buffer is full when a test says so."""

    full = False

    def send(self, payloads: Sequence[bytes]) -> int:
        return 0 if self.full else super().send(payloads)


def test_packets_wait_for_room_in_order(switches: list[socket.socket]) -> None:
    parts = [FullTransport(endpoint) for endpoint in endpoints(switches)]
    transport = StripedTransport(parts, endpoints(switches))
    parts[1].full = True
    payloads = [packet(slot << 1) for slot in range(4)]
    assert transport.send(payloads) == 1
    assert select.select([transport], [], [], 5)[0], "readable when there is room"
    parts[1].full = False
    assert transport.receive() == []
    assert transport.send(payloads[1:]) == 3
    assert [switch.recv(2048) for switch in switches] == [packet(0)] * 3
    assert switches[0].recv(2048) == packet(2)
    assert not select.select([transport], [], [], 0)[0], "and only then"
    transport.close()


def test_one_that_cannot_be_reached_closes_the_others(switches: list[socket.socket]) -> None:
    with pytest.raises(TransportError, match=r"255\.255\.255\.255:1"):
        open_transports("udp", [*endpoints(switches), Switch("255.255.255.255", 1)])


def test_a_spare_has_the_slots_of_a_lost_aggregator_and_no_others(switches: list[socket.socket]) -> None:
    parts: list[Transport] = [UdpTransport(endpoint) for endpoint in endpoints(switches)]
    transport = StripedTransport(parts, endpoints(switches)).keep([0, 2], spares=1)
    assert isinstance(transport, StripedTransport)
    assert transport.aggregators == 1
    transport.send([packet(0, Op.HELLO), packet(0), packet(4)])
    sender = switches[2].recvfrom(2048)[1]
    assert [switches[0].recv(2048) for _ in range(3)] == [packet(0, Op.HELLO), packet(0), packet(4)]
    switches[2].sendto(packet(2), sender)  # not one of its slots
    switches[2].sendto(b"", sender)
    switches[2].sendto(packet(0, Op.HELLO), sender)
    assert receive(transport, 1) == [packet(2, Op.HELLO)]
    own, other = 3 << 16 | 4, 9 << 16 | 1
    for aggregator, via in ((1, 0), (0, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"there are no aggregators {aggregator} and {via}"):
            transport.redirect(aggregator, via, other, own)
    transport.redirect(0, 1, other, own)
    transport.send([packet(4)])
    moved = packet(4)[:4] + other.to_bytes(4, "big") + packet(4)[8:]
    assert switches[2].recv(2048) == moved
    switches[2].sendto(moved, sender)
    assert receive(transport, 1) == [packet(4)]
    transport.close()


def test_those_that_are_not_the_ranks_own_are_given_up(switches: list[socket.socket], transport: Transport) -> None:
    assert isinstance(transport, StripedTransport)
    parts = transport.parts
    two = transport.keep([0, 2])
    assert two.send([packet(0), packet(2)]) == 2
    assert [switches[index].recv(100) for index in (0, 2)] == [packet(0)] * 2  # slot 1 is the second one's slot 0
    with pytest.raises((OSError, ValueError)):
        select.select([parts[1]], [], [], 0)
    assert isinstance(two, StripedTransport)
    assert two.keep([0]) is parts[0]
    parts[0].close()
