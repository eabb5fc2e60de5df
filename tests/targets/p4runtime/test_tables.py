# SPDX-License-Identifier: Apache-2.0
"""Table entries and default actions: what is accepted, how it is read back, how it is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from finsy.proto import p4r
from grpc import StatusCode

from .client import (
    ACTIONS,
    DELETE,
    INSERT,
    MODIFY,
    REGISTER,
    TABLES,
    Client,
    Failed,
    action,
    counter_entry,
    default_entry,
    exact_entry,
    lpm_entry,
    refused,
    ternary_entry,
)

OK, UNKNOWN, INVALID, NOT_FOUND, EXISTS, DENIED, UNIMPLEMENTED = 0, 2, 3, 5, 6, 7, 12
MAC = 0x0A0B0C0D0E0F
FORWARD = action("forward", 3)


def table(name: str) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=TABLES[name].preamble.id)


def changed(entry: p4r.TableEntry, change: Callable[[p4r.TableEntry], object] = bool, **fields: int) -> p4r.TableEntry:
    """Return a copy of the entry with these fields, to which `change` has been applied."""
    result = p4r.TableEntry()
    result.CopyFrom(entry)
    for name, value in fields.items():
        setattr(result, name, value)
    change(result)
    return result


def with_action(message: p4r.TableAction) -> tuple[p4r.TableEntry, int]:
    return exact_entry(MAC, message), INVALID


def with_fields(entry: p4r.TableEntry, **fields: int) -> tuple[p4r.TableEntry, int]:
    return changed(entry, **fields), INVALID


def with_part(entry: p4r.TableEntry, change: Callable[[p4r.TableEntry], object]) -> tuple[p4r.TableEntry, int]:
    return changed(entry, change), INVALID


ENTRIES = [
    exact_entry(MAC, FORWARD),
    exact_entry(0, action("discard")),
    exact_entry((1 << 48) - 1, action("set_tag", 0xFFF, 0)),
    lpm_entry((0x0A0B << 32, 16), action("set_tag", 5, 1)),
    lpm_entry((MAC, 48), action("NoAction")),
    lpm_entry(None, action("set_tag", 0, 15)),
    ternary_entry((0x0B << 32, 0xFF << 32), 0x800, 10, action("set_tag", 1, 2)),
    ternary_entry((0x0B << 32, 0xFF << 32), 0x800, 11, action("set_tag", 1, 3)),
    ternary_entry(None, 0x800, 2**31 - 1, action("NoAction")),
]
KINDS = {"exact_table": ENTRIES[:3], "lpm_table": ENTRIES[3:6], "ternary_table": ENTRIES[6:]}


def test_what_is_written_is_read_back(primary: Client) -> None:
    primary.write(INSERT, *ENTRIES)
    for entry in ENTRIES:
        if entry.match:
            assert primary.read_entries(changed(entry, lambda e: e.ClearField("action"))) == [entry]
    for name, entries in KINDS.items():
        found = primary.read_entries(table(name))
        assert sorted(found, key=str) == sorted(entries, key=str)
    everything = primary.read_entries(p4r.TableEntry())
    assert all(entry in everything for entry in ENTRIES)


def test_modify_and_delete(primary: Client) -> None:
    primary.write(INSERT, *ENTRIES)
    primary.write(
        MODIFY,
        exact_entry(MAC, action("discard")),
        ternary_entry((0x0B << 32, 0xFF << 32), 0x800, 11, action("NoAction")),
    )
    assert primary.read_entries(exact_entry(MAC))[0].action == action("discard")
    primary.write(DELETE, *(changed(entry, lambda e: e.ClearField("action")) for entry in ENTRIES))
    for name in KINDS:
        assert not primary.read_entries(table(name))


def test_reading_an_entry_that_is_not_there(primary: Client) -> None:
    assert primary.read_entries(exact_entry(MAC)) == []


def test_numbers_are_taken_in_any_length_and_told_in_the_shortest(primary: Client) -> None:
    primary.write(INSERT, exact_entry(b"\x00\x00\x00\x00\x00\x00\x00\x07", action("forward", b"\x00\x00\x00\x03")))
    [entry] = primary.read_entries(exact_entry(b"\x00\x07"))
    assert entry.match[0].exact.value == b"\x07"
    assert entry.action.action.params[0].value == b"\x03"
    primary.write(INSERT, exact_entry(b"", action("forward", b"")))
    [entry] = primary.read_entries(exact_entry(0))
    assert entry.match[0].exact.value == entry.action.action.params[0].value == b"\x00"


def test_metadata_is_kept(primary: Client) -> None:
    entry = changed(exact_entry(MAC, FORWARD), lambda e: setattr(e, "metadata", b"mine"))
    entry.controller_metadata = 42
    primary.write(INSERT, entry)
    assert primary.read_entries(exact_entry(MAC)) == [entry]


def bad_match(entry: p4r.TableEntry) -> None:
    entry.match[0].lpm.value, entry.match[0].lpm.prefix_len = b"\x01", 48


EXACT = exact_entry(MAC, FORWARD)
TERNARY = ternary_entry((1, 1), 0x800, 10, action("NoAction"))
LPM = lpm_entry((MAC, 48), action("NoAction"))
UNKNOWN_PARAMETER = p4r.Action(action_id=ACTIONS["forward"], params=[p4r.Action.Param(param_id=9, value=b"\x01")])
REFUSED_INSERTS = {
    "value too wide": (exact_entry(1 << 48, FORWARD), INVALID),
    "argument too wide": with_action(action("forward", 1 << 9)),
    "no action": (exact_entry(MAC), INVALID),
    "empty action": with_action(p4r.TableAction()),
    "member": with_action(p4r.TableAction(action_profile_member_id=1)),
    "no such action": with_action(p4r.TableAction(action=p4r.Action(action_id=0x01FFFFFF))),
    "action id 0": with_action(p4r.TableAction(action=p4r.Action())),
    "not an action's id": with_action(p4r.TableAction(action=p4r.Action(action_id=REGISTER))),
    "action of another table": (lpm_entry((MAC, 48), FORWARD), INVALID),
    "default only": (exact_entry(MAC, action("NoAction")), DENIED),
    "too few parameters": with_action(action("set_tag", 1)),
    "too many parameters": with_action(action("forward", 1, 2)),
    "unknown parameter": with_action(p4r.TableAction(action=UNKNOWN_PARAMETER)),
    "no such table": with_fields(EXACT, table_id=0x02FFFFFF),
    "table id 0": with_fields(EXACT, table_id=0),
    "not a table's id": with_fields(EXACT, table_id=REGISTER),
    "no key": with_part(EXACT, lambda e: e.ClearField("match")),
    "field twice": with_part(EXACT, lambda e: e.match.add().CopyFrom(e.match[0])),
    "unknown field": with_part(EXACT, lambda e: setattr(e.match[0], "field_id", 2)),
    "wrong match type": with_part(EXACT, bad_match),
    "field without value": with_part(EXACT, lambda e: e.match[0].ClearField("exact")),
    "priority on exact": with_fields(EXACT, priority=1),
    "priority on lpm": with_fields(LPM, priority=1),
    "no priority on ternary": with_fields(TERNARY, priority=0),
    "ternary mask 0": (ternary_entry((0, 0), 0x800, 1, action("NoAction")), INVALID),
    "ternary bits outside the mask": (ternary_entry((3, 1), 0x800, 1, action("NoAction")), INVALID),
    "lpm length 0": (lpm_entry((0, 0), action("NoAction")), INVALID),
    "lpm length too long": (lpm_entry((MAC, 49), action("NoAction")), INVALID),
    "lpm length negative": (lpm_entry((MAC, -1), action("NoAction")), INVALID),
    "lpm bits after the prefix": (lpm_entry((MAC, 8), action("NoAction")), INVALID),
    "idle timeout": with_fields(EXACT, idle_timeout_ns=1),
    "time since hit": with_part(EXACT, lambda e: e.time_since_last_hit.SetInParent()),
    "meter": with_part(EXACT, lambda e: e.meter_config.SetInParent()),
    "counter": with_part(LPM, lambda e: e.counter_data.SetInParent()),
    "default entry": (default_entry("exact_table", action("discard")), INVALID),
    "constant table": (
        changed(exact_entry(0x88B7, action("NoAction")), table_id=table("constant_table").table_id),
        UNKNOWN,
    ),
}


def test_refused_inserts(primary: Client) -> None:
    before = primary.read_entries(p4r.TableEntry())
    for what, (entry, code) in REFUSED_INSERTS.items():
        assert primary.codes(INSERT, entry) == [code], what
        assert primary.read_entries(p4r.TableEntry()) == before, what


def test_an_entry_that_is_there_already(primary: Client) -> None:
    primary.write(INSERT, exact_entry(MAC, FORWARD), TERNARY)
    assert primary.codes(INSERT, exact_entry(MAC, action("discard")), TERNARY) == [EXISTS, EXISTS]
    assert primary.read_entries(exact_entry(MAC))[0].action == FORWARD


def test_an_entry_that_is_not_there(primary: Client) -> None:
    assert primary.codes(MODIFY, exact_entry(MAC, FORWARD)) == [NOT_FOUND]
    assert primary.codes(DELETE, exact_entry(MAC)) == [NOT_FOUND]
    primary.write(INSERT, TERNARY)
    other = changed(TERNARY, priority=11)
    assert primary.codes(DELETE, other) == [NOT_FOUND]


def test_modify_without_action(primary: Client) -> None:
    primary.write(INSERT, exact_entry(MAC, FORWARD))
    assert primary.codes(MODIFY, exact_entry(MAC)) == [INVALID]


def test_a_full_table(primary: Client) -> None:
    entries = [exact_entry(index, FORWARD) for index in range(5)]
    codes = primary.codes(INSERT, *entries)
    assert codes == [OK] * 4 + [UNKNOWN]
    primary.write(DELETE, entries[0])
    primary.write(INSERT, entries[4])


def test_an_update_without_type(primary: Client) -> None:
    assert primary.codes(p4r.Update.UNSPECIFIED, exact_entry(MAC, FORWARD)) == [INVALID]


def test_refused_updates_do_not_stop_the_others(primary: Client) -> None:
    codes = primary.codes(
        INSERT, exact_entry(1, FORWARD), exact_entry(2), exact_entry(3, FORWARD), exact_entry(1, FORWARD)
    )
    assert codes == [OK, INVALID, OK, EXISTS]
    assert primary.read_entries(table("exact_table")) == [exact_entry(1, FORWARD), exact_entry(3, FORWARD)]


def test_details_say_what_is_wrong(primary: Client) -> None:
    with pytest.raises(Failed) as failed:
        primary.write(INSERT, exact_entry(1, FORWARD), exact_entry(1, FORWARD))
    assert failed.value.messages == ["", "Match entry exists, use MODIFY if you wish to change action"]


def test_other_atomicities(primary: Client) -> None:
    for atomicity in (p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC):
        with refused(StatusCode.UNIMPLEMENTED):
            primary.write(INSERT, exact_entry(1, FORWARD), atomicity=atomicity)
    assert not primary.read_entries(table("exact_table"))


def test_default_actions(primary: Client) -> None:
    initial = default_entry("ternary_table", action("set_tag", 1, 0))
    assert primary.read_entries(default_entry("ternary_table")) == [initial]
    primary.write(MODIFY, default_entry("ternary_table", action("set_tag", 0xABC, 2)))
    assert primary.read_entries(default_entry("ternary_table")) == [
        default_entry("ternary_table", action("set_tag", 0xABC, 2))
    ]
    assert default_entry("ternary_table", action("set_tag", 0xABC, 2)) not in primary.read_entries(p4r.TableEntry())
    primary.write(MODIFY, default_entry("ternary_table"))
    assert primary.read_entries(default_entry("ternary_table")) == [initial]
    found = primary.read_entries(p4r.TableEntry(is_default_action=True))
    assert len(found) == len(TABLES)
    assert all(entry.is_default_action for entry in found)


def test_refused_default_actions(primary: Client) -> None:
    entry = default_entry("exact_table", action("discard"))
    assert primary.codes(DELETE, entry) == [INVALID]
    assert primary.codes(MODIFY, changed(entry, priority=1)) == [INVALID]
    assert primary.codes(MODIFY, changed(entry, lambda e: e.match.add(field_id=1))) == [INVALID]
    assert primary.codes(MODIFY, default_entry("exact_table", action("set_tag", 1, 1))) == [DENIED]
    assert primary.codes(MODIFY, default_entry("lpm_table", action("set_tag", 1, 1))) == [DENIED]
    assert primary.codes(MODIFY, default_entry("exact_table", action("forward", 1 << 9))) == [INVALID]
    assert primary.read_entries(default_entry("exact_table"))[0].action == action("NoAction")


def test_the_constant_table_can_be_read(primary: Client, kind: str) -> None:
    found = primary.read_entries(table("constant_table"))
    if kind == "bmv2":
        assert [entry.match[0].exact.value for entry in found] == [b"\x88\xb6"]
    else:
        assert found == []  # P4Info does not tell them


def test_unreadable(primary: Client) -> None:
    for entry in (p4r.TableEntry(table_id=0x02FFFFFF), changed(exact_entry(MAC), bad_match)):
        with refused(StatusCode.INVALID_ARGUMENT):
            primary.read(entry)
    timed = changed(exact_entry(MAC), lambda e: e.time_since_last_hit.SetInParent())
    with refused(StatusCode.INVALID_ARGUMENT):
        primary.read(timed)


def test_several_entities_in_one_read(primary: Client) -> None:
    primary.write(INSERT, exact_entry(1, FORWARD), LPM)
    found = primary.read(table("exact_table"), counter_entry("cells", 2), table("lpm_table"))
    assert [entity.WhichOneof("entity") for entity in found] == ["table_entry", "counter_entry", "table_entry"]


def test_unsupported_entities(primary: Client) -> None:
    register = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=REGISTER))
    value_set = p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=1))
    for entity in (register, value_set):
        assert primary.codes(MODIFY, entity) == [UNIMPLEMENTED]
        with refused(StatusCode.UNIMPLEMENTED):
            primary.read(entity)


@pytest.mark.bmv2_differs("BMv2 has them")
def test_entities_that_only_bmv2_has(primary: Client) -> None:
    for name in ("direct_meter_entry", "action_profile_member", "action_profile_group", "digest_entry"):
        entity = p4r.Entity()
        getattr(entity, name).SetInParent()
        assert primary.codes(MODIFY, entity) == [UNIMPLEMENTED]
    clone = p4r.Entity()
    clone.packet_replication_engine_entry.clone_session_entry.session_id = 1
    assert primary.codes(INSERT, clone) == [UNIMPLEMENTED]


def test_an_empty_entity(primary: Client) -> None:
    assert primary.codes(INSERT, p4r.Entity()) == [UNKNOWN]
    with refused(StatusCode.UNKNOWN):
        primary.read(p4r.Entity())
