# SPDX-License-Identifier: Apache-2.0
"""Datagrams at UDP ports come to the same as the frames that they stand for, on the fast way and on the long one."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from p4reduce.protocol.constants import ECN_CE, ECN_ECT_0
from p4reduce_targets.native.switch import NativeSwitch, PortCounts
from p4reduce_targets.ports import PortError, PortSpec
from tests.support.dataplane import frames
from tests.support.dataplane.jobs import values_of
from tests.support.dataplane.p4runtime import Entry
from tests.support.dataplane.switch import LOSS_IN, LOSS_OUT, OWN_ADDRESSES
from tests.support.own_network import own_network
from tests.support.waiting import wait_until

from .udp_switch import DEADLINE_S, LOOPBACK, LOOPBACK_IPV6, SOL_UDP, UDP_GRO, UDP_NO_CHECK6_TX, UdpSwitch

LANES, ALL = 4, 2**32 - 1

families = pytest.mark.parametrize("ip", [LOOPBACK, LOOPBACK_IPV6])


def values(switch: UdpSwitch, seed: int, lanes: Sequence[int] = range(LANES)) -> dict[int, frames.Values]:
    return values_of(seed, switch.both, lanes)


def full(switch: UdpSwitch, rank: int, seq: int, slots: Sequence[int] = range(50)) -> list[bytes]:
    """Return a packet with all lanes for each slot."""
    return [switch.data(rank, seq, slot=slot, values=values(switch, slot)) for slot in slots]


def complete_rounds(switch: UdpSwitch, first: int, count: int = 4) -> None:
    for seq in range(first, first + count):
        lanes = [lane for lane in range(LANES) if seq >> lane & 1]
        for rank in range(len(switch.workers)):
            switch.exchange(rank, switch.data(rank, seq, values=values(switch, seq * 3 + rank, lanes)))


@families
@pytest.mark.parametrize(("ports", "threads"), [(1, 1), (2, 1), (2, 3)])
def test_rounds_of_a_job(ports: int, threads: int, ip: str) -> None:
    with UdpSwitch(3, ports=ports, threads=threads, ip=ip) as switch:
        complete_rounds(switch, 2, 38)
        switch.check_end()


@families
def test_chains_of_datagrams_are_taken_apart_and_answered(ip: str) -> None:
    with UdpSwitch(2, slots=50, ip=ip) as switch:
        for seq in (2, 3, 4):
            for rank in (0, 1):
                switch.exchange(rank, *full(switch, rank, seq))
        switch.check_end()


def test_a_chain_that_ends_in_a_shorter_datagram() -> None:
    with UdpSwitch(1) as switch:
        first = switch.data(0, 2, values=values(switch, 1, [0, 1]))
        switch.exchange(0, first, switch.data(0, 2, slot=1, values=values(switch, 2, [1])))
        switch.exchange(0, switch.data(0, 3, slot=1, values=values(switch, 1, [0])), b"\x11")
        switch.check_end()


def test_a_result_goes_out_before_its_half_starts_over() -> None:
    """A job's only worker may send a newer round in the same chain, which must not overwrite the older result."""
    with UdpSwitch(1) as switch:
        switch.exchange(0, *(switch.data(0, seq, values=values(switch, seq, [0])) for seq in (2, 4, 6, 8)))
        switch.check_end()


@families
@pytest.mark.parametrize("threads", [1, 3])
def test_marks_come_in_and_go_out(threads: int, ip: str) -> None:
    """Rounds with marks and without, whose RESULTs are sent together; some packets without ECN, as of older ranks."""
    random = Random(threads)
    with UdpSwitch(3, threads=threads, slots=50, ip=ip) as switch:
        for seq in range(2, 8):
            slots = random.sample(range(50), 50)
            for rank in range(3):
                for first in range(0, 50, 10):
                    chain = full(switch, rank, seq, slots[first : first + 10])
                    switch.exchange(rank, *chain, ecn=random.choice([ECN_ECT_0, ECN_ECT_0, ECN_ECT_0, ECN_CE, 0]))
            switch.exchange(0, *full(switch, 0, seq, range(50)))
        switch.check_end()


@pytest.mark.parametrize("others", [0, 62])  # with 62, results go out before all of the chain is processed
def test_who_asks_twice_is_answered_twice_before_the_next_round(others: int) -> None:
    """So a rank knows that its retransmission was not lost."""
    with UdpSwitch(1, slots=100) as switch:
        first, then = (switch.data(0, seq, values=values(switch, 1)) for seq in (2, 3))
        fill = full(switch, 0, 2, range(1, 1 + others))
        for chunk in ([first], [first, then, *fill[:58]], fill[58:]):
            if chunk:
                switch.send(0, *chunk)
        rounds = [answer[8:14] for _, answer in switch.receive(0, 3 + others)]  # slot and seq
        assert rounds.count(first[8:14]) == 2
        again = max(index for index, it in enumerate(rounds) if it == first[8:14])
        assert again < rounds.index(then[8:14])


@families
@pytest.mark.parametrize("seed", [0, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_random_traffic(seed: int, ip: str) -> None:
    random = Random(seed)
    with UdpSwitch(3, ports=1 + seed % 2, threads=1 + seed % 3, pool_base=6, ip=ip) as switch:
        now = dict.fromkeys(range(4), 2)
        history: list[tuple[int, bytes]] = []
        for _ in range(600):
            switch.exchange(*random_datagram(random, switch, now, history))
        switch.check_end()


def random_datagram(
    random: Random, switch: UdpSwitch, now: dict[int, int], history: list[tuple[int, bytes]]
) -> tuple[int, bytes]:
    slot, rank = random.randrange(4), random.randrange(3)
    if random.random() < 0.3:
        now[slot] += random.choice([1, 1, 1, 2])
    seq = now[slot] + random.choice([0] * 12 + [-1, -2, 1, 2])
    active = Random(seq * 8 + slot).getrandbits(LANES)
    lanes = [lane for lane in range(LANES) if active >> lane & 1]
    absent = random.sample(lanes, min(len(lanes), random.choice([0, 0, 1, 2, 3])))
    packet = switch.job.packet(
        rank,
        seq,
        slot=slot,
        active=active,
        fingerprint=0x700 if random.random() < 0.95 else 0x800,
        keys=[random.getrandbits(32) for _ in range(LANES)],
        values=values(switch, random.getrandbits(30), [lane for lane in lanes if lane not in absent]),
    )
    if random.random() < 0.01:
        packet = replace(packet, fingerprint=packet.fingerprint & ~0xFF | 1)
    payload = packet.pack()
    kind = random.random()
    if kind < 0.15 and history:
        return random.choice(history)
    if kind < 0.25:
        data = bytearray(payload)
        data[random.randrange(min(18, len(data)))] = random.getrandbits(8)
        return rank, bytes(data)
    if kind < 0.3:
        return rank, payload[: random.randrange(len(payload))]
    if kind < 0.33:
        return rank, payload + random.randbytes(random.choice([1, 4, 256]))
    history.append((rank, payload))
    del history[:-50]
    return rank, payload


def test_changes_take_effect_at_once() -> None:
    with UdpSwitch(2, ports=2) as switch:
        both, second = switch.both, switch.job.delivery(1)
        own = Entry(OWN_ADDRESSES, {"address": LOOPBACK}, "SwitchIngress.own_address.own", {"mac": 1})
        lost = Entry(LOSS_OUT, {"port": 2}, "SwitchEgress.drop_simulator.lose", {"threshold": ALL})
        changes = [
            lambda: both.insert(lost),
            lambda: both.delete(lost),
            lambda: switch.set_group((1, 1)),
            lambda: switch.set_group((1, 1), (7, 2)),  # a port that is not there
            lambda: switch.set_group(),
            lambda: switch.set_group((1, 1), (2, 2)),
            lambda: both.delete(second),  # then each copy goes to the worker that completed the round
            lambda: both.client.delete(own),
            lambda: both.client.insert(own),
        ]
        for step, change in enumerate(changes):
            complete_rounds(switch, 2 + 4 * step)
            change()
        first = 2 + 4 * len(changes)
        complete_rounds(switch, first)
        entry = both.set_loss(LOSS_IN, 1, ALL)
        switch.exchange(0, switch.data(0, first + 4))
        both.delete(entry)
        complete_rounds(switch, first + 4)
        switch.check_end()


@families
def test_packets_of_strangers_change_nothing(ip: str) -> None:
    with UdpSwitch(2, ip=ip) as switch:
        switch.exchange(0, switch.data(1, 2, values=values(switch, 1, [0])))
        switch.exchange(0, switch.data(0, 2, generation=9))
        switch.exchange(1, switch.data(1, 2, job=6))
        switch.exchange(1, b"")
        complete_rounds(switch, 2)
        switch.check_end()


def test_ports_count_their_packets() -> None:
    with UdpSwitch(2) as switch:
        complete_rounds(switch, 2, 5)
        switch.check_end()
        assert switch.switch.port_counts(1) == PortCounts(received=11, sent=10, dropped=0)


@pytest.mark.parametrize(
    ("ip", "other"), [(LOOPBACK, LOOPBACK), (LOOPBACK, "127.0.0.2"), (LOOPBACK_IPV6, LOOPBACK_IPV6)]
)
def test_a_rank_that_nothing_can_be_sent_to_costs_the_others_no_chains(ip: str, other: str) -> None:
    """The rank's UDP port is 0, which is no reason to send datagrams to others one by one."""
    with UdpSwitch(2, slots=50, ip=ip) as switch:
        switch.deliver(0, other, 0)
        for seq in (2, 3):
            for rank in (0, 1):
                switch.exchange(rank, *full(switch, rank, seq))
        switch.check_end()
        switch.workers[1].setsockopt(SOL_UDP, UDP_GRO, 1)
        for rank in (0, 1):
            switch.send(rank, *(sent := full(switch, rank, 4)))
        sizes: list[int] = []
        while sum(sizes) < 50 * len(sent[0]):
            assert select.select([switch.workers[1]], [], [], DEADLINE_S)[0], sizes
            sizes.append(len(switch.workers[1].recv(65536)))
        assert max(sizes) > len(sent[0])


@pytest.mark.parametrize(("ip", "other"), [(LOOPBACK, LOOPBACK_IPV6), (LOOPBACK_IPV6, LOOPBACK)])
def test_a_port_sends_nothing_to_the_other_family(ip: str, other: str) -> None:
    with UdpSwitch(2, ip=ip) as switch:
        switch.deliver(0, other, switch.job.members[0].host.udp_port)
        switch.send(0, switch.data(0, 2))
        switch.send(1, switch.data(1, 2))
        assert switch.receive(1, 1)
        wanted = PortCounts(received=2, sent=1, dropped=1)
        wait_until(lambda: switch.switch.port_counts(1) == wanted, lambda: str(switch.switch.port_counts(1)))


def test_datagrams_without_a_udp_checksum() -> None:
    with UdpSwitch(2, ip=LOOPBACK_IPV6) as switch:
        switch.workers[0].setsockopt(SOL_UDP, UDP_NO_CHECK6_TX, 1)
        complete_rounds(switch, 2)
        switch.check_end()


@pytest.mark.root
@pytest.mark.serial
def test_an_address_that_nobody_has_holds_nobody_up() -> None:
    """Datagrams to it wait in the kernel for who says that it is theirs, and fill the socket's buffer."""
    with own_network() as network, UdpSwitch(2, slots=64, ip=network.host_ip) as switch:
        for name, value in (("unres_qlen_bytes", 1 << 28), ("mcast_solicit", 100)):
            Path(f"/proc/sys/net/ipv4/neigh/{network.host}/{name}").write_text(str(value))
        switch.deliver(1, "10.9.0.77", 5000)
        bases = [[full(switch, rank, odd, range(60)) for rank in (0, 1)] for odd in (0, 1)]

        def one_round(seq: int) -> int:
            """Send one round, and return how many datagrams have been dropped until now."""
            for rank, chain in enumerate(bases[seq & 1]):
                switch.send(rank, *[data[:10] + seq.to_bytes(4, "big") + data[14:] for data in chain])
                switch.await_received()
            return switch.switch.port_counts(1).dropped

        seq = 2
        while one_round(seq) == 0:
            seq += 1
            assert seq < 5000
        took = []
        while not took or took[-1] >= 2.5:  # a machine that stands still meanwhile needs another try
            assert len(took) < 5, took
            started = time.monotonic()
            for _ in range(100):
                seq += 1
                dropped = one_round(seq)
            took.append(time.monotonic() - started)
        assert dropped >= 6000


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("::1:0", "must be an IP address"),
        ("localhost:0", "must be an IP address"),
        ("[127.0.0.1.1]:0", "must be an IP address"),
        ("[::]:0", "must be one of this machine's own"),
        ("[ff02::1]:0", "must be one of this machine's own"),
        ("[fe80::1]:0", "valid on one link only"),
        ("[::ffff:127.0.0.1]:0", "write 127.0.0.1"),
    ],
)
def test_addresses_that_a_port_cannot_have(address: str, why: str) -> None:
    with pytest.raises(PortError, match=why):
        NativeSwitch([PortSpec(1, "udp", address)])


def test_a_name_is_canonical() -> None:
    with NativeSwitch([PortSpec(1, "udp", "[0:0::0:1]:0")]) as switch:
        assert switch.ports[1].name.startswith("udp:[::1]:")
