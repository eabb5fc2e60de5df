# SPDX-License-Identifier: Apache-2.0
"""Installing a forwarding pipeline, and asking for it."""

from __future__ import annotations

from typing import Any

import pytest
from finsy.proto import p4i, p4r
from grpc import StatusCode

from .client import (
    CONFIG,
    DEVICE,
    INFO,
    INSERT,
    TABLES,
    Client,
    Get,
    Set,
    action,
    counter_entry,
    default_entry,
    exact_entry,
    group_entry,
    refused,
)

MODIFY = p4r.Update.MODIFY
ALL_ENTRIES = p4r.TableEntry()


def test_before_there_is_one(fresh_address: str) -> None:
    with Client(fresh_address) as client:
        client.become_primary()
        for call in (
            lambda: client.write(INSERT, exact_entry(1, action("forward", 1))),
            lambda: client.read(ALL_ENTRIES),
            client.configuration,
        ):
            with refused(StatusCode.FAILED_PRECONDITION):
                call()
        client.configure()
        client.write(INSERT, exact_entry(1, action("forward", 1)))


@pytest.mark.bmv2_differs
def test_a_packet_out_before_there_is_one(fresh_address: str) -> None:
    with Client(fresh_address) as client:
        client.become_primary()
        client.packet_out(bytes(60), egress_port=1)
        assert client.receive().error.canonical_code == 9


@pytest.mark.bmv2_differs("BMv2 dies of it")
def test_commit_without_a_saved_one(fresh_address: str) -> None:
    with Client(fresh_address) as client:
        client.become_primary()
        with refused(StatusCode.UNKNOWN):
            client.configure(Set.COMMIT)


def test_verify_changes_nothing(primary: Client) -> None:
    primary.write(INSERT, exact_entry(1, action("forward", 1)))
    primary.configure(Set.VERIFY, primary.pipeline_config(8))
    assert primary.configuration(Get.COOKIE_ONLY).cookie.cookie == 7
    assert len(primary.read_entries(ALL_ENTRIES)) >= 1


def test_save_then_commit(primary: Client) -> None:
    primary.configure(Set.VERIFY_AND_SAVE, primary.pipeline_config(9))
    primary.configure(Set.COMMIT)
    assert primary.configuration(Get.COOKIE_ONLY).cookie.cookie == 9
    primary.write(INSERT, exact_entry(1, action("forward", 1)))


def test_commit_starts_empty(primary: Client) -> None:
    primary.write(INSERT, exact_entry(1, action("forward", 1)), group_entry(1, (1, 1)))
    primary.write(MODIFY, default_entry("exact_table", action("discard")), counter_entry("cells", 1, 5, 50))
    primary.configure()
    assert not primary.read_entries(p4r.TableEntry(table_id=TABLES["exact_table"].preamble.id))
    assert not primary.read(group_entry(0))
    assert primary.read_counts(counter_entry("cells", 1)) == {1: (0, 0)}
    [default] = primary.read_entries(default_entry("exact_table"))
    assert default.action == action("NoAction")


@pytest.mark.bmv2_differs("BMv2 cannot reconcile a program with counters: it INSERTs them")
def test_reconcile_keeps_what_was_written(primary: Client) -> None:
    entry = exact_entry(1, action("forward", 1))
    entry.counter_data.packet_count, entry.counter_data.byte_count = 3, 300
    group = group_entry(1, (1, 1))
    primary.write(INSERT, entry, group)
    primary.write(MODIFY, default_entry("exact_table", action("discard")), counter_entry("cells", 1, 5, 50))
    primary.configure(Set.RECONCILE_AND_COMMIT, primary.pipeline_config(10))
    assert primary.configuration(Get.COOKIE_ONLY).cookie.cookie == 10
    asking = exact_entry(1)
    asking.counter_data.SetInParent()
    assert primary.read_entries(asking) == [entry]
    assert primary.read(group_entry(0)) == [group]
    assert primary.read_counts(counter_entry("cells", 1)) == {1: (5, 50)}
    assert primary.read_entries(default_entry("exact_table")) == [default_entry("exact_table", action("discard"))]


@pytest.mark.bmv2_differs("BMv2 cannot reconcile a program with counters: it INSERTs them")
def test_reconcile_with_a_program_that_lost_a_table(primary: Client) -> None:
    entry = exact_entry(1, action("forward", 1))
    primary.write(INSERT, entry)
    smaller = primary.pipeline_config(11)
    del smaller.p4info.tables[0]
    with refused(StatusCode.UNKNOWN):
        primary.configure(Set.RECONCILE_AND_COMMIT, smaller)
    assert primary.configuration(Get.COOKIE_ONLY).cookie.cookie == 7
    assert primary.read_entries(exact_entry(1)) == [entry]


def test_no_action_named(primary: Client) -> None:
    with refused(StatusCode.INVALID_ARGUMENT):
        primary.configure(Set.UNSPECIFIED)


PROGRAMS = [
    *(b"not JSON", b"[1]", b"\xff\xfe"),
    pytest.param(b"", marks=pytest.mark.bmv2_differs("BMv2 keeps the program that it has")),
    pytest.param(b"{}", marks=pytest.mark.bmv2_differs("BMv2 takes it for a program without parts")),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_device_config_that_is_none(fresh_address: str, program: bytes, kind: str) -> None:
    with Client(fresh_address) as client:
        client.become_primary()
        with refused(StatusCode.UNKNOWN):
            client.configure(what=p4r.ForwardingPipelineConfig(p4info=INFO, p4_device_config=program))
        if kind != "bmv2":  # which takes no other program after that
            client.configure()


@pytest.mark.bmv2_differs("BMv2 does not look")
def test_p4info_with_one_id_twice(primary: Client) -> None:
    broken = primary.pipeline_config()
    broken.p4info.tables[1].preamble.id = broken.p4info.tables[0].preamble.id
    with refused(StatusCode.UNKNOWN):
        primary.configure(what=broken)


@pytest.mark.bmv2_differs("BMv2 supports it")
def test_p4info_that_the_server_does_not_support(primary: Client) -> None:
    for change in ("range", "profile"):
        unsupported = primary.pipeline_config()
        if change == "range":
            unsupported.p4info.tables[1].match_fields[0].match_type = p4i.MatchField.RANGE
        else:
            unsupported.p4info.tables[1].implementation_id = 1
        with refused(StatusCode.UNIMPLEMENTED, "ternary_table"):
            primary.configure(what=unsupported)


@pytest.mark.parametrize(
    ("wanted", "info", "program"),
    [
        (Get.ALL, True, True),
        (Get.COOKIE_ONLY, False, False),
        (Get.P4INFO_AND_COOKIE, True, False),
        (Get.DEVICE_CONFIG_AND_COOKIE, False, True),
    ],
)
def test_parts_of_the_config(primary: Client, wanted: Any, info: bool, program: bool) -> None:
    answer = primary.configuration(wanted)
    assert answer.cookie.cookie == 7
    assert answer.HasField("p4info") == info
    assert not info or answer.p4info == INFO
    assert answer.p4_device_config == (CONFIG if program else b"")


def test_a_config_without_cookie(primary: Client) -> None:
    primary.configure(what=primary.pipeline_config(None))
    assert not primary.configuration().HasField("cookie")


def test_a_part_that_there_is_not(primary: Client) -> None:
    with refused(StatusCode.INVALID_ARGUMENT):
        primary.configuration(9)


def test_capabilities(address: str) -> None:
    with Client(address) as client:
        answer = client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=10, wait_for_ready=True)
    assert answer.p4runtime_api_version == "1.3.0"


@pytest.mark.bmv2_differs("BMv2 takes any device id")
def test_calls_for_another_device(primary: Client) -> None:
    stub, election_id = primary.stub, p4r.Uint128(low=1)
    for method, request in (
        (stub.Write, p4r.WriteRequest(device_id=DEVICE + 1, election_id=election_id)),
        (stub.SetForwardingPipelineConfig, Set(device_id=DEVICE + 1, election_id=election_id, action=Set.VERIFY)),
        (stub.GetForwardingPipelineConfig, Get(device_id=DEVICE + 1)),
        (lambda request, timeout: list(stub.Read(request, timeout=timeout)), p4r.ReadRequest(device_id=DEVICE + 1)),
    ):
        with refused(StatusCode.NOT_FOUND):
            primary._call(method, request)
