# SPDX-License-Identifier: Apache-2.0
"""Indirect and direct counters."""

from __future__ import annotations

import pytest
from finsy.proto import p4r
from grpc import StatusCode

from .client import (
    COUNTERS,
    DELETE,
    INSERT,
    MODIFY,
    TABLES,
    Client,
    action,
    counter_entry,
    exact_entry,
    refused,
)

UNKNOWN, INVALID, UNIMPLEMENTED = 2, 3, 12
FORWARD = action("forward", 3)
CELLS = dict.fromkeys(range(8), (0, 0))


def direct(entry: p4r.TableEntry | None, packets: int = 0, size: int = 0) -> p4r.Entity:
    entity = p4r.Entity()
    entity.direct_counter_entry.table_entry.CopyFrom(entry or p4r.TableEntry())
    entity.direct_counter_entry.data.packet_count, entity.direct_counter_entry.data.byte_count = packets, size
    return entity


def test_cells_are_set_and_cleared(primary: Client) -> None:
    assert primary.read_counts(counter_entry("cells")) == CELLS
    primary.write(MODIFY, counter_entry("cells", 3, 7, 700), counter_entry("cells", 0, 2**40, 2**50))
    assert primary.read_counts(counter_entry("cells")) == {**CELLS, 3: (7, 700), 0: (2**40, 2**50)}
    assert primary.read_counts(counter_entry("cells", 3)) == {3: (7, 700)}
    primary.write(DELETE, counter_entry("cells", 3))
    assert primary.read_counts(counter_entry("cells", 3)) == {3: (0, 0)}


def test_every_counter_at_once(primary: Client) -> None:
    found = primary.read(counter_entry(0))
    ids = [entity.counter_entry.counter_id for entity in found]
    assert sorted(set(ids)) == sorted([COUNTERS["cells"], COUNTERS["packets_only"]])
    assert len(ids) == 12


def test_a_counter_of_packets(primary: Client) -> None:
    primary.write(MODIFY, counter_entry("packets_only", 1, 7, 700))
    assert primary.read_counts(counter_entry("packets_only", 1))[1][0] == 7


@pytest.mark.parametrize("index", [8, -1])
def test_an_index_that_is_not_there(primary: Client, index: int) -> None:
    code = StatusCode.UNKNOWN if index == 8 else StatusCode.INVALID_ARGUMENT
    entity = counter_entry("cells", index, 1, 1)
    assert primary.codes(MODIFY, entity) == [code.value[0]]
    with refused(code):
        primary.read(counter_entry("cells", index))


def test_refused(primary: Client) -> None:
    assert primary.codes(INSERT, counter_entry("cells", 1, 1, 1)) == [INVALID]
    assert primary.codes(MODIFY, counter_entry("cells")) == [UNIMPLEMENTED]
    assert primary.codes(MODIFY, counter_entry(0x12FFFFFF, 1)) == [INVALID]
    assert primary.codes(MODIFY, counter_entry("exact_hits", 1, 1, 1)) == [INVALID]
    for counter in (0x12FFFFFF, "exact_hits"):
        with refused(StatusCode.INVALID_ARGUMENT):
            primary.read(counter_entry(counter, 1))


def test_direct_counters(primary: Client) -> None:
    one, two = exact_entry(1), exact_entry(2)
    primary.write(INSERT, exact_entry(1, FORWARD), exact_entry(2, FORWARD))
    primary.write(MODIFY, direct(one, 5, 500))
    assert primary.read(direct(one)) == [direct(one, 5, 500)]
    table = p4r.TableEntry(table_id=TABLES["exact_table"].preamble.id)
    assert primary.read(direct(table)) == [direct(one, 5, 500), direct(two, 0, 0)]
    primary.write(DELETE, direct(one))
    assert primary.read(direct(one)) == [direct(one, 0, 0)]


def test_direct_counters_with_the_entry(primary: Client) -> None:
    entry = exact_entry(1, FORWARD)
    entry.counter_data.packet_count, entry.counter_data.byte_count = 3, 300
    primary.write(INSERT, entry)
    asking = exact_entry(1)
    asking.counter_data.SetInParent()
    assert primary.read_entries(asking) == [entry]
    assert not primary.read_entries(exact_entry(1))[0].HasField("counter_data")


@pytest.mark.bmv2_differs("BMv2 accepts a negative count")
def test_an_entry_with_a_counter_that_cannot_be_is_refused_as_a_whole(primary: Client) -> None:
    entry = exact_entry(1, FORWARD)
    entry.counter_data.packet_count = -1
    assert primary.codes(INSERT, entry) == [INVALID]
    assert primary.read_entries(exact_entry(1)) == []
    primary.write(INSERT, exact_entry(1, FORWARD))
    entry.action.CopyFrom(action("discard"))
    assert primary.codes(MODIFY, entry) == [INVALID]
    assert primary.read_entries(exact_entry(1)) == [exact_entry(1, FORWARD)]


def test_modifying_an_entry_leaves_its_counter(primary: Client) -> None:
    primary.write(INSERT, exact_entry(1, FORWARD))
    primary.write(MODIFY, direct(exact_entry(1), 5, 500))
    primary.write(MODIFY, exact_entry(1, action("discard")))
    assert primary.read(direct(exact_entry(1))) == [direct(exact_entry(1), 5, 500)]
    primary.write(DELETE, exact_entry(1))
    primary.write(INSERT, exact_entry(1, FORWARD))
    assert primary.read(direct(exact_entry(1))) == [direct(exact_entry(1), 0, 0)]


def test_refused_direct_counters(primary: Client) -> None:
    lpm = p4r.TableEntry(table_id=TABLES["lpm_table"].preamble.id)
    no_entry = p4r.Entity()
    no_entry.direct_counter_entry.SetInParent()
    assert primary.codes(MODIFY, direct(exact_entry(1), 1, 1)) == [INVALID]  # no such entry
    assert primary.codes(MODIFY, no_entry) == [INVALID]
    primary.write(INSERT, exact_entry(1, FORWARD))
    assert primary.codes(INSERT, direct(exact_entry(1), 1, 1)) == [INVALID]
    for entity in (direct(exact_entry(9)), direct(lpm), no_entry):
        with refused(StatusCode.INVALID_ARGUMENT):
            primary.read(entity)


@pytest.mark.bmv2_differs("BMv2 does not implement it")
def test_direct_counters_of_all_tables(primary: Client) -> None:
    primary.write(INSERT, exact_entry(1, FORWARD))
    assert primary.read(direct(None)) == [direct(exact_entry(1), 0, 0)]
