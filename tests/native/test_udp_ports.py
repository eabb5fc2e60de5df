# SPDX-License-Identifier: Apache-2.0
"""Datagrams at UDP ports come to the same as the frames that they stand for, on the fast way and on the long one."""

from __future__ import annotations

import select
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from p4reduce_targets.dataplane import Replica
from p4reduce_targets.native.switch import PortCounts
from tests.support.dataplane import frames
from tests.support.own_network import own_network

from .udp_switch import BLOCK, DEADLINE_S, JOB, LANES, LOOPBACK, OWN, SOL_UDP, UDP_GRO, WORKERS, UdpSwitch

LOSS_IN = "SwitchIngress.drop_simulator.loss_rates"
LOSE_IN = "SwitchIngress.drop_simulator.lose"
LOSS_OUT = "SwitchEgress.drop_simulator.loss_rates"
LOSE_OUT = "SwitchEgress.drop_simulator.lose"


def values(seed: int, lanes: list[int]) -> dict[int, frames.Values]:
    random = np.random.default_rng(seed)
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    return {lane: random.integers(low, high, BLOCK, np.int32, endpoint=True) for lane in lanes}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ports", [1, 2])
def test_rounds_of_a_job(ports: int, threads: int) -> None:
    with UdpSwitch(3, ports=ports, threads=threads) as switch:
        for seq in range(2, 40):
            for rank in (0, 1, 2):
                lanes = [lane for lane in range(LANES) if seq >> lane & 1]
                active = sum(1 << lane for lane in lanes)
                switch.exchange(rank, switch.data(rank, seq, active=active, values=values(seq * 3 + rank, lanes)))
        switch.check_end()


def test_chains_of_datagrams_are_taken_apart_and_answered() -> None:
    with UdpSwitch(2, halves=400) as switch:
        for seq in (2, 3, 4):
            for rank in (0, 1):
                chain = [
                    switch.data(rank, seq, slot=2 * slot + (seq & 1), active=15, values=values(slot, [0, 1, 2, 3]))
                    for slot in range(50)
                ]
                switch.exchange(rank, *chain)
        switch.check_end()


def test_a_chain_that_ends_in_a_shorter_datagram() -> None:
    with UdpSwitch(1) as switch:
        first = switch.data(0, 2, active=3, values=values(1, [0, 1]))
        switch.exchange(0, first, switch.data(0, 2, slot=2, active=2, values=values(2, [1])))
        switch.exchange(0, switch.data(0, 3, slot=3, active=1, values=values(1, [0])), b"\x11")
        switch.check_end()


def test_a_result_goes_out_before_its_half_starts_over() -> None:
    """One worker alone may send a newer round in the same chain; the older one's result must not be overwritten."""
    with UdpSwitch(1) as switch:
        chain = [switch.data(0, seq, slot=0, active=1, values=values(seq, [0])) for seq in (2, 4, 6, 8)]
        switch.exchange(0, *chain)
        switch.check_end()


@pytest.mark.parametrize("others", [0, 62])  # with 62, results go out before all of the chain is processed
def test_who_asks_twice_is_answered_twice_before_the_next_round(others: int) -> None:
    """So a rank knows that what it sent again was not lost."""
    with UdpSwitch(1, halves=200) as switch:
        lanes = values(1, list(range(LANES)))
        first, then = (switch.data(0, seq, slot=seq & 1, active=15, values=lanes) for seq in (2, 3))
        fill = [switch.data(0, 2, slot=2 * slot, active=15, values=lanes) for slot in range(1, 1 + others)]
        for chunk in ([first], [first, then, *fill[:58]], fill[58:]):
            if chunk:
                switch.send(0, *chunk)
        answers = switch.receive(0, 3 + others)
        rounds = [answer[8:14] for answer in answers]  # slot and seq
        assert rounds.count(first[8:14]) == 2
        again = max(place for place, it in enumerate(rounds) if it == first[8:14])
        assert again < rounds.index(then[8:14])


@pytest.mark.parametrize("seed", range(6))
def test_random_traffic(seed: int) -> None:
    random = Random(seed)
    with UdpSwitch(3, ports=1 + seed % 2, threads=1 + seed % 3, pool_base=6) as switch:
        now = dict.fromkeys(range(4), 2)
        history: list[tuple[int, bytes]] = []
        for _ in range(600):
            rank, payload = random_datagram(random, switch, now, history)
            switch.exchange(rank, payload)
        switch.check_end()


def random_datagram(
    random: Random, switch: UdpSwitch, now: dict[int, int], history: list[tuple[int, bytes]]
) -> tuple[int, bytes]:
    slot, rank = random.randrange(4), random.randrange(3)
    if random.random() < 0.3:
        now[slot] += random.choice([1, 1, 1, 2])
    seq = now[slot] + random.choice([0] * 12 + [-1, -2, 1, 2])
    of_round = Random(seq * 8 + slot)
    active = of_round.getrandbits(LANES)
    lanes = [lane for lane in range(LANES) if active >> lane & 1]
    absent = random.sample(lanes, min(len(lanes), random.choice([0, 0, 1, 2, 3])))
    payload = switch.data(
        rank,
        seq,
        slot=2 * slot + (seq & 1),
        active=active,
        fingerprint=(0x700 if random.random() < 0.95 else 0x800) | (active if random.random() < 0.99 else 1),
        keys=[random.getrandbits(32) for _ in range(LANES)],
        values=values(random.getrandbits(30), [lane for lane in lanes if lane not in absent]),
    )
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


def complete_rounds(switch: UdpSwitch, first: int, count: int = 4) -> None:
    for seq in range(first, first + count):
        for rank in range(len(switch.workers)):
            switch.exchange(rank, switch.data(rank, seq, active=5, values=values(seq + rank, [0, 2])))


def test_changes_take_effect_at_once() -> None:
    with UdpSwitch(2, ports=2) as switch:
        complete_rounds(switch, 2)
        switch.insert(LOSS_OUT, (2,), LOSE_OUT, 2**32 - 1)
        complete_rounds(switch, 6)
        switch.delete(LOSS_OUT, (2,))
        complete_rounds(switch, 10)
        switch.insert(LOSS_IN, (1,), LOSE_IN, 2**32 - 1)
        switch.exchange(0, switch.data(0, 14))
        switch.delete(LOSS_IN, (1,))
        complete_rounds(switch, 14)
        switch.set_group([Replica(1, 1)])
        complete_rounds(switch, 18)
        switch.set_group([Replica(1, 1), Replica(7, 2)])  # a port that is not there
        complete_rounds(switch, 22)
        switch.set_group([])
        complete_rounds(switch, 26)
        switch.set_group([Replica(1, 1), Replica(2, 2)])
        switch.delete(WORKERS, (JOB, 2))  # then each copy goes to whoever completed the round
        complete_rounds(switch, 30)
        switch.delete(OWN, (frames.ip_number(LOOPBACK),))
        complete_rounds(switch, 34)
        switch.insert(OWN, (frames.ip_number(LOOPBACK),), "SwitchIngress.own_address.own", 1)
        complete_rounds(switch, 38)
        switch.check_end()


def test_packets_of_strangers_change_nothing() -> None:
    with UdpSwitch(2) as switch:
        switch.exchange(0, switch.data(1, 2, active=1, values=values(1, [0])))
        switch.exchange(0, switch.data(0, 2, generation=9))
        switch.exchange(1, switch.data(1, 2, job=JOB + 1))
        switch.exchange(1, b"")
        complete_rounds(switch, 2)
        switch.check_end()


def test_ports_count_their_packets() -> None:
    with UdpSwitch(2) as switch:
        complete_rounds(switch, 2, 5)
        switch.check_end()
        assert switch.switch.port_counts(1) == PortCounts(received=11, sent=10, dropped=0)


def whole_round(switch: UdpSwitch, seq: int, slots: int = 50) -> None:
    """Of every slot, in a chain from each rank."""
    for rank in range(len(switch.workers)):
        chain = [
            switch.data(rank, seq, slot=2 * slot + (seq & 1), active=15, values=values(slot, [0, 1, 2, 3]))
            for slot in range(slots)
        ]
        switch.exchange(rank, *chain)


@pytest.mark.parametrize("ip", [LOOPBACK, "127.0.0.2"])
def test_a_rank_that_nothing_can_be_sent_to_costs_the_others_no_chains(ip: str) -> None:
    """To UDP port 0, which is no reason to send datagrams one by one to others."""
    with UdpSwitch(2, halves=100) as switch:
        switch.delete(WORKERS, (JOB, 1))
        switch.deliver(0, ip, 0)
        for seq in (2, 3):
            whole_round(switch, seq)
        switch.check_end()
        switch.workers[1].setsockopt(SOL_UDP, UDP_GRO, 1)
        chain = [switch.data(1, 4, slot=2 * slot, active=15, values=values(slot, [0, 1, 2, 3])) for slot in range(50)]
        switch.send(0, *[data[:3] + b"\0" + data[4:] for data in chain])
        switch.send(1, *chain)
        sizes = []
        while sum(sizes) < 50 * len(chain[0]):
            assert select.select([switch.workers[1]], [], [], DEADLINE_S)[0], sizes
            sizes.append(len(switch.workers[1].recv(65536)))
        assert max(sizes) > len(chain[0])


@pytest.mark.root
def test_an_address_that_nobody_has_holds_nobody_up() -> None:
    """Datagrams to it wait in the kernel for who says that it is theirs, and fill the socket's buffer."""
    with own_network() as network, UdpSwitch(2, halves=128, ip=network.host_ip) as switch:
        for name, value in (("unres_qlen_bytes", 1 << 28), ("mcast_solicit", 100)):
            Path(f"/proc/sys/net/ipv4/neigh/{network.host}/{name}").write_text(str(value))
        switch.delete(WORKERS, (JOB, 2))
        switch.deliver(1, "10.9.0.77", 5000)
        bases = [
            [
                switch.data(rank, odd, slot=2 * slot + odd, active=15, values=values(slot, [0, 1, 2, 3]))
                for slot in range(60)
            ]
            for odd in (0, 1)
            for rank in (0, 1)
        ]

        def one_round(seq: int) -> int:
            """Returns how many datagrams have been dropped until now."""
            for rank in (0, 1):
                chain = bases[2 * (seq & 1) + rank]
                switch.send(rank, *[data[:10] + seq.to_bytes(4, "big") + data[14:] for data in chain])
                switch._await_received()
            return switch.switch.port_counts(1).dropped

        seq = 2
        while one_round(seq) == 0:
            seq += 1
            assert seq < 5000
        started = time.monotonic()
        for later in range(100):
            dropped = one_round(seq + 1 + later)
        assert time.monotonic() - started < 2.5
        assert dropped >= 6000
