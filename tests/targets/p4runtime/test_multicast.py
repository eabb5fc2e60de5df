# SPDX-License-Identifier: Apache-2.0
"""Multicast groups."""

from __future__ import annotations

import pytest
from finsy.proto import p4r
from grpc import StatusCode

from .client import DELETE, INSERT, MODIFY, Client, group_entry, refused

OK, INVALID, NOT_FOUND, EXISTS, OUT_OF_RANGE, UNIMPLEMENTED = 0, 3, 5, 6, 11, 12


def replicas(entity: p4r.Entity) -> set[tuple[int, int]]:
    found = entity.packet_replication_engine_entry.multicast_group_entry.replicas
    return {(replica.egress_port, replica.instance) for replica in found}  # in any order


def test_groups_are_written_and_read_back(primary: Client) -> None:
    one, two = group_entry(1, (1, 1), (2, 2), (2, 3)), group_entry(700, (5, 0))
    primary.write(INSERT, one, two)
    [found] = primary.read(group_entry(1))
    assert replicas(found) == replicas(one)
    assert sorted(len(replicas(group)) for group in primary.read(group_entry(0))) == [1, 3]
    fewer = group_entry(1, (2, 2))
    primary.write(MODIFY, fewer)
    assert primary.read(group_entry(1)) == [fewer]
    primary.write(DELETE, group_entry(1))
    assert primary.read(group_entry(0)) == [two]


def test_a_group_without_replicas(primary: Client) -> None:
    primary.write(INSERT, group_entry(1))
    assert primary.read(group_entry(1)) == [group_entry(1)]
    primary.write(MODIFY, group_entry(1, (1, 1)))
    assert primary.read(group_entry(1)) == [group_entry(1, (1, 1))]


def test_replicas_with_ports_as_byte_strings(primary: Client) -> None:
    entity = group_entry(1)
    entity.packet_replication_engine_entry.multicast_group_entry.replicas.add(port=b"\x07", instance=1)
    primary.write(INSERT, entity)
    assert primary.read(group_entry(1)) == [entity]


def test_refused(primary: Client) -> None:
    primary.write(INSERT, group_entry(1, (1, 1)))
    assert primary.codes(INSERT, group_entry(1, (2, 2))) == [EXISTS]
    assert primary.codes(MODIFY, group_entry(2, (2, 2))) == [NOT_FOUND]
    assert primary.codes(DELETE, group_entry(2)) == [NOT_FOUND]
    assert primary.codes(INSERT, group_entry(0, (1, 1))) == [INVALID]
    assert primary.codes(INSERT, group_entry(1 << 15, (1, 1))) == [OUT_OF_RANGE]
    assert primary.codes(INSERT, group_entry(3, (1, 1), (1, 1))) == [INVALID]
    assert primary.codes(p4r.Update.UNSPECIFIED, group_entry(3, (1, 1))) == [INVALID]
    no_port = group_entry(3)
    no_port.packet_replication_engine_entry.multicast_group_entry.replicas.add(instance=1)
    assert primary.codes(INSERT, no_port) == [INVALID]
    nothing = p4r.Entity()
    nothing.packet_replication_engine_entry.SetInParent()
    assert primary.codes(INSERT, nothing) == [INVALID]
    assert primary.read(group_entry(0)) == [group_entry(1, (1, 1))]


@pytest.mark.bmv2_differs("BMv2 takes the lower bits")
def test_ports_and_instances_that_no_switch_has(primary: Client) -> None:
    for port, instance in ((0, 1), (511, 1), (1, 1 << 16)):
        assert primary.codes(INSERT, group_entry(3, (port, instance))) == [INVALID]
    backup = group_entry(3, (1, 1))
    replica = backup.packet_replication_engine_entry.multicast_group_entry.replicas[0]
    replica.backup_replicas.add(port=b"\x02", instance=1)
    assert primary.codes(INSERT, backup) == [UNIMPLEMENTED]


@pytest.mark.parametrize(("group", "code"), [(5, StatusCode.NOT_FOUND), (1 << 15, StatusCode.OUT_OF_RANGE)])
def test_unreadable(primary: Client, group: int, code: StatusCode) -> None:
    with refused(code):
        primary.read(group_entry(group))
