# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: the entries of match-action tables.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.server import Server

from .entries import (
    ADMIT,
    ADMITTED,
    BYTES,
    DISCARD,
    FLOOD,
    FORWARD,
    JOB,
    JOBS,
    LOSS_RATES,
    MACS,
    OUTCOMES,
    PACKETS,
    ROUTE,
    ROUTES,
    mac,
)

pytestmark = pytest.mark.p4c


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
