# SPDX-License-Identifier: Apache-2.0
"""The data plane's writes and reads as updates and entries of BF Runtime, on a client that only notes them."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from google.protobuf import text_format

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, ReadRefused, UpdateError
from p4reduce_targets.bfrt.dataplane import BfrtDataPlane
from p4reduce_targets.bfrt.schema import Schema
from p4reduce_targets.dataplane import Call, Count, Exact, Key, Lpm, MeterConfig, Replica, Ternary
from tests.targets.bfrt import schemas
from tests.targets.bfrt.noting_client import NotingClient

SCHEMA = Schema.parse(schemas.PROGRAM, schemas.MULTICAST)
KEY: Key = (Exact(300), Lpm(0x0A000000, 8))
CALL = Call("Ingress.admit", (7, 0xABC))
RULE: Key = (Ternary(0x10, 0xF0), Exact(5))
EXISTS = UpdateError(grpc.StatusCode.ALREADY_EXISTS, "Table Add failed Already exists")
MISSING = UpdateError(grpc.StatusCode.NOT_FOUND, "Object not found")
GROUP, NODE = 0xFF010001, 0xFF010002


@pytest.fixture
def client() -> NotingClient:
    return NotingClient()


@pytest.fixture
def plane(client: NotingClient) -> BfrtDataPlane:
    plane = BfrtDataPlane(client, SCHEMA)
    plane.run()
    client.requests.clear()
    client.reads.clear()
    return plane


def updated(text: str) -> pb.Update:
    return text_format.Parse(text, pb.Update())


def sent(client: NotingClient) -> list[str]:
    """Return the one request in short: for each update its type, table, and node or group."""
    (request,) = client.requests
    return [short(update) for update in request]


def short(update: pb.Update) -> str:
    entry = update.entity.table_entry
    table = {GROUP: "group", NODE: "node"}.get(entry.table_id, str(entry.table_id))
    key = int.from_bytes(entry.key.fields[0].exact.value, "big")
    members = [f"{value >> 16}.{value & 0xFFFF}" for field in entry.data.fields[:1] for value in field.int_arr_val.val]
    ports = [str(port) for field in entry.data.fields[2:] for port in field.int_arr_val.val]
    name = f"{key >> 16}.{key & 0xFFFF}" if table == "node" else str(key)
    kind = pb.Update.Type.Name(update.type) + (" remove" if entry.table_flags.mod_del else "")
    return " ".join([kind, table, name, *(members if table == "group" else ports)])


def test_an_entry(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.insert("Ingress.jobs", KEY, 0, CALL)
    key = r"""key {
        fields { field_id: 1 exact { value: "\001\054" } }
        fields { field_id: 2 lpm { value: "\012\000\000\000" prefix_len: 8 } }
    }"""
    data = r"""data {
        action_id: 11
        fields { field_id: 1 stream: "\000\000\000\007" }
        fields { field_id: 2 stream: "\012\274" }
    }"""
    entry = f"entity {{ table_entry {{ table_id: 1 {key} {data} }} }}"
    assert client.requests == [[updated(f"type: INSERT {entry}")]]
    plane.modify("Ingress.jobs", KEY, 0, CALL)
    assert client.requests[1:] == [[updated(f"type: MODIFY {entry}")]]
    plane.delete("Ingress.jobs", KEY, 0)
    assert client.requests[2:] == [[updated(f"type: DELETE entity {{ table_entry {{ table_id: 1 {key} }} }}")]]


def test_a_ternary_entry_has_its_priority_turned_round(plane: BfrtDataPlane, client: NotingClient) -> None:
    """In BF Runtime the lowest number wins."""
    for priority in (1, 2, (1 << 24) - 1):
        plane.insert("Ingress.rules", RULE, priority, Call("Ingress.discard"))
    first, second, last = [request[0].entity.table_entry.key.fields for request in client.requests]
    assert first[0] == text_format.Parse(r'field_id: 1 ternary { value: "\020" mask: "\360" }', pb.KeyField())
    assert first[1] == text_format.Parse(r'field_id: 2 exact { value: "\005" }', pb.KeyField())
    assert [fields[2].field_id for fields in (first, second, last)] == [65537] * 3
    numbers = [int.from_bytes(fields[2].exact.value, "big") for fields in (first, second, last)]
    assert numbers == [(1 << 24) - 2, (1 << 24) - 3, 0]
    assert len(first[2].exact.value) == 4


def test_default_actions(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_default("Ingress.jobs", Call("NoAction"))
    plane.set_default("Ingress.jobs", None)
    entry = "entity { table_entry { table_id: 1 is_default_entry: true %s } }"
    assert client.requests == [
        [updated(f"type: MODIFY {entry}" % "data { action_id: 13 }")],
        [updated(f"type: DELETE {entry}" % "")],
    ]
    with pytest.raises(ValueError, match=r"the default action of Ingress\.rules is constant"):
        plane.set_default("Ingress.rules", None)


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda plane: plane.insert("Ingress.none", KEY, 0, CALL), "no table Ingress.none"),
        (lambda plane: plane.insert("Ingress.hellos", KEY, 0, CALL), "no table Ingress.hellos"),
        (lambda plane: plane.insert("Ingress.jobs", KEY, 0, Call("Ingress.none")), "has no action Ingress.none"),
        (lambda plane: plane.read_counters([("Ingress.none", 0)]), "no counter Ingress.none"),
        (lambda plane: plane.set_meter("Ingress.outcomes", 0, None), "no meter Ingress.outcomes"),
    ],
)
def test_names_that_the_program_lacks(
    plane: BfrtDataPlane, write: Callable[[BfrtDataPlane], None], complaint: str
) -> None:
    with pytest.raises(KeyError, match=complaint):
        write(plane)


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda plane: plane.insert("Ingress.jobs", KEY[:1], 0, CALL), "2 key fields, and this key 1"),
        (lambda plane: plane.insert("Ingress.jobs", (Exact(512), KEY[1]), 0, CALL), "port: 512 does not fit in 9 bits"),
        (lambda plane: plane.insert("Ingress.jobs", (Exact(1), Lpm(0, 33)), 0, CALL), "accepted are 0 to 32"),
        (lambda plane: plane.insert("Ingress.jobs", (Exact(1), Exact(0)), 0, CALL), "is Exact, and the field's is LPM"),
        (lambda plane: plane.insert("Ingress.jobs", KEY, 1, CALL), "has no priorities, and this one is 1"),
        (
            lambda plane: plane.insert("Ingress.rules", RULE, 0, Call("Ingress.discard")),
            "priority 0; accepted are 1 to",
        ),
        (
            lambda plane: plane.insert("Ingress.rules", RULE, 1 << 24, Call("Ingress.discard")),
            "priority 16777216; accepted are 1 to",
        ),
        (
            lambda plane: plane.insert("Ingress.jobs", KEY, 0, Call("Ingress.admit", (1,))),
            "2 parameters, and this call 1",
        ),
        (
            lambda plane: plane.insert("Ingress.jobs", KEY, 0, Call("Ingress.admit", (1, 4096))),
            "group: 4096 does not fit",
        ),
        (lambda plane: plane.read_counters([("Ingress.outcomes", 17)]), "no index 17: 0 to 16"),
        (lambda plane: plane.write_counter("Ingress.outcomes", -1, Count(0, 0)), "no index -1: 0 to 16"),
        (lambda plane: plane.read_direct_counters([("Ingress.rules", RULE, 1)]), "rules has no direct counter"),
        (lambda plane: plane.set_group(0, ()), "multicast group 0: accepted are 1 to 65535"),
        (lambda plane: plane.set_group(1, [Replica(1, 0), Replica(1, 0)]), "is there twice"),
        (lambda plane: plane.set_group(1, [Replica(1, 1 << 16)]), "instance 65536; accepted are 0 to 65535"),
        (lambda plane: plane.set_group(1, [Replica(72, 1)]), "the chip has no port 72"),
        (lambda plane: plane.set_group(1, [Replica(511, 1)]), "the chip has no port 511"),
        (lambda plane: plane.set_group(1, [Replica(512, 1)]), "the chip has no port 512"),
    ],
)
def test_values_that_do_not_fit(
    plane: BfrtDataPlane, client: NotingClient, write: Callable[[BfrtDataPlane], None], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        write(plane)
    assert not client.requests


def test_refusals_have_the_switchs_words(plane: BfrtDataPlane, client: NotingClient) -> None:
    client.refuses = lambda _: EXISTS
    with pytest.raises(ValueError, match=r"Ingress\.jobs: the switch refuses this: Table Add failed Already exists"):
        plane.insert("Ingress.jobs", KEY, 0, CALL)
    client.refuses = lambda _: MISSING
    with pytest.raises(KeyError, match=r"Ingress\.jobs: the switch refuses this: Object not found"):
        plane.delete("Ingress.jobs", KEY, 0)


def test_a_batch_is_one_request_with_its_errors_by_label(plane: BfrtDataPlane, client: NotingClient) -> None:
    client.refuses = lambda update: EXISTS if update.type == pb.Update.INSERT else None
    with plane.batch() as batch:
        batch.label = 5
        plane.insert("Ingress.jobs", KEY, 0, CALL)
        plane.write_direct_counter("Ingress.jobs", KEY, 0, Count(1, 2))
        batch.label = 6
        plane.modify("Ingress.jobs", KEY, 0, CALL)
        assert not client.requests
    assert [update.type for update in client.requests[0]] == [pb.Update.INSERT, pb.Update.MODIFY]
    assert list(batch.errors) == [5]
    assert isinstance(batch.errors[5], ValueError)
    client.requests.clear()
    plane.modify("Ingress.jobs", KEY, 0, CALL)
    assert len(client.requests) == 1


def test_counters(plane: BfrtDataPlane, client: NotingClient) -> None:
    answer = r"fields { field_id: 65553 stream: '\000\000\000\000\000\000\001\000' }"
    answer += r"fields { field_id: 65554 stream: '\000\000\000\000\000\000\000\002' }"
    entry = text_format.Parse(f"data {{ {answer} }}", pb.TableEntry())
    client.answers = [[entry, pb.TableEntry(), entry]]
    cells = [("Ingress.outcomes", 16), ("Ingress.outcomes", 0), ("Ingress.losses", 7)]
    assert plane.read_counters(cells) == [Count(2, 256), Count(0, 0), Count(2, 0)]
    (wanted,) = client.reads
    assert not client.requests
    assert all(entry.table_flags.from_hw for entry in wanted)
    assert [entry.table_id for entry in wanted] == [3, 3, 4]
    assert [entry.key.fields[0].exact.value for entry in wanted] == [b"\0\0\0\x10", b"\0\0\0\0", b"\0\0\0\x07"]


def test_many_counters_are_synchronized_by_table(plane: BfrtDataPlane, client: NotingClient) -> None:
    client.answers = [[pb.TableEntry()] * 66]
    assert plane.read_counters([("Ingress.outcomes", 16), ("Ingress.losses", 0)] * 33) == [Count(0, 0)] * 66
    (syncs,), (wanted,) = client.requests, client.reads
    assert [update.entity.table_operation.table_id for update in syncs] == [3, 4]
    assert {update.entity.table_operation.table_operations_type for update in syncs} == {"Sync"}
    assert not any(entry.table_flags.from_hw for entry in wanted)
    client.refuses = lambda _: EXISTS
    with pytest.raises(ValueError, match="counters cannot be read from the chip: Table Add failed"):
        plane.read_counters([("Ingress.outcomes", 16)] * 66)


def test_no_counters_are_no_calls(plane: BfrtDataPlane, client: NotingClient) -> None:
    assert plane.read_counters([]) == []
    assert not client.requests


def test_writing_a_counter_writes_the_fields_that_it_has(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.write_counter("Ingress.outcomes", 1, Count(2, 3))
    plane.write_counter("Ingress.losses", 1, Count(2, 3))
    both, packets = [request[0].entity.table_entry.data.fields for request in client.requests]
    assert [(field.field_id, field.stream[-1]) for field in both] == [(65553, 3), (65554, 2)]
    assert [(field.field_id, field.stream) for field in packets] == [(65554, b"\0\0\0\0\0\0\0\x02")]
    assert client.requests[0][0].type == pb.Update.MODIFY


def test_direct_counters(plane: BfrtDataPlane, client: NotingClient) -> None:
    count = text_format.Parse(r"data { action_id: 11 fields { field_id: 65554 stream: '\002' } }", pb.TableEntry())
    client.answers = [[count]]
    assert plane.read_direct_counters([("Ingress.jobs", KEY, 0)]) == [Count(2, 0)]
    assert client.reads[0][0].table_flags.from_hw
    assert [field.field_id for field in client.reads[0][0].data.fields] == [65553, 65554]
    client.answers = [ReadRefused("", [None, MISSING])]
    with pytest.raises(KeyError, match=r"Ingress\.jobs: the switch refuses this: Object not found"):
        plane.read_direct_counters([("Ingress.jobs", KEY, 0)] * 2)
    client.answers = [[count] * 65]
    assert plane.read_direct_counters([("Ingress.jobs", KEY, 0)] * 65) == [Count(2, 0)] * 65
    assert client.requests[0][0].entity.table_operation.table_operations_type == "SyncCounters"


def test_writing_a_direct_counter_needs_a_flag(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.write_direct_counter("Ingress.jobs", KEY, 0, Count(2, 3))
    ((update,),) = client.requests
    entry = update.entity.table_entry
    assert update.type == pb.Update.MODIFY
    assert entry.table_flags.reset_stats
    assert entry.data.action_id == 0
    assert [field.field_id for field in entry.data.fields] == [65553, 65554]


def test_an_entry_and_its_counter_are_one_update(plane: BfrtDataPlane, client: NotingClient) -> None:
    with plane.batch() as batch:
        plane.insert("Ingress.jobs", KEY, 0, CALL)
        plane.write_direct_counter("Ingress.jobs", KEY, 0, Count(2, 3))
        batch.label = 1  # of another update, which can be refused alone
        plane.write_direct_counter("Ingress.jobs", KEY, 0, Count(4, 5))
    inserted, counted = (update.entity.table_entry for update in client.requests[0])
    assert [(field.field_id, field.stream[-1]) for field in inserted.data.fields[-2:]] == [(65553, 3), (65554, 2)]
    assert [(field.field_id, field.stream[-1]) for field in counted.data.fields] == [(65553, 5), (65554, 4)]


def rates(client: NotingClient) -> list[int]:
    entry = client.requests[-1][0].entity.table_entry
    assert [field.field_id for field in entry.data.fields] == [65549, 65550, 65551, 65552]
    assert {len(field.stream) for field in entry.data.fields} == {8}
    return [int.from_bytes(field.stream, "big") for field in entry.data.fields]


def test_meters_of_packets(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_meter("Ingress.hellos", 511, MeterConfig(cir=200, cburst=100, pir=300, pburst=150))
    assert rates(client) == [200, 300, 100, 150]
    plane.set_meter("Ingress.hellos", 0, None)
    assert rates(client) == [2**64 - 1] * 4


def test_the_slowest_meters_are_as_slow_as_the_chip_can(plane: BfrtDataPlane, client: NotingClient) -> None:
    """The driver would round slower ones to no packets at all."""
    plane.set_meter("Ingress.hellos", 0, MeterConfig(cir=1, cburst=1, pir=1, pburst=1))
    assert rates(client) == [12, 12, 2, 2]
    plane.set_meter("Ingress.hellos", 0, MeterConfig(cir=0, cburst=0, pir=1, pburst=1))
    assert rates(client)[:2] == [0, 12]


def test_meters_of_bytes_are_in_kilobits(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_meter("Ingress.bytes", 0, MeterConfig(cir=125_000, cburst=1, pir=125_001, pburst=0))
    assert rates(client) == [1000, 1001, 1, 1]
    plane.set_meter("Ingress.bytes", 0, None)
    assert rates(client) == [2**64 - 1] * 4


def test_a_group_is_made_of_a_node_for_each_instance(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_group(5, [Replica(1, 1), Replica(9, 2), Replica(2, 1)])
    assert sent(client) == ["INSERT node 5.1 1 2", "INSERT node 5.2 9", "INSERT group 5 5.1 5.2"]
    node, _, group = [update.entity.table_entry.data.fields for update in client.requests[0]]
    assert (node[0].field_id, node[0].stream) == (1, b"\0\x01")
    assert (node[1].field_id, node[1].WhichOneof("value")) == (2, "int_arr_val")
    assert [list(group[1].bool_arr_val.val), list(group[2].int_arr_val.val)] == [[False, False], [0, 0]]


def test_a_group_is_removed_before_its_nodes(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_group(5, [Replica(1, 1), Replica(9, 2)])
    client.requests.clear()
    plane.set_group(5, [])
    assert sent(client) == ["DELETE group 5", "DELETE node 5.1", "DELETE node 5.2"]
    client.requests.clear()
    plane.set_group(5, [])
    assert not client.requests


def test_a_changed_group_keeps_the_nodes_that_stay(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_group(5, [Replica(1, 1), Replica(2, 2), Replica(3, 3)])
    client.requests.clear()
    plane.set_group(5, [Replica(4, 4), Replica(1, 1), Replica(7, 2), Replica(2, 2)])
    assert sent(client) == [
        "INSERT node 5.4 4",
        "MODIFY_INC group 5 5.4",
        "MODIFY node 5.2 7 2",
        "MODIFY_INC remove group 5 5.3",
        "DELETE node 5.3",
    ]
    client.requests.clear()
    plane.set_group(5, [Replica(4, 4), Replica(1, 1), Replica(2, 2), Replica(7, 2)])
    assert not client.requests


def refuse(*texts: str) -> Callable[[pb.Update], UpdateError | None]:
    return lambda update: EXISTS if short(update) in texts else None


def test_what_was_done_of_a_refused_group_is_taken_back(plane: BfrtDataPlane, client: NotingClient) -> None:
    client.refuses = refuse("INSERT node 5.2 9", "INSERT group 5 5.1 5.2")
    with pytest.raises(ValueError, match=r"\$pre\.node: the switch refuses this"):
        plane.set_group(5, [Replica(1, 1), Replica(9, 2)])
    assert [short(update) for update in client.requests[1]] == ["DELETE node 5.1"]
    client.requests.clear()
    client.refuses = lambda _: None
    plane.set_group(5, [Replica(1, 1)])
    assert sent(client) == ["INSERT node 5.1 1", "INSERT group 5 5.1"]


def test_a_refused_change_of_a_group_is_taken_back(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_group(5, [Replica(1, 1), Replica(2, 2)])
    client.requests.clear()
    client.refuses = refuse("MODIFY node 5.1 9")
    with pytest.raises(ValueError, match="refuses"):
        plane.set_group(5, [Replica(9, 1), Replica(3, 3)])
    assert [short(update) for update in client.requests[1]] == [
        "INSERT node 5.2 2",
        "MODIFY_INC group 5 5.2",
        "MODIFY_INC remove group 5 5.3",
        "DELETE node 5.3",
    ]


def test_a_refused_removal_puts_nothing_back_that_stayed(plane: BfrtDataPlane, client: NotingClient) -> None:
    plane.set_group(5, [Replica(1, 1)])
    client.requests.clear()
    client.refuses = refuse("DELETE node 5.1")
    with pytest.raises(ValueError, match="refuses"):
        plane.set_group(5, [])
    assert [short(update) for update in client.requests[1]] == ["INSERT group 5 5.1"]


def test_what_cannot_be_taken_back_ends_the_connection(plane: BfrtDataPlane, client: NotingClient) -> None:
    client.refuses = refuse("INSERT group 5 5.1", "DELETE node 5.1")
    with pytest.raises((BfrtLost, ValueError)) as caught:
        plane.set_group(5, [Replica(1, 1)])
    assert "part of a refused multicast group is left: Table Add failed" in str(caught.value)
    assert isinstance(caught.value, BfrtLost)


def test_a_change_of_several_nodes_has_an_update_for_each(plane: BfrtDataPlane, client: NotingClient) -> None:
    """The server would add those before one that it refuses."""
    plane.set_group(5, [Replica(1, 1), Replica(2, 2)])
    client.requests.clear()
    client.refuses = refuse("INSERT node 5.4 4", "MODIFY_INC group 5 5.4")
    with pytest.raises(ValueError, match="refuses"):
        plane.set_group(5, [Replica(3, 3), Replica(4, 4)])
    assert [short(update) for update in client.requests[0]] == [
        "INSERT node 5.3 3",
        "INSERT node 5.4 4",
        "MODIFY_INC group 5 5.3",
        "MODIFY_INC group 5 5.4",
        "MODIFY_INC remove group 5 5.1",
        "MODIFY_INC remove group 5 5.2",
        "DELETE node 5.1",
        "DELETE node 5.2",
    ]
    assert [short(update) for update in client.requests[1]] == [
        "INSERT node 5.2 2",
        "INSERT node 5.1 1",
        "MODIFY_INC group 5 5.2",
        "MODIFY_INC group 5 5.1",
        "MODIFY_INC remove group 5 5.3",
        "DELETE node 5.3",
    ]


def test_run_clears_the_switch_and_then_does_the_writes_so_far(client: NotingClient) -> None:
    plane = BfrtDataPlane(client, SCHEMA)
    with plane.batch() as batch:
        plane.insert("Ingress.jobs", KEY, 0, CALL)
    plane.set_group(5, [Replica(1, 1), Replica(2, 2)])
    assert batch.errors == {}
    assert not client.requests
    group, node = (
        [pb.TableEntry(table_id=table, key=pb.TableKey(fields=[pb.KeyField(exact=pb.KeyField.Exact(value=value))]))]
        for table, value in ((GROUP, b"\0\x07"), (NODE, b"\0\x07\0\x02"))
    )
    client.answers = [group, node]
    plane.run()
    *cleared, written = client.requests
    assert [[update.entity.table_entry.table_id for update in request] for request in cleared] == [
        *([table] for table in (1, 2, 3, 4, 5, 6, 7)),
        [GROUP],
        [NODE],
    ]
    assert {update.type for request in cleared for update in request} == {pb.Update.DELETE}
    assert not any(request[0].entity.table_entry.HasField("key") for request in cleared[:7])
    assert [short(request[0]) for request in cleared[7:]] == ["DELETE group 7", "DELETE node 7.2"]
    assert [update.type for update in written] == [pb.Update.INSERT] * 4
    assert [short(update) for update in written[1:]] == [
        "INSERT node 5.1 1",
        "INSERT node 5.2 2",
        "INSERT group 5 5.1 5.2",
    ]


def test_run_tells_of_a_refused_write(client: NotingClient) -> None:
    plane = BfrtDataPlane(client, SCHEMA)
    plane.insert("Ingress.jobs", KEY, 0, CALL)
    client.refuses = lambda update: EXISTS if update.type == pb.Update.INSERT else None
    with pytest.raises(ValueError, match=r"Ingress\.jobs: the switch refuses this"):
        plane.run()


def test_a_table_with_constant_entries_need_not_be_cleared(client: NotingClient) -> None:
    constant = UpdateError(grpc.StatusCode.INVALID_ARGUMENT, "Table Entry delete all failed Invalid arguments")
    client.refuses = lambda update: constant if update.entity.table_entry.table_id == 2 else None
    BfrtDataPlane(client, SCHEMA).clear()
    client.refuses = lambda update: constant if update.entity.table_entry.table_id == 7 else None
    with pytest.raises(BfrtError, match=r"pipe\.Ingress\.seqs cannot be cleared: Table Entry delete all failed"):
        BfrtDataPlane(client, SCHEMA).clear()
