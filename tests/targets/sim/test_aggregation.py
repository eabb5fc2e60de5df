# SPDX-License-Identifier: Apache-2.0
"""The shipped program: one example of each thing that it does. tests/dataplane has the whole of it."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from p4reduce_targets.dataplane import Call, Count, Exact, Lpm, Replica
from p4reduce_targets.sim import Switch, load
from tests.support.dataplane import frames
from tests.support.dataplane.frames import NO_KEY, Aggregation, Host, Values
from tests.support.dataplane.switch import CONTROLLER, OUTCOME_NAMES, SWITCH

LANES, BLOCK = 4, 64
WORKERS, CPU_PORT = 3, 510
JOB, GENERATION, GROUP = 7, 2, 9
BASE, SEQ = 100, 6
HOSTS = [Host(f"02:00:00:00:00:{rank:02x}", f"10.0.0.{rank}", 4000 + rank) for rank in range(WORKERS)]


@pytest.fixture
def switch() -> Switch:
    """A job of three workers at ports 1, 2 and 3; the switch has an address of its own."""
    made = load(files("p4reduce_controller.compiled").joinpath("p4reduce.json").read_bytes())
    own = Call("SwitchIngress.own_address.own", (frames.mac_number(SWITCH.mac),))
    made.insert("SwitchIngress.own_address.own_addresses", (Exact(frames.ip_number(SWITCH.ip)),), 0, own)
    for rank, host in enumerate(HOSTS):
        ip = frames.ip_number(host.ip)
        key = (Exact(rank + 1), Exact(ip), Exact(host.udp_port), Exact(JOB), Exact(GENERATION), Exact(rank))
        admit = Call("SwitchIngress.aggregation.admission.admit", (1 << rank, 0b111, BASE, 4, GROUP))
        made.insert("SwitchIngress.aggregation.admission.jobs", key, 0, admit)
        address = Call("SwitchEgress.delivery.address", (frames.mac_number(host.mac), ip, host.udp_port))
        made.insert("SwitchEgress.delivery.workers", (Exact(JOB), Exact(rank + 1)), 0, address)
    made.set_group(GROUP, [Replica(rank + 1, rank + 1) for rank in range(WORKERS)])
    return made


def data(rank: int, values: dict[int, Values] | None = None, **more: int) -> Aggregation:
    """A worker's packet: lanes 0 and 2 are active; its keys are those of its rank."""
    fields = {"op": frames.DATA, "active": 0b0101, "worker": rank, "job": JOB, "generation": GENERATION, "slot": 2}
    keys = tuple(1000 * (rank + 1) + lane for lane in range(LANES))
    return Aggregation(**{**fields, "seq": SEQ, "fingerprint": 5, **more}, keys=keys, values=values or {})


def send(switch: Switch, rank: int, packet: Aggregation) -> list[tuple[int, bytes]]:
    return switch.process(rank + 1, frames.frame(HOSTS[rank], SWITCH, packet))


def answer(rank: int, packet: Aggregation) -> tuple[int, bytes]:
    """What the switch sends a worker: all of its frame."""
    sender = Host(SWITCH.mac, SWITCH.ip)
    return rank + 1, frames.frame(sender, HOSTS[rank], packet)


def outcomes(switch: Switch) -> dict[str, int]:
    counts = {
        name: switch.read_counter("SwitchIngress.aggregation.outcomes", i) for i, name in enumerate(OUTCOME_NAMES)
    }
    return {name: count.packets for name, count in counts.items() if count.packets}


def some_values(seed: int) -> Values:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, BLOCK, np.int32)


def test_a_round_and_its_replays(switch: Switch) -> None:
    values = {(rank, lane): some_values(10 * rank + lane) for rank in range(WORKERS) for lane in (0, 2)}
    assert send(switch, 1, data(1, {0: values[1, 0]})) == []
    status = data(1, op=frames.STATUS)
    status = Aggregation(**{**vars(status), "active": 0, "keys": (0b010, 0, 0, 0)})
    assert send(switch, 1, data(1, {0: values[1, 0]})) == [answer(1, status)]
    assert send(switch, 0, data(0)) == []
    results = send(switch, 2, data(2, {0: values[2, 0], 2: values[2, 2]}))
    sums = {0: values[1, 0] + values[2, 0], 2: values[2, 2]}
    result = Aggregation(**{**vars(data(2, sums, op=frames.RESULT)), "keys": data(0).keys})
    assert results == [answer(rank, result) for rank in range(WORKERS)]
    again = Aggregation(**{**vars(result), "worker": 0})
    assert send(switch, 0, data(0)) == [answer(0, again)]
    assert outcomes(switch) == {"started": 1, "added": 2, "completed": 1, "ahead": 1, "replayed": 1}


def test_next_round_forgets_the_last(switch: Switch) -> None:
    for seq in (SEQ, SEQ + 2):
        for rank in range(WORKERS):
            sent = send(switch, rank, data(rank, {0: some_values(rank), 2: some_values(rank)}, seq=seq))
    total = sum((some_values(rank) for rank in range(WORKERS)), np.zeros(BLOCK, np.int32))
    assert sent[0][1][-4 * BLOCK :] == total.astype(">i4").tobytes()
    assert send(switch, 0, data(0, {0: some_values(0)}, seq=SEQ)) == []
    assert outcomes(switch) == {"started": 2, "added": 4, "completed": 2, "stale": 1}


def test_packets_that_change_nothing(switch: Switch) -> None:
    assert send(switch, 0, data(0)) == []
    error = Aggregation(**{**vars(data(1, op=frames.ERROR)), "active": 0, "fingerprint": 5, "keys": (0x105, 0, 0, 0)})
    assert send(switch, 1, data(1, fingerprint=0x105)) == [answer(rank, error) for rank in range(WORKERS)]
    for odd in (
        data(1, generation=3),
        data(2),
        data(1, slot=3),
        data(1, slot=4),
        data(1, active=0x11),
        data(1, version=2),
    ):
        assert send(switch, 1, odd) == []
    assert send(switch, 1, data(1, op=frames.RESET)) == []
    right = frames.frame(HOSTS[1], SWITCH, data(1))
    for broken in (right[:-1], right[:60], right[:40], right[:24] + b"\x77" + right[25:]):
        assert switch.process(2, broken) == []
    assert outcomes(switch) == {
        "started": 1,
        "mismatch": 1,
        "not_admitted": 2,
        "bad_slot": 2,
        "malformed": 5,
        "forbidden": 1,
    }


def packet_out(packet: Aggregation, group: int = 0) -> bytes:
    frame = frames.frame(CONTROLLER, SWITCH, packet)
    return (1 << 31 | group).to_bytes(4, "big") + frame


def test_controller_resets_queries_and_aborts(switch: Switch) -> None:
    none = (NO_KEY,) * LANES
    reset = Aggregation(frames.RESET, slot=BASE + 2, seq=SEQ - 2, keys=none)
    ack = (CPU_PORT << 32).to_bytes(6, "big") + frames.frame(CONTROLLER, SWITCH, reset)
    assert switch.process(CPU_PORT, packet_out(reset)) == [(CPU_PORT, ack)]
    send(switch, 1, data(1, {0: some_values(1)}))
    room = {lane: np.zeros(BLOCK, np.int32) for lane in range(LANES)}
    query = Aggregation(frames.QUERY, slot=BASE + 2, active=15, keys=none, values=room)
    ((port, told),) = switch.process(CPU_PORT, packet_out(query))
    assert (port, told[:6]) == (CPU_PORT, (CPU_PORT << 32 | 0b010).to_bytes(6, "big"))
    held = Aggregation(**{**vars(query), "seq": SEQ, "fingerprint": 5, "keys": data(1).keys})
    held = Aggregation(**{**vars(held), "values": {**room, 0: some_values(1)}})
    assert told[6:] == frames.frame(CONTROLLER, SWITCH, held)
    abort = Aggregation(frames.ABORT, job=JOB, generation=GENERATION, worker=1, seq=7, keys=(3, 0, 0, 0))
    copies = switch.process(CPU_PORT, packet_out(abort, GROUP))
    sender = Host(CONTROLLER.mac, CONTROLLER.ip, CONTROLLER.udp_port)
    assert copies == [(rank + 1, frames.frame(sender, host, abort)) for rank, host in enumerate(HOSTS)]


def test_hello_goes_to_the_controller(switch: Switch) -> None:
    hello = data(2, op=frames.HELLO, active=0)
    frame = frames.frame(HOSTS[2], SWITCH, hello)
    assert switch.process(3, frame) == [(CPU_PORT, (3 << 32).to_bytes(6, "big") + frame)]


def test_losses(switch: Switch) -> None:
    lose_all = Call("SwitchEgress.drop_simulator.lose", (2**32 - 1,))
    switch.insert("SwitchEgress.drop_simulator.loss_rates", (Exact(2),), 0, lose_all)
    for rank in range(WORKERS):
        sent = send(switch, rank, data(rank))
    assert [port for port, _ in sent] == [1, 3]
    assert switch.read_counter("SwitchEgress.drop_simulator.losses", 2) == Count(1, 76)
    assert switch.read_counter("SwitchEgress.drop_simulator.losses", 1) == Count(0, 0)


def test_it_bridges_and_routes_and_answers_arp(switch: Switch) -> None:
    frame = frames.udp_frame(HOSTS[0], HOSTS[1], b"hello")
    assert switch.process(1, frame) == []
    switch.set_group(1, [Replica(port, 0) for port in (1, 2, 3)])
    switch.set_default("SwitchIngress.forwarding.mac_addresses", Call("SwitchIngress.forwarding.flood", (1,)))
    assert switch.process(1, frame) == [(2, frame), (3, frame)]
    router = Host("02:5a:00:00:00:99", HOSTS[1].ip)
    gateway = (Exact(frames.mac_number(router.mac)),)
    switch.insert("SwitchIngress.forwarding.router_macs", gateway, 0, Call("NoAction"))
    macs = (frames.mac_number(router.mac), frames.mac_number(HOSTS[1].mac))
    route = Call("SwitchIngress.forwarding.route", (2, *macs))
    switch.insert("SwitchIngress.forwarding.ipv4_routes", (Lpm(frames.ip_number("10.0.0.0"), 24),), 0, route)
    routed = frames.udp_frame(HOSTS[0], Host(router.mac, HOSTS[1].ip), b"hello")
    expected = frames.udp_frame(Host(router.mac, HOSTS[0].ip, HOSTS[0].udp_port), HOSTS[1], b"hello", ttl=63)
    expected = expected[:36] + HOSTS[1].udp_port.to_bytes(2, "big") + expected[38:]
    routed = routed[:36] + HOSTS[1].udp_port.to_bytes(2, "big") + routed[38:]
    assert switch.process(1, routed) == [(2, expected)]
    asked = frames.arp(1, HOSTS[0], Host("00:00:00:00:00:00", SWITCH.ip))
    told = frames.arp(2, SWITCH, HOSTS[0], destination=HOSTS[0].mac)
    assert switch.process(1, asked) == [(1, told)]
