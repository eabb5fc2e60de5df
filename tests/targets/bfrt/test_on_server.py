# SPDX-License-Identifier: Apache-2.0
"""The data plane and the tests' BF Runtime server understand each other, with a made-up program."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from p4reduce_targets.bfrt.client import BfrtLost, Client
from p4reduce_targets.bfrt.dataplane import BfrtDataPlane
from p4reduce_targets.bfrt.schema import Schema
from p4reduce_targets.dataplane import Call, Count, Exact, Key, Lpm, MeterConfig, Replica, Ternary
from tests.support.bfrt.server import Server
from tests.support.bfrt.tables import MatchTable
from tests.targets.bfrt import made_up
from tests.targets.bfrt.made_up import Plane

JOBS, RULES, OUTCOMES, LOSSES = (f"Ingress.{name}" for name in ("jobs", "rules", "outcomes", "losses"))
KEY: Key = (Exact(300), Lpm(0x0A000000, 8))
OTHER: Key = (Exact(300), Lpm(0x0B000000, 8))
CALL = Call("Ingress.admit", (7, 0xABC))
DISCARD = Call("Ingress.discard")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(made_up.device()) as server:
        yield server
        assert server.device.remarks == [], "what drivers accept, but is probably wrong"


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server.address, timeout_s=5)
    client.bind(made_up.CONFIG.p4_name)
    yield client
    client.close()


def made(client: Client) -> BfrtDataPlane:
    fixed = client.running().non_p4_config.bfruntime_info
    return BfrtDataPlane(client, Schema.parse(made_up.CONFIG.bfruntime_info, fixed))


@pytest.fixture
def plane(client: Client) -> BfrtDataPlane:
    plane = made(client)
    plane.run()
    return plane


def there(server: Server) -> Plane:
    """Return what the switch has."""
    plane = server.device.plane
    assert isinstance(plane, Plane)
    return plane


def test_entries(server: Server, plane: BfrtDataPlane) -> None:
    plane.insert(JOBS, KEY, 0, CALL)
    plane.insert(JOBS, OTHER, 0, CALL)
    plane.modify(JOBS, OTHER, 0, DISCARD)
    assert there(server).entries == {(JOBS, KEY, 0): CALL, (JOBS, OTHER, 0): DISCARD}
    plane.delete(JOBS, KEY, 0)
    assert there(server).entries == {(JOBS, OTHER, 0): DISCARD}
    with pytest.raises(ValueError, match=r"Ingress\.jobs: the switch refuses this: Table Add failed .* Already exists"):
        plane.insert(JOBS, OTHER, 0, CALL)
    with pytest.raises(KeyError, match="Object not found"):
        plane.modify(JOBS, KEY, 0, CALL)
    with pytest.raises(KeyError, match="Object not found"):
        plane.delete(JOBS, KEY, 0)
    with pytest.raises(ValueError, match="Invalid arguments"):
        plane.insert(JOBS, KEY, 0, Call("NoAction"))  # which is for default entries only


def test_a_full_table(server: Server, plane: BfrtDataPlane) -> None:
    server.device.limits[f"pipe.{JOBS}"] = 1
    plane.insert(JOBS, KEY, 0, CALL)
    with pytest.raises(ValueError, match="Not enough space"):
        plane.insert(JOBS, OTHER, 0, CALL)


def test_priorities_keep_their_order(server: Server, plane: BfrtDataPlane) -> None:
    """The key's value is masked; the same key with another priority is another entry."""
    for priority in (5, 1, 1000):
        plane.insert(RULES, (Ternary(0x1F, 0xF0), Exact(5)), priority, DISCARD)
    with pytest.raises(ValueError, match="Already exists"):
        plane.insert(RULES, (Ternary(0x10, 0xF0), Exact(5)), 5, DISCARD)
    found = sorted(priority for _, _, priority in there(server).entries)
    assert {key for _, key, _ in there(server).entries} == {(Ternary(0x10, 0xF0), Exact(5))}
    assert [after - before for before, after in pairwise(found)] == [4, 995]
    plane.delete(RULES, (Ternary(0x10, 0xF0), Exact(5)), 1000)
    assert max(priority for _, _, priority in there(server).entries) == found[1]


def test_default_actions(server: Server, plane: BfrtDataPlane) -> None:
    plane.set_default(JOBS, CALL)
    assert there(server).defaults == {JOBS: CALL}
    plane.set_default(JOBS, None)
    assert there(server).defaults == {}


def test_counters(server: Server, plane: BfrtDataPlane) -> None:
    """A read finds the chip's counts, although nobody has read them before."""
    plane.write_counter(OUTCOMES, 3, Count(7, 8))
    there(server).cells[OUTCOMES, 16] = Count(2, 1 << 40)
    there(server).cells[LOSSES, 0] = Count(5, 0)
    cells = [(OUTCOMES, 16), (LOSSES, 0), (OUTCOMES, 3), (OUTCOMES, 0)]
    counts = [Count(2, 1 << 40), Count(5, 0), Count(7, 8), Count(0, 0)]
    assert plane.read_counters(cells) == counts
    there(server).cells[OUTCOMES, 16] = counts[0] = Count(3, 1)
    assert plane.read_counters(cells * 50) == counts * 50


def test_direct_counters(server: Server, plane: BfrtDataPlane) -> None:
    """A change of the action keeps the counter."""
    plane.insert(JOBS, KEY, 0, CALL)
    plane.write_direct_counter(JOBS, KEY, 0, Count(3, 4))
    plane.modify(JOBS, KEY, 0, DISCARD)
    assert plane.read_direct_counters([(JOBS, KEY, 0)]) == [Count(3, 4)]
    there(server).counts[JOBS, KEY, 0] = Count(30, 40)
    assert plane.read_direct_counters([(JOBS, KEY, 0)]) == [Count(30, 40)]
    there(server).counts[JOBS, KEY, 0] = Count(31, 41)
    assert plane.read_direct_counters([(JOBS, KEY, 0)] * 65) == [Count(31, 41)] * 65
    with pytest.raises(KeyError, match="Object not found"):
        plane.read_direct_counters([(JOBS, KEY, 0), (JOBS, OTHER, 0)])
    with pytest.raises(KeyError, match="Object not found"):
        plane.write_direct_counter(JOBS, OTHER, 0, Count(1, 1))


def test_meters(server: Server, plane: BfrtDataPlane) -> None:
    plane.set_meter("Ingress.hellos", 7, MeterConfig(cir=200, cburst=200, pir=200, pburst=200))
    config = there(server).meters["Ingress.hellos", 7]
    assert config is not None
    assert (config.cburst, config.pburst) == (200, 200)
    assert config.cir == config.pir == pytest.approx(200, rel=0.05)
    plane.set_meter("Ingress.hellos", 7, None)
    assert there(server).meters["Ingress.hellos", 7] is None


def test_the_slowest_meter_lets_some_packets_pass(server: Server, plane: BfrtDataPlane) -> None:
    """The chip rounds down, and would stop all."""
    plane.set_meter("Ingress.hellos", 7, MeterConfig(cir=1, cburst=1, pir=1, pburst=1))
    config = there(server).meters["Ingress.hellos", 7]
    assert config is not None
    assert 1 <= config.cir <= 12
    assert config.cburst == 2


def test_meters_of_bytes(server: Server, plane: BfrtDataPlane) -> None:
    plane.set_meter("Ingress.bytes", 0, MeterConfig(cir=1_000_000, cburst=32_000, pir=2_000_000, pburst=64_000))
    config = there(server).meters["Ingress.bytes", 0]
    assert config is not None
    assert config.cir == pytest.approx(1_000_000, rel=0.05)
    assert config.pir == pytest.approx(2_000_000, rel=0.05)
    plane.set_meter("Ingress.bytes", 0, None)
    assert there(server).meters["Ingress.bytes", 0] is None


def test_groups(server: Server, plane: BfrtDataPlane) -> None:
    groups = there(server).groups
    first = {Replica(4, 1), Replica(8, 2), Replica(12, 2)}
    plane.set_group(5, list(first))
    plane.set_group(6, [Replica(4, 1)])
    assert groups == {5: first, 6: {Replica(4, 1)}}
    second = {Replica(4, 1), Replica(16, 2), Replica(4, 3)}
    plane.set_group(5, list(second))
    assert groups[5] == second
    plane.set_group(5, [])
    assert groups[5] == set()
    assert set(server.device.engine.groups) == {6}
    assert len(server.device.engine.nodes) == 1
    plane.set_group(5, list(first))
    assert groups[5] == first


def test_a_refused_group_leaves_nothing(server: Server, client: Client, plane: BfrtDataPlane) -> None:
    """A node that nobody removed has a number that the group needs."""
    plane.set_group(5, [Replica(4, 1)])
    node = plane._group_steps(9, {}, {2: (4,)})[0]
    assert client.write([node.do]) == [None]
    with pytest.raises(ValueError, match=r"\$pre\.node: the switch refuses this: Table Add failed .* Already exists"):
        plane.set_group(9, [Replica(4, 1), Replica(8, 2)])
    assert set(server.device.engine.groups) == {5}
    assert len(server.device.engine.nodes) == 2
    assert not there(server).groups.get(9)
    assert client.write([node.undo] if node.undo else []) == [None]
    plane.set_group(9, [Replica(4, 1), Replica(8, 2)])
    assert there(server).groups[9] == {Replica(4, 1), Replica(8, 2)}


def test_batches(server: Server, plane: BfrtDataPlane) -> None:
    for port in (1, 2):
        plane.insert(JOBS, (Exact(port), Lpm(0, 0)), 0, CALL)
    server.calls.clear()
    with plane.batch() as batch:
        for batch.label in range(4):
            plane.insert(JOBS, (Exact(batch.label), Lpm(0, 0)), 0, CALL)
        assert not server.calls
    assert list(batch.errors) == [1, 2]
    assert server.calls == ["write"]
    assert len(there(server).entries) == 4


def test_a_new_data_plane_begins_with_an_empty_switch(server: Server, client: Client, plane: BfrtDataPlane) -> None:
    plane.insert(JOBS, KEY, 0, CALL)
    plane.insert(RULES, (Ternary(0x10, 0xF0), Exact(5)), 5, DISCARD)
    plane.set_default(JOBS, CALL)
    plane.write_counter(OUTCOMES, 3, Count(7, 8))
    plane.set_meter("Ingress.hellos", 7, MeterConfig(200, 200, 200, 200))
    plane.set_group(5, [Replica(4, 1), Replica(8, 2)])
    other = made(client)
    other.insert(JOBS, OTHER, 0, CALL)
    other.set_group(6, [Replica(4, 1), Replica(8, 2)])
    assert (JOBS, OTHER, 0) not in there(server).entries
    other.run()
    found = there(server)
    assert found.entries == {(JOBS, OTHER, 0): CALL}
    assert found.defaults == {}
    assert found.meters == {("Ingress.hellos", 7): None}
    assert {group: replicas for group, replicas in found.groups.items() if replicas} == {
        6: {Replica(4, 1), Replica(8, 2)}
    }
    assert set(server.device.engine.groups) == {6}
    assert other.read_counters([(OUTCOMES, 3)]) == [Count(0, 0)]


def test_a_new_data_plane_resets_the_default_action_of_a_table_with_constant_entries(
    server: Server, client: Client, plane: BfrtDataPlane
) -> None:
    (table,) = (table for table in server.device.tables.values() if table.name == f"pipe.{JOBS}")
    assert isinstance(table, MatchTable)
    plane.set_default(JOBS, CALL)
    table.constant = True
    made(client).run()
    assert there(server).defaults == {}


def test_a_server_that_is_gone(server: Server, plane: BfrtDataPlane) -> None:
    server.stop()
    with pytest.raises(BfrtLost):
        plane.insert(JOBS, KEY, 0, CALL)
    with pytest.raises(BfrtLost), plane.batch():
        plane.insert(JOBS, KEY, 0, CALL)
