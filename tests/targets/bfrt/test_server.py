# SPDX-License-Identifier: Apache-2.0
"""The BF Runtime server of the tests answers as the SDE's sources say: `bf-drivers/src/bf_rt` and the managers below.

Each test claims what those sources do, and names the function where a reader would not find it at once. The client
says what it is asked to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt import programs
from tests.support.bfrt.device import Device
from tests.support.bfrt.plain_client import PlainClient, drained
from tests.support.bfrt.ports import BOARDS
from tests.support.bfrt.schema import METER_FIELDS, NO_LIMIT, derive, parse
from tests.support.bfrt.server import Server
from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.targets import Unavailable
from tests.support.waiting import wait_until

pytestmark = pytest.mark.p4c

PROFILE = "tofino1-32"
MACS = "pipe.SwitchIngress.forwarding.mac_addresses"
FORWARD, FLOOD, DISCARD = (f"SwitchIngress.forwarding.{name}" for name in ("forward", "flood", "discard"))
ROUTES, ROUTE = "pipe.SwitchIngress.forwarding.ipv4_routes", "SwitchIngress.forwarding.route"
JOBS, ADMIT = "pipe.SwitchIngress.aggregation.admission.jobs", "SwitchIngress.aggregation.admission.admit"
OUTCOMES = "pipe.SwitchIngress.aggregation.outcomes"
HELLOS = "pipe.SwitchIngress.aggregation.hellos"
SEQS = "pipe.SwitchIngress.aggregation.slot_state.seqs"
LOSS_RATES, LOSE = "pipe.SwitchIngress.drop_simulator.loss_rates", "SwitchIngress.drop_simulator.lose"
HERE = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
THERE = Host("02:00:00:00:00:02", "10.0.0.2", 2222)
JOB = {"ingress_port": 4, "source_ip": 1, "source_port": 2, "job": 3, "generation": 4, "worker": 5}
ADMITTED = {"worker_bit": 1, "full_bitmap": 3, "pool_base": 0, "pool_halves": 2, "group": 9}
KINDS = {"MatchAction_Direct", "Counter", "Meter", "Register"}
PACKETS, BYTES = "$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES"


@pytest.fixture(scope="module")
def device() -> Device:
    try:
        return programs.device(PROFILE)
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def server(device: Device) -> Iterator[Server]:
    device.restart(programs.device_config(PROFILE))
    device.limits.clear()
    with Server(device) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[PlainClient]:
    """Return a client that is subscribed and bound."""
    with connect(server) as client:
        client.subscribe()
        client.bind()
        yield client


def connect(server: Server, number: int = 7) -> PlainClient:
    schemas = {**parse(server.device.fixed_schema), **parse(programs.device_config(PROFILE).bfruntime_info)}
    return PlainClient(server.address, schemas, number)


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> str:
    return f"{error.value.code().name} {error.value.details()}"  # type: ignore[attr-defined]


def mac(client: PlainClient, address: int, port: int) -> bfrt.TableEntry:
    return client.entry(MACS, {"mac": address}, {"port": port}, FORWARD)


# Clients and programs


def test_subscription(server: Server) -> None:
    with connect(server) as client:
        assert client.subscribe().subscribe.status.code == 0
        assert server.clients == {7: None}
        client.close_stream()
        assert client.end is grpc.StatusCode.OK
        wait_until(lambda: server.clients == {}, "the client is gone")


def test_a_client_id_that_is_taken(server: Server, client: PlainClient) -> None:
    """`BfRtServer::addConnection` refuses the second stream, and the first one stays."""
    with connect(server) as other, pytest.raises(AssertionError, match="INVALID_ARGUMENT Can't have two clients"):
        other.subscribe()
    assert not client.ended.is_set()
    assert client.write(("INSERT", mac(client, 1, 4))) == [""]


def test_a_stream_that_ends_before_it_subscribes_removes_client_0(server: Server) -> None:
    """`StreamChannel` calls `cleanupConnection` with the number that it has: 0."""
    with connect(server, number=0) as client, connect(server, number=9) as other:
        client.subscribe()
        other.open_stream()
        other.close_stream()
        wait_until(lambda: server.clients == {}, "client 0 is gone")


def test_one_client_to_a_program(server: Server, client: PlainClient) -> None:
    """`forwardingConfigBind` looks for the owner before it looks for the program."""
    with connect(server, number=1 << 31) as other:
        with pytest.raises(grpc.RpcError) as error:
            other.bind()
        assert refusal(error) == "UNAVAILABLE Unknown client. Client_id:-2147483648 Not ready"
        other.subscribe()
        with pytest.raises(grpc.RpcError) as error:
            other.bind()
        text = "Client ID -2147483648 trying to bind but Client ID 7 already owns this P4 Already exists"
        assert refusal(error) == f"ALREADY_EXISTS {text}"
        with pytest.raises(grpc.RpcError) as error:
            other.bind("another")
        assert refusal(error) == "NOT_FOUND Failed to find BfRtInfo for program another Object not found"
        with pytest.raises(grpc.RpcError) as error:
            other.set_config([], "BIND")
        assert refusal(error) == "INVALID_ARGUMENT Exactly one config message required. Invalid arguments"
        client.close_stream()
        wait_until(lambda: 7 not in server.clients, "the owner is gone")
        other.bind()


def test_calls_without_a_program(server: Server, client: PlainClient) -> None:
    """`getBfRtInfo` for subscribed clients, `getBfRtInfoIndependent` for others."""
    with connect(server, number=8) as other:
        with pytest.raises(grpc.RpcError) as error:
            other.write(("INSERT", mac(client, 1, 4)))
        assert refusal(error) == "NOT_FOUND Unable to obtain BF_RT info for () Object not found"
        other.subscribe()
        with pytest.raises(grpc.RpcError) as error:
            other.write(("INSERT", mac(client, 1, 4)))
        assert refusal(error) == "UNKNOWN Unable to get bound_program Unexpected error"
        with pytest.raises(grpc.RpcError) as error:
            other.read(client.entry(MACS))
        assert refusal(error) == "UNKNOWN Unable to get bound_program Unexpected error"
        with pytest.raises(grpc.RpcError) as error:
            client.write(("INSERT", mac(client, 1, 4)), device=1)
    text = "The device id retrieved for this client connection (0) does not match the device id 1 passed in"
    assert refusal(error) == f"INVALID_ARGUMENT {text} Invalid arguments"


def test_a_client_without_a_stream(server: Server, client: PlainClient) -> None:
    """It is there during its calls. After a call that is refused as a whole it stays, and can bind, for good."""
    entry = mac(client, 1, 4)
    with connect(server, number=8) as other:
        assert other.write(("INSERT", entry), name="p4reduce") == [""]
        with pytest.raises(grpc.RpcError) as error:
            other.bind("$SHARED")
        assert refusal(error) == "UNAVAILABLE Unknown client. Client_id:8 Not ready"
        with pytest.raises(grpc.RpcError):
            other.write(("INSERT", entry))
        client.close_stream()
        wait_until(lambda: server.clients == {}, "the owner is gone")
        other.bind()
    with connect(server, number=9) as next_one:
        next_one.subscribe()
        with pytest.raises(grpc.RpcError) as error:
            next_one.bind()
        assert refusal(error).startswith("ALREADY_EXISTS Client ID 9 trying to bind but Client ID 8 already owns")


def test_the_config_that_runs(client: PlainClient) -> None:
    answer = client.config()
    assert [config.p4_name for config in answer.config] == ["p4reduce"]
    assert answer.config[0] == programs.device_config(PROFILE)
    assert "$PORT" in {table.name for table in parse(answer.non_p4_config.bfruntime_info).values()}
    with pytest.raises(grpc.RpcError) as error:
        client.config(device=1)
    assert refusal(error) == "UNKNOWN Unexpected error in RPC handling"


def test_a_device_without_a_program(server: Server) -> None:
    """`BfRtDevMgrImpl::bfRtDeviceAdd` makes up the program $SHARED, which has the fixed tables alone."""
    server.restart()
    with connect(server) as client:
        (config,) = client.config().config
        assert (config.p4_name, list(config.profiles)) == ("$SHARED", [])
        client.subscribe()
        client.bind("$SHARED")
        (info,) = client.read(client.entry("$PORT_STR_INFO", {"$PORT_NAME": "3/0"}))
        assert client.values(info) == {"$DEV_PORT": 8}
        assert client.write(("INSERT", mac(client, 1, 4)))[0].startswith("NOT_FOUND Table not found for id ")


def test_installation(server: Server) -> None:
    """Installing empties all tables, tells all clients, and leaves those of other programs without their stream."""
    with connect(server, number=8) as watcher, connect(server) as client:
        watcher.subscribe()
        client.subscribe()
        client.bind()
        client.write(("INSERT", mac(client, 1, 4)), ("INSERT", port_entry(client, 0)))
        client.set_config([programs.device_config(PROFILE)], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
        for one in (client, watcher):
            kinds = [one.message().set_forwarding_pipeline_config_response for _ in range(2)]
            assert [kind.set_forwarding_pipeline_config_response_type for kind in kinds] == [0, 1]
        assert [entry for entry in client.read(client.entry(MACS)) if not entry.is_default_entry] == []
        assert client.read(client.entry("$PORT")) == []
        watcher.set_config([programs.device_config(PROFILE, "another")], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
        assert client.ended.wait(20)
        assert client.end is grpc.StatusCode.CANCELLED
        wait_until(lambda: server.clients == {8: None}, "the watcher alone is left, and is not bound")
        watcher.bind("another")


@pytest.mark.parametrize(
    ("change", "action", "answer"),
    [
        ({"pipe_scope": [0, 0]}, "VERIFY", "INVALID_ARGUMENT Invalid device config sent Invalid arguments"),
        ({"profile_name": "p" * 256}, "VERIFY", "INVALID_ARGUMENT Invalid device config sent Invalid arguments"),
        ({"pipe_scope": [0, 1]}, "VERIFY", None),
        (
            {},
            "RECONCILE_AND_WARM_INIT_END",
            "UNIMPLEMENTED Reconcile and warmInitEnd not supported Operation not supported",
        ),
    ],
)
def test_configs_that_are_refused(server: Server, change: dict[str, object], action: str, answer: str | None) -> None:
    """`DeviceForwardingConfig` checks a config; what is in it is looked at when the device is added."""
    config = bfrt.ForwardingPipelineConfig()
    config.CopyFrom(programs.device_config(PROFILE))
    config.profiles[0].MergeFrom(bfrt.ForwardingPipelineConfig.Profile(**change))  # type: ignore[arg-type]
    with connect(server) as client:
        client.subscribe()
        if answer is None:
            client.set_config([config], action)
        else:
            with pytest.raises(grpc.RpcError) as error:
                client.set_config([config], action)
            assert refusal(error) == answer
        client.bind()  # the program still runs


# Entries


def test_an_entry_from_insert_to_delete(client: PlainClient) -> None:
    key = client.entry(MACS, {"mac": 5})
    assert client.write(("INSERT", mac(client, 5, 4))) == [""]
    again = client.write(("INSERT", mac(client, 5, 8)))
    assert again == [f"ALREADY_EXISTS Table Add failed table:{MACS} Already exists"]
    (entry,) = client.read(key)
    assert (client.values(entry), entry.key) == ({"port": 4}, key.key)
    assert client.write(("MODIFY", client.entry(MACS, {"mac": 5}, action=DISCARD))) == [""]
    (entry,) = client.read(key)
    assert entry.data.action_id == client.entry(MACS, action=DISCARD).data.action_id
    assert client.write(("DELETE", key)) == [""]
    assert client.write(("DELETE", key), ("MODIFY", mac(client, 5, 4))) == [
        f"NOT_FOUND Table Entry delete failed table:{MACS} Object not found",
        f"NOT_FOUND Table Entry modify failed table:{MACS} Object not found",
    ]
    assert client.try_read(key) == ([], [f"NOT_FOUND Entry not found in table:{MACS} Object not found"])


def test_insert_or_modify(client: PlainClient) -> None:
    for port in (4, 8):
        assert client.write(("INSERT_OR_MODIFY", mac(client, 5, port))) == [""]
        (entry,) = client.read(client.entry(MACS, {"mac": 5}))
        assert client.values(entry) == {"port": port}


def test_the_errors_of_a_batch(client: PlainClient) -> None:
    """`BfRtServerErrorReporter` has a detail for each update up to the last that failed, and none after it."""
    good, bad = ("INSERT", mac(client, 1, 4)), ("DELETE", client.entry(MACS, {"mac": 77}))
    other, last = ("INSERT", mac(client, 2, 4)), ("INSERT", mac(client, 3, 4))
    errors = client.write(good, bad, other, bad, last)
    assert [bool(error) for error in errors] == [False, True, False, True, False]
    assert len([entry for entry in client.read(client.entry(MACS)) if not entry.is_default_entry]) == 3


def wrong_entries(client: PlainClient) -> dict[str, tuple[bfrt.TableEntry, str]]:
    """Return entries that an INSERT is refused for, each with the answer."""
    unknown_table, unknown_field, short, wide, kind, action, parameter, text = (mac(client, 5, 4) for _ in range(8))
    unknown_table.table_id = 99
    unknown_field.key.fields[0].field_id = 99
    short.key.fields[0].exact.value = bytes(5)
    wide.data.fields[0].stream = b"\x02\x00"  # 10 bits
    kind.key.fields[0].lpm.value = bytes(6)
    action.data.action_id = 99
    parameter.data.fields[0].field_id = 99
    text.data.fields[0].str_val = "4"
    no_match = mac(client, 5, 4)
    no_match.key.fields[0].ClearField("exact")
    other_kind = client.entry(ROUTES, {"destination": (1, 33)}, {"port": 4, "source_mac": 0, "next_hop_mac": 0}, ROUTE)
    created = f"Failed to create key for field:1 table:{MACS}"
    return {
        "a table of another program": (unknown_table, "NOT_FOUND Table not found for id 99 Object not found"),
        "an unknown key field": (
            unknown_field,
            f"NOT_FOUND ERROR getting Field data type for field 99 table:{MACS} Object not found",
        ),
        "a key of 5 bytes instead of 6": (short, f"INVALID_ARGUMENT {created} Invalid arguments"),
        "another kind of match": (kind, f"INVALID_ARGUMENT {created} Invalid arguments"),
        "no match": (no_match, f"INVALID_ARGUMENT Invalid match type table:{MACS} Invalid arguments"),
        "a prefix of 33 bits": (
            other_kind,
            f"INVALID_ARGUMENT Failed to create key for field:1 table:{ROUTES} Invalid arguments",
        ),
        "a value of 10 bits for 9": (
            wide,
            f"INVALID_ARGUMENT SetValue failed for field:1 table:{MACS} Invalid arguments",
        ),
        "an unknown action": (
            action,
            f"NOT_FOUND ERROR Unable to get data field list for table : {MACS} Object not found",
        ),
        "an unknown parameter": (
            parameter,
            f"INVALID_ARGUMENT SetValue failed for field:99 table:{MACS} Invalid arguments",
        ),
        "text for a number": (text, f"INVALID_ARGUMENT SetValue failed for field:1 table:{MACS} Invalid arguments"),
        "no key": (
            client.entry(MACS, None, {"port": 4}, FORWARD),
            f"INVALID_ARGUMENT Table key cannot be empty table:{MACS} Invalid arguments",
        ),
        "no action": (
            client.entry(MACS, {"mac": 5}),
            f"INVALID_ARGUMENT Table Add failed table:{MACS} Invalid arguments",
        ),
        "an action for the default alone": (
            client.entry(LOSS_RATES, {"port": 4}, action="NoAction"),
            f"INVALID_ARGUMENT Table Add failed table:{LOSS_RATES} Invalid arguments",
        ),
    }


def test_entries_that_are_refused(client: PlainClient) -> None:
    wrong = wrong_entries(client)
    answers = client.write(*(("INSERT", entry) for entry, _ in wrong.values()))
    assert dict(zip(wrong, answers, strict=True)) == {what: answer for what, (_, answer) in wrong.items()}


def test_what_is_missing_is_zero(server: Server, client: PlainClient) -> None:
    """The drivers do not miss key fields or parameters (`BfRtMatchActionKey`). The server notes it for the test."""
    assert client.write(("INSERT", client.entry(JOBS, {"job": 3}, {"group": 9}, ADMIT))) == [""]
    key = dict.fromkeys(JOB, 0) | {"job": 3}
    (entry,) = client.read(client.entry(JOBS, key))
    assert client.values(entry) == {**dict.fromkeys(ADMITTED, 0), "group": 9, PACKETS: 0, BYTES: 0}
    assert f"{JOBS}: a key without source_ip, which is 0" in server.device.remarks
    assert f"{JOBS}: an action without full_bitmap, which is 0" in server.device.remarks


def test_a_full_table(server: Server, client: PlainClient) -> None:
    server.device.limits[MACS] = 2
    answers = client.write(*(("INSERT", mac(client, address, 4)) for address in range(3)))
    assert answers == ["", "", f"RESOURCE_EXHAUSTED Table Add failed table:{MACS} Not enough space"]


def test_a_single_pipe(client: PlainClient) -> None:
    """Tables are symmetric at first, so that one pipe cannot differ (`pipe_mgr_verify_pipe_id`)."""
    answers = client.write(("INSERT", mac(client, 5, 4)), pipe=0)
    assert answers == [f"INVALID_ARGUMENT Table Add failed table:{MACS} Invalid arguments"]
    entry = mac(client, 5, 4)
    entry.entry_tgt.pipe_id = 0xFFFF  # goes before the request's
    assert client.write(("INSERT", entry), pipe=0) == [""]
    assert len(client.read(client.entry(MACS, {"mac": 5}), pipe=1)) == 1
    assert client.try_read(client.entry(MACS, {"mac": 5}), pipe=2)[1] == [
        f"INVALID_ARGUMENT Entry not found in table:{MACS} Invalid arguments"
    ]
    assert client.try_read(client.entry(OUTCOMES, {"$COUNTER_INDEX": 2}), pipe=0)[1] == [
        f"NOT_FOUND Entry not found in table:{OUTCOMES} Object not found"
    ]
    synchronized = client.entry(OUTCOMES, {"$COUNTER_INDEX": 2})
    synchronized.table_flags.from_hw = True
    assert client.try_read(synchronized, pipe=0)[1] == [
        f"INVALID_ARGUMENT Entry not found in table:{OUTCOMES} Invalid arguments"
    ]


def test_default_entries(client: PlainClient) -> None:
    def default() -> tuple[int, dict[str, object]]:
        wanted = client.entry(MACS)
        wanted.is_default_entry = True
        (entry,) = client.read(wanted)
        assert entry.is_default_entry
        assert not entry.HasField("key")
        return entry.data.action_id, client.values(entry)

    def set_default(action: str, **data: int) -> bfrt.TableEntry:
        made = client.entry(MACS, None, data, action)
        made.is_default_entry = True
        return made

    initial = default()
    flood = set_default(FLOOD, group=7)
    assert client.write(("MODIFY", flood)) == [""]
    assert default() == (flood.data.action_id, {"group": 7})
    assert client.read(client.entry(MACS))[-1].is_default_entry  # a wildcard has the default entry as well
    assert client.write(("INSERT", flood)) == [
        "UNIMPLEMENTED INSERT of default entry is not supported. Please use MODIFY instead "
        f"table:{MACS} Operation not supported"
    ]
    assert client.write(("DELETE", flood)) == [""]
    assert default() == initial
    flood.key.fields.add(field_id=1).exact.value = bytes(6)
    assert client.write(("MODIFY", flood)) == ["INVALID_ARGUMENT Non-empty key for default entry Invalid arguments"]


def test_deletion_of_all(client: PlainClient) -> None:
    """A DELETE without a key removes the entries, and restores the default one (`tableClearMatCommon`)."""
    flood = client.entry(MACS, None, {"group": 7}, FLOOD)
    flood.is_default_entry = True
    client.write(("INSERT", mac(client, 5, 4)), ("INSERT", mac(client, 6, 4)), ("MODIFY", flood))
    assert client.write(("DELETE", client.entry(MACS))) == [""]
    (entry,) = client.read(client.entry(MACS))
    assert entry.is_default_entry
    assert entry.data.action_id == client.entry(MACS, action=DISCARD).data.action_id


def test_reset_is_not_supported(client: PlainClient) -> None:
    (answer,) = client.write(("RESET", client.entry(MACS, {"mac": 5})))
    assert answer == f"UNIMPLEMENTED Table Default Entry reset failed table:{MACS} Operation not supported"


def test_prefixes(client: PlainClient) -> None:
    """Bits beyond the prefix do not matter, so that two such keys are one."""
    route = {"port": 4, "source_mac": 1, "next_hop_mac": 2}
    first, second = (client.entry(ROUTES, {"destination": (0x0A000000 + one, 24)}, route, ROUTE) for one in (1, 2))
    assert client.write(("INSERT", first)) == [""]
    assert client.write(("INSERT", second))[0].startswith("ALREADY_EXISTS")
    (entry,) = client.read(second)
    assert (entry.key.fields[0].lpm.value, entry.key.fields[0].lpm.prefix_len) == (b"\x0a\0\0\0", 24)


def test_reading_entries_of_one_action(client: PlainClient) -> None:
    """The server passes over the first entry of another action, but leaves others empty (`table_read_all`)."""
    for address in (1, 2, 3):
        client.write(("INSERT", mac(client, address, 4)))
    client.write(("MODIFY", client.entry(MACS, {"mac": 2}, action=DISCARD)))
    found = client.read(client.entry(MACS, action=FORWARD))
    assert [len(entry.key.fields) for entry in found] == [1, 0, 1]
    (answer,) = client.try_read(client.entry(MACS, {"mac": 2}, action=FORWARD))[1]
    assert answer == f"INVALID_ARGUMENT Entry not found in table:{MACS} Invalid arguments"


# Counters, meters and registers


def test_a_counter_is_as_old_as_its_synchronisation(server: Server, client: PlainClient) -> None:
    """Reads without from_hw have what was synchronised last (`pipe_mgr_stat_mgr_ent_query`)."""
    cell = client.entry(OUTCOMES, {"$COUNTER_INDEX": 2})

    def packets(**flags: bool) -> int:
        wanted = bfrt.TableEntry()
        wanted.CopyFrom(cell)
        wanted.table_flags.MergeFrom(bfrt.TableFlags(**flags))
        (entry,) = client.read(wanted)
        return int(client.values(entry)[PACKETS])

    counters = server.device.plane._counters[OUTCOMES.removeprefix("pipe.")]  # type: ignore[attr-defined]
    counters[0][2] = 5
    assert packets() == 0
    assert packets(from_hw=True) == 5
    counters[0][2] = 6
    assert packets() == 5
    assert client.write(client.operation(OUTCOMES, "Sync"), client.operation(OUTCOMES, "SyncCounters")) == ["", ""]
    assert packets() == 6
    written = client.entry(OUTCOMES, {"$COUNTER_INDEX": 2}, {PACKETS: 40, BYTES: 50})
    assert client.write(("INSERT", written)) == [""]
    assert packets() == 40
    assert counters[0][2] == 40
    assert client.write(("DELETE", client.entry(OUTCOMES))) == [""]
    assert packets(from_hw=True) == 0


def test_operations_that_are_refused(client: PlainClient) -> None:
    unknown = client.operation(OUTCOMES, "Sync")
    unknown.table_operation.table_id = 99
    answers = client.write(client.operation(HELLOS, "Sync"), client.operation(OUTCOMES, "Learn"), unknown)
    assert answers == [
        "UNIMPLEMENTED Operation not supported Operation not supported",
        "UNIMPLEMENTED Operation not supported Operation not supported",
        "NOT_FOUND Table not found Object not found",
    ]


def test_cells_that_are_refused(client: PlainClient) -> None:
    """Cells are set, not added or removed (`verify_key_for_idx_tbls`, `BfRtTableObj::tableEntryDel`)."""
    outside = client.entry(OUTCOMES, {"$COUNTER_INDEX": 17}, {PACKETS: 1, BYTES: 1})
    inside = client.entry(OUTCOMES, {"$COUNTER_INDEX": 16}, {PACKETS: 1, BYTES: 1})
    answers = client.write(("INSERT", outside), ("DELETE", inside), ("INSERT_OR_MODIFY", inside))
    assert answers == [
        f"INVALID_ARGUMENT Table Add failed table:{OUTCOMES} Invalid arguments",
        f"UNIMPLEMENTED Table Entry delete failed table:{OUTCOMES} Operation not supported",
        f"UNIMPLEMENTED Table AddOrMod failed table:{OUTCOMES} Operation not supported",
    ]
    wanted = client.entry(OUTCOMES, {"$COUNTER_INDEX": 16}, {PACKETS: 0})
    assert client.try_read(wanted)[1] == [
        f"UNIMPLEMENTED Data Allocate failed during entry read table:{OUTCOMES} Operation not supported"
    ]
    assert len(client.read(client.entry(OUTCOMES))) == 17


def test_direct_counters(server: Server, client: PlainClient) -> None:
    """A MODIFY sets the counter only with reset_stats (`tableEntryModInternal`, BF_RT_SKIP_STAT_RESET)."""

    def count() -> tuple[int, int]:
        (entry,) = client.read(client.entry(JOBS, JOB))
        values = client.values(entry)
        return values[PACKETS], values[BYTES]

    assert client.write(("INSERT", client.entry(JOBS, JOB, {**ADMITTED, PACKETS: 7, BYTES: 8}, ADMIT))) == [""]
    assert count() == (7, 8)
    alone = client.entry(JOBS, JOB, {PACKETS: 1, BYTES: 2})
    assert client.write(("MODIFY", alone)) == [""]
    assert count() == (7, 8)
    alone.table_flags.reset_stats = True
    assert client.write(("MODIFY", alone)) == [""]
    assert count() == (1, 2)
    whole = client.entry(JOBS, JOB, ADMITTED, ADMIT)
    assert client.write(("MODIFY", whole)) == [""]
    assert count() == (1, 2)
    server.device.plane._tables[JOBS.removeprefix("pipe.")].entries[tuple(JOB.values())][1][:] = [9, 99]  # type: ignore
    assert count() == (1, 2)
    assert client.write(client.operation(JOBS, "SyncCounters")) == [""]
    assert count() == (9, 99)


def test_meters(server: Server, client: PlainClient) -> None:
    """At first nothing limits a meter. The chip rounds rates down, also to 0 (`pipe_mgr_meter_drv_get_rate_params`).

    A read has what the chip has.
    """
    fields = [f"$METER_SPEC_{name}" for _, name in next(iter(METER_FIELDS.values()))]
    cell = client.entry(HELLOS, {"$METER_INDEX": 4})
    unlimited = client.values(client.read(cell)[0])
    most = 649_481_027_584  # 511 tokens a cycle
    assert unlimited == dict(zip(fields, (most, most, 255 << 31, 255 << 31), strict=True))
    meter = server.device.plane._meters[HELLOS.removeprefix("pipe.")]  # type: ignore[attr-defined]

    def greens(rate: int, burst: int, actual: int) -> int:
        written = client.entry(HELLOS, {"$METER_INDEX": 4}, dict(zip(fields, (rate, rate, burst, burst), strict=True)))
        assert client.write(("MODIFY", written)) == [""]
        assert client.values(client.read(cell)[0])[fields[0]] == actual
        colours = []
        for _ in range(20):
            meter.execute(4, 1)
            colours.append(meter.colour)
        return colours.count(0)

    assert greens(NO_LIMIT, NO_LIMIT, most) == 20
    assert greens(1_000_000, 512, 998_787) == 20
    assert greens(100, 10, 94) == 10
    assert greens(12, 2, 9) == 2
    assert greens(1, 1, 0) == 1
    assert greens(0, 10, 0) == 0
    assert client.write(("DELETE", client.entry(HELLOS))) == [""]
    assert client.values(client.read(cell)[0]) == unlimited


def test_registers(server: Server, client: PlainClient) -> None:
    """A read has a value for each pipe, and is as old as its synchronisation."""
    cell = client.entry(SEQS, {"$REGISTER_INDEX": 3})
    server.device.plane.registers[SEQS.removeprefix("pipe.")][0][3] = 5  # type: ignore[attr-defined]
    name = f"{SEQS.removeprefix('pipe.')}.f1"
    assert client.values(client.read(cell)[0]) == {name: [0, 0]}
    assert client.write(client.operation(SEQS, "Sync")) == [""]
    assert client.values(client.read(cell)[0]) == {name: [5, 0]}
    assert client.write(("DELETE", client.entry(SEQS))) == [""]
    cell.table_flags.from_hw = True
    assert client.values(client.read(cell)[0]) == {name: [0, 0]}
    assert client.write(("MODIFY", client.entry(SEQS, {"$REGISTER_INDEX": 3}, {name: 77}))) == [""]
    assert client.values(client.read(cell)[0]) == {name: [77, 77]}  # in each pipe


# Multicast


def node(client: PlainClient, number: int, instance: int, *ports: int) -> bfrt.TableEntry:
    data = {"$MULTICAST_RID": instance, "$MULTICAST_LAG_ID": [], "$DEV_PORT": ports}
    return client.entry("$pre.node", {"$MULTICAST_NODE_ID": number}, data)


def group(client: PlainClient, number: int, *nodes: int) -> bfrt.TableEntry:
    data = {
        "$MULTICAST_NODE_ID": nodes,
        "$MULTICAST_NODE_L1_XID_VALID": [False] * len(nodes),
        "$MULTICAST_NODE_L1_XID": [0] * len(nodes),
    }
    return client.entry("$pre.mgid", {"$MGID": number}, data)


def test_groups(server: Server, client: PlainClient) -> None:
    groups = server.device.plane._groups  # type: ignore[attr-defined]
    assert client.write(
        ("INSERT", node(client, 1, 10, 4, 0)),
        ("INSERT", node(client, 2, 20, 8)),
        ("INSERT", group(client, 5, 1, 2)),
    ) == ["", "", ""]
    assert groups == {5: ((0, 10), (4, 10), (8, 20))}
    assert client.write(("MODIFY", node(client, 2, 99, 12))) == [""]  # the instance stays
    assert groups == {5: ((0, 10), (4, 10), (12, 20))}
    (entry,) = client.read(client.entry("$pre.node", {"$MULTICAST_NODE_ID": 2}))
    assert client.values(entry) == {"$MULTICAST_RID": 20, "$MULTICAST_LAG_ID": [], "$DEV_PORT": [12]}
    assert client.write(("MODIFY", group(client, 5, 2))) == [""]
    (entry,) = client.read(client.entry("$pre.mgid"))
    assert client.values(entry)["$MULTICAST_NODE_ID"] == [2]
    assert client.write(("DELETE", client.entry("$pre.mgid", {"$MGID": 5}))) == [""]
    assert groups == {}
    assert len(client.read(client.entry("$pre.node"))) == 2


def test_a_node_has_no_ports_that_no_chip_has(server: Server, client: PlainClient) -> None:
    """A node's ports are bits of a map, which has none for 72 to 127 of a pipe."""
    assert client.write(("INSERT", node(client, 2, 10, 4, 72, 400, 600)), ("INSERT", node(client, 1, 10, 511))) == [
        "",
        "",
    ]
    first, second = client.read(client.entry("$pre.node"))
    assert (client.values(first)["$DEV_PORT"], client.values(second)["$DEV_PORT"]) == ([], [4, 400])
    assert server.device.remarks[0] == "$pre.node: a node with ports that no chip has: [72, 600]"


def test_groups_are_changed_node_by_node(server: Server, client: PlainClient) -> None:
    """An unknown group is ALREADY_EXISTS, and what was done before an error stays (`tableEntryModInc`)."""
    groups = server.device.plane._groups  # type: ignore[attr-defined]
    client.write(*[("INSERT", node(client, number, 10 * number, 4)) for number in (1, 2, 3)])
    client.write(("INSERT", group(client, 5, 1)))
    assert client.write(("MODIFY_INC", group(client, 5, 2, 3))) == [""]
    assert groups == {5: ((4, 10), (4, 20), (4, 30))}
    remove = group(client, 5, 2)
    remove.table_flags.mod_del = True
    change = "Table Entry modify incremental failed table:$pre.mgid"
    assert client.write(("MODIFY_INC", remove), ("MODIFY_INC", remove)) == [
        "",
        f"ALREADY_EXISTS {change} Already exists",
    ]
    assert groups == {5: ((4, 10), (4, 30))}
    assert client.write(
        ("MODIFY_INC", group(client, 6)),
        ("MODIFY_INC", group(client, 5, 2, 99)),
        ("MODIFY_INC", group(client, 5, 1)),
        ("MODIFY_INC", node(client, 1, 10)),
    ) == [
        f"ALREADY_EXISTS {change} Already exists",
        f"NOT_FOUND {change} Object not found",
        f"ALREADY_EXISTS {change} Already exists",
        "UNIMPLEMENTED Table Entry modify incremental failed table:$pre.node Operation not supported",
    ]
    assert groups == {5: ((4, 10), (4, 30), (4, 20))}


def test_groups_that_are_refused(server: Server, client: PlainClient) -> None:
    """A node is in one group only (`mc_mgr_l1_associate`), and the lists have one length."""
    client.write(("INSERT", node(client, 1, 10, 4)), ("INSERT", group(client, 5, 1)))
    uneven = group(client, 6)
    uneven.data.fields[0].int_arr_val.val.append(1)
    add, change = "Table Add failed table:$pre.mgid", "Table Entry modify failed table:$pre.mgid"
    assert client.write(
        ("INSERT", group(client, 6, 1)),
        ("INSERT", group(client, 6, 99)),
        ("INSERT", group(client, 5)),
        ("INSERT", uneven),
        ("MODIFY", group(client, 5, 99)),
        ("MODIFY", group(client, 6)),
        ("INSERT", node(client, 1, 11)),
        ("DELETE", client.entry("$pre.node", {"$MULTICAST_NODE_ID": 2})),
        ("DELETE", client.entry("$pre.node")),
        ("DELETE", client.entry("$pre.mgid")),
    ) == [
        f"ALREADY_EXISTS {add} Already exists",
        f"NOT_FOUND {add} Object not found",
        f"ALREADY_EXISTS {add} Already exists",
        f"INVALID_ARGUMENT {add} Invalid arguments",
        f"NOT_FOUND {change} Object not found",
        f"NOT_FOUND {change} Object not found",
        "ALREADY_EXISTS Table Add failed table:$pre.node Already exists",
        "NOT_FOUND Table Entry delete failed table:$pre.node Object not found",
        "UNIMPLEMENTED Table Entry delete all failed table:$pre.node Operation not supported",
        "UNIMPLEMENTED Table Entry delete all failed table:$pre.mgid Operation not supported",
    ]
    assert server.device.plane._groups == {5: ((4, 10),)}  # type: ignore[attr-defined]


def test_deletion_of_a_node_in_a_group(server: Server, client: PlainClient) -> None:
    """The node leaves its group, and nobody is told (`bf_mc_node_destroy`)."""
    client.write(("INSERT", node(client, 1, 10, 4)), ("INSERT", group(client, 5, 1)))
    assert client.write(("DELETE", client.entry("$pre.node", {"$MULTICAST_NODE_ID": 1}))) == [""]
    assert client.values(client.read(client.entry("$pre.mgid", {"$MGID": 5}))[0])["$MULTICAST_NODE_ID"] == []
    assert server.device.remarks == ["$pre.node: node 1 is deleted, which group 5 has"]


# Ports and packets


def port_entry(client: PlainClient, number: int, **fields: object) -> bfrt.TableEntry:
    data = {"$SPEED": "BF_SPEED_100G", "$FEC": "BF_FEC_TYP_NONE", "$PORT_ENABLE": True}
    data |= {f"${name.upper()}": value for name, value in fields.items()}
    return client.entry("$PORT", {"$DEV_PORT": number}, {name: one for name, one in data.items() if one is not None})


def test_ports(server: Server, client: PlainClient) -> None:
    assert client.write(("INSERT", port_entry(client, 4, port_enable=None))) == [""]
    key = client.entry("$PORT", {"$DEV_PORT": 4})
    values = client.values(client.read(key)[0])
    assert (
        values.items()
        >= {
            "$SPEED": "BF_SPEED_100G",
            "$FEC": "BF_FEC_TYP_NONE",
            "$N_LANES": 4,
            "$PORT_ENABLE": False,
            "$PORT_UP": False,
            "$PORT_NAME": "2/0",
        }.items()
    )
    assert client.write(("MODIFY", client.entry("$PORT", {"$DEV_PORT": 4}, {"$PORT_ENABLE": True}))) == [""]
    up = client.entry("$PORT", {"$DEV_PORT": 4}, {"$PORT_UP": True})
    assert client.values(client.read(up)[0]) == {"$PORT_UP": True}
    server.device.ports.set_partner(4, False)
    assert client.values(client.read(up)[0]) == {"$PORT_UP": False}
    assert [client.values(one)["$PORT_NAME"] for one in client.read(client.entry("$PORT"))] == ["2/0"]
    assert client.write(("DELETE", key)) == [""]
    assert client.read(client.entry("$PORT")) == []
    assert client.try_read(key) == ([], ["NOT_FOUND Entry not found in table:$PORT Object not found"])
    (recirculation,) = client.read(client.entry("$PORT", {"$DEV_PORT": 68}, {"$PORT_NAME": ""}))
    assert client.values(recirculation) == {"$PORT_NAME": "recirc"}
    assert client.write(("DELETE", key)) == [""]  # that it is not there is no error (bf_pm_port_delete)
    assert client.write(("INSERT", port_entry(client, 4)), ("DELETE", client.entry("$PORT"))) == ["", ""]
    assert server.device.ports.added == {}


def test_a_port_that_is_added_twice_stays_as_it_is(server: Server, client: PlainClient) -> None:
    """`bf_pm_port_add_with_lanes` leaves speed and FEC alone; the rest is set."""
    client.write(("INSERT", port_entry(client, 4, port_enable=False)))
    assert client.write(("INSERT", port_entry(client, 4, speed="BF_SPEED_40G"))) == [""]
    port = server.device.ports.added[4]
    assert (port.speed, port.enabled) == ("100G", True)
    assert server.device.remarks == ["$PORT: port 4 is added again with another speed or FEC"]


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (4, {"fec": None}),
        (4, {"speed": "100G"}),
        (4, {"fec": "BF_FEC_TYP_FIRECODE"}),  # not for 100G
        (4, {"speed": "BF_SPEED_400G", "fec": "BF_FEC_TYP_REED_SOLOMON"}),  # not on Tofino 1
        (5, {}),  # a second channel does not have four lanes
        (1, {"speed": "BF_SPEED_10G"}),  # a lane of port 0
        (300, {}),  # no port of the board
        (4, {"auto_negotiation": "on"}),
    ],
)
def test_ports_that_are_refused(client: PlainClient, number: int, fields: dict[str, object]) -> None:
    client.write(("INSERT", port_entry(client, 0)))
    answer = "INVALID_ARGUMENT Table Add failed table:$PORT Invalid arguments"
    assert client.write(("INSERT", port_entry(client, number, **fields))) == [answer]


def test_a_port_that_the_hardware_refuses(server: Server, client: PlainClient) -> None:
    server.device.ports.refused.add(8)
    answers = client.write(("INSERT", port_entry(client, 4)), ("INSERT", port_entry(client, 8)))
    assert answers == ["", "UNKNOWN Table Add failed table:$PORT HW access fails"]


def test_names_of_ports(client: PlainClient) -> None:
    (entry,) = client.read(client.entry("$PORT_STR_INFO", {"$PORT_NAME": "17/2"}))
    assert client.values(entry) == {"$DEV_PORT": 130}
    (entry,) = client.read(client.entry("$PORT_HDL_INFO", {"$CONN_ID": 33, "$CHNL_ID": 0}))
    assert client.values(entry) == {"$DEV_PORT": 64}
    unknown = client.entry("$PORT_STR_INFO", {"$PORT_NAME": "99/0"})
    answer = "INVALID_ARGUMENT Entry not found in table:$PORT_STR_INFO Invalid arguments"
    assert client.try_read(unknown) == ([], [answer])
    unknown.table_flags.from_hw = True
    answer = "UNIMPLEMENTED Entry not found in table:$PORT_STR_INFO Operation not supported"
    assert client.try_read(unknown) == ([], [answer])
    assert len(client.read(client.entry("$PORT_STR_INFO"))) == 132


def test_the_device(client: PlainClient) -> None:
    """The table has a default entry only."""
    wanted = client.entry("tf1.dev.device_configuration")
    wanted.is_default_entry = True
    values = client.values(client.read(wanted)[0])
    assert (values["num_pipes"], values["pcie_cpu_port"], values["eth_cpu_port_list"]) == (2, 192, [64, 65, 66, 67])
    assert (values["num_front_ports"], values["recirc_port_list"]) == (132, [*range(68, 72), *range(196, 200)])
    wanted.is_default_entry = False
    assert client.try_read(wanted)[1] == [
        "UNIMPLEMENTED Table key allocation failed. table:tf1.dev.device_configuration Operation not supported"
    ]


def test_recirculation(client: PlainClient) -> None:
    """Tofino 1's ports 68 to 71 always recirculate, 64 while it is not a port (`pipe_mgr_tof_set_recirc_16_en`)."""
    table = "tf1.pktgen.port_cfg"

    def enabled(number: int) -> object:
        wanted = client.entry(table, {"dev_port": number}, {"recirculation_enable": False})
        return client.values(client.read(wanted)[0])["recirculation_enable"]

    def set_enabled(number: int, on: bool) -> list[str]:
        return client.write(("MODIFY", client.entry(table, {"dev_port": number}, {"recirculation_enable": on})))

    assert (enabled(68), enabled(64), enabled(0)) == (True, False, False)
    assert set_enabled(68, True) == set_enabled(192, True) == [""]
    assert enabled(192) is True
    failed = f"Table Entry modify failed table:{table}"
    assert set_enabled(0, True) == set_enabled(300, True) == [f"INVALID_ARGUMENT {failed} Invalid arguments"]
    client.write(("INSERT", port_entry(client, 64, speed="BF_SPEED_10G")))
    assert set_enabled(64, True) == [f"UNAVAILABLE {failed} In use"]
    entry = client.entry(table, {"dev_port": 64}, {"recirculation_enable": True})
    assert client.write(("INSERT", entry)) == [f"UNIMPLEMENTED Table Add failed table:{table} Operation not supported"]


def test_packets_pass_ports_that_are_up(server: Server, client: PlainClient) -> None:
    client.write(("INSERT", mac(client, int(THERE.mac.replace(":", ""), 16), 8)))
    frame = frames.udp_frame(HERE, THERE, b"a frame")
    device = server.device
    assert device.process(4, frame) == []
    client.write(("INSERT", port_entry(client, 4)), ("INSERT", port_entry(client, 8, port_enable=False)))
    assert device.process(4, frame) == []
    client.write(("MODIFY", client.entry("$PORT", {"$DEV_PORT": 8}, {"$PORT_ENABLE": True})))
    assert device.process(4, frame) == [(8, frame)]
    device.ports.set_partner(8, False)
    assert device.process(4, frame) == []
    assert device.undeliverable == 3


def test_port_notifications(server: Server) -> None:
    """They need the flag at subscription, the attribute, and a bound client (`portstatuschg_callback`)."""
    with connect(server) as client, connect(server, number=8) as other:
        client.subscribe(port_changes=True)
        client.bind()
        client.write(("INSERT", port_entry(client, 4)))
        assert list(drained(client.messages)) == []
        assert client.write(client.notify_port_changes()) == [""]
        server.device.ports.set_partner(4, False)
        notification = client.message().port_status_change_notification
        assert notification.port_up is False
        assert notification.table_entry.key == client.entry("$PORT", {"$DEV_PORT": 4}).key
        server.device.ports.set_partner(4, True)
        assert client.message().port_status_change_notification.port_up is True
        other.subscribe()
        with pytest.raises(grpc.RpcError):  # other is not bound
            other.write(other.notify_port_changes())
        assert client.write(client.notify_port_changes(False)) == [""]
        server.device.ports.set_partner(4, False)
        assert list(drained(client.messages)) == []


def test_notifications_that_no_client_gets(server: Server) -> None:
    """The cookie of a callback has 24 bits of the client's number (`formCookieFromDeviceAndClient`)."""
    with connect(server, number=1 << 24 | 7) as client:
        client.subscribe(port_changes=True)
        client.bind()
        assert client.write(client.notify_port_changes()) == [""]
        client.write(("INSERT", port_entry(client, 4)))
        assert list(drained(client.messages)) == []


def test_notifications_without_the_flag(client: PlainClient) -> None:
    text = "Port status change notifications are not enabledfor client 7 Invalid arguments"
    assert client.write(client.notify_port_changes()) == [f"INVALID_ARGUMENT {text}"]


# Faults


def test_hanging(server: Server, client: PlainClient) -> None:
    server.faults.hang.set()
    with pytest.raises(grpc.RpcError) as error:
        client._channel.unary_unary("/bfrt_proto.BfRuntime/Write")(b"", timeout=0.2)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    server.faults.hang.clear()
    assert client.write(("INSERT", mac(client, 5, 4))) == [""]


def test_a_slow_answer(server: Server, client: PlainClient) -> None:
    server.faults.slow_s = 0.2
    start = time.monotonic()
    client.write(("INSERT", mac(client, 5, 4)))
    assert time.monotonic() - start >= 0.2


def test_the_end_of_the_stream(server: Server, client: PlainClient) -> None:
    server.end_streams()
    assert client.ended.wait(20)
    assert client.end is grpc.StatusCode.CANCELLED
    wait_until(lambda: server.clients == {}, "the client is gone")


def test_death_within_a_batch(server: Server, client: PlainClient) -> None:
    server.faults.die_after = 2
    with pytest.raises(grpc.RpcError) as error:
        client.write(*(("INSERT", mac(client, address, 4)) for address in range(4)))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert client.ended.wait(20)
    assert len(server.device.plane._tables[MACS.removeprefix("pipe.")]) == 2  # type: ignore[attr-defined]
    server.faults.die_after = None
    address = server.address
    server.restart(programs.device_config(PROFILE))
    assert server.address == address
    with connect(server) as again:
        again.subscribe()
        again.bind()
        assert len(again.read(again.entry(MACS))) == 1  # the default entry


def test_an_installation_that_fails(server: Server, client: PlainClient) -> None:
    """The device has no program at all then, and the answer is that of the next step (`refreshConnections`)."""
    server.faults.refuse_install = True
    with pytest.raises(grpc.RpcError) as error:
        client.set_config([programs.device_config(PROFILE)], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
    assert refusal(error) == "NOT_FOUND Failed to find p4 program for device 0 Object not found"
    assert list(client.config().config) == []
    server.faults.refuse_install = False
    client.set_config([programs.device_config(PROFILE)], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
    assert len(client.config().config) == 1


def test_calls_during_an_installation(server: Server, client: PlainClient) -> None:
    """Readers of the lock do not wait for the writer (`SetFwdConfigLockGuard`)."""
    server.faults.install_s = 0.5
    config = [programs.device_config(PROFILE)]
    with connect(server, number=8) as other, ThreadPoolExecutor() as pool:
        installed = pool.submit(other.set_config, config, "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
        wait_until(lambda: server.installing, "the installation has begun")
        with pytest.raises(grpc.RpcError) as error:
            client.write(("INSERT", mac(client, 5, 4)))
        assert refusal(error) == "UNAVAILABLE Failed to acquire read lock for client 7 In use"
        installed.result()
    assert client.write(("INSERT", mac(client, 5, 4))) == [""]


# Schemas


def test_boards() -> None:
    names = BOARDS["tofino1"].names()
    assert (names["1/0"], names["16/3"], names["17/0"], names["33/0"]) == (0, 63, 128, 64)
    assert BOARDS["tofino2"].names()["1/0"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("profile", programs.tofino.PROFILES)
def test_the_schema_is_the_compilers(profile: str, tmp_path: Path) -> None:
    """`derive` makes the same tables as p4c's backend, which alone knows the names of a register's words."""
    try:
        programs.tofino.compile_profile(profile, tmp_path)
    except programs.tofino.ToolMissing as missing:
        pytest.skip(str(missing))
    compiled = tables_of((tmp_path / "bf-rt.json").read_bytes())
    registers = {
        name.removeprefix("pipe."): (table["size"], len(table["data"]))
        for name, table in compiled.items()
        if table["table_type"] == "Register"
    }
    derived = tables_of(derive(programs.p4info(profile), registers))
    assert derived == {name: table for name, table in compiled.items() if table["table_type"] in KINDS}


def tables_of(schema: bytes) -> dict[str, Any]:
    """Return the tables of a schema, without the names of registers' words."""
    tables = {table["name"]: table for table in json.loads(schema)["tables"]}
    for table in tables.values():
        if table["table_type"] == "Register":
            for field in table["data"]:
                del field["singleton"]["name"]
    return tables
