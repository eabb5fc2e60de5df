# SPDX-License-Identifier: Apache-2.0
"""Multicast groups of the packet replication engine."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import DataPlane, Replica
from p4reduce_targets.p4runtime.errors import Refused, invalid, unsupported
from p4reduce_targets.p4runtime.readback import Undo, store

GROUP_LIMIT = 1 << 15  # BMv2 uses the group ids from here on itself
INSTANCE_LIMIT = 1 << 16
PORT_LIMIT = 511


class Multicast:
    """The multicast groups as they are read back. Each is also set in the data plane."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._groups: dict[int, p4r.MulticastGroupEntry] = {}

    def write(self, kind: int, entry: p4r.PacketReplicationEngineEntry) -> Undo:
        """Insert, modify or delete a group; raise Refused and change nothing if that is not possible."""
        group = _group(entry)
        number = group.multicast_group_id
        if number == 0:
            raise invalid("0 is not a valid group id")
        if number >= GROUP_LIMIT:
            raise Refused(StatusCode.OUT_OF_RANGE, f"Group id value is too high: {number}, below {GROUP_LIMIT} is")
        if kind == p4r.Update.INSERT and number in self._groups:
            raise Refused(StatusCode.ALREADY_EXISTS, f"Multicast group already exists: {number}")
        if kind != p4r.Update.INSERT and number not in self._groups:
            raise Refused(StatusCode.NOT_FOUND, f"Multicast group does not exist: {number}")
        if kind == p4r.Update.DELETE:
            self._data_plane.set_group(number, ())
            return store(self._groups, number, None)
        self._data_plane.set_group(number, _replicas(group))
        return store(self._groups, number, _canonical(group))

    def read(self, entry: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.PacketReplicationEngineEntry]:
        """Yield one group, or all of them (group id 0). A read of all clone sessions yields nothing."""
        if entry.HasField("clone_session_entry") and not entry.clone_session_entry.session_id:
            return
        number = _group(entry).multicast_group_id
        if number >= GROUP_LIMIT:
            raise Refused(StatusCode.OUT_OF_RANGE, f"Group id value is too high: {number}, below {GROUP_LIMIT} is")
        if number and number not in self._groups:
            raise Refused(StatusCode.NOT_FOUND, f"Multicast group does not exist: {number}")
        for group in [self._groups[number]] if number else list(self._groups.values()):
            yield p4r.PacketReplicationEngineEntry(multicast_group_entry=group)

    def replay(self, other: Multicast) -> None:
        """Copy every group of `other`."""
        for group in other._groups.values():
            self.write(p4r.Update.INSERT, p4r.PacketReplicationEngineEntry(multicast_group_entry=group))


def _group(entry: p4r.PacketReplicationEngineEntry) -> p4r.MulticastGroupEntry:
    kind = entry.WhichOneof("type")
    if kind == "clone_session_entry":
        raise unsupported("Clone sessions are not supported")
    if kind is None:
        raise invalid("Invalid PRE operation")
    return entry.multicast_group_entry


def _replicas(group: p4r.MulticastGroupEntry) -> list[Replica]:
    replicas: dict[Replica, None] = {}
    for item in group.replicas:
        if item.backup_replicas:
            raise unsupported("Backup replicas are not supported")
        kind = item.WhichOneof("port_kind")
        if kind is None:
            raise invalid("Missing port in multicast group replica")
        port = item.egress_port if kind == "egress_port" else int.from_bytes(item.port, "big")
        if not 0 < port < PORT_LIMIT or item.instance >= INSTANCE_LIMIT:
            raise invalid(
                f"Replica (port {port}, instance {item.instance}) of group {group.multicast_group_id}: accepted are "
                f"ports 1 to {PORT_LIMIT - 1} and instances up to {INSTANCE_LIMIT - 1}"
            )
        replica = Replica(port, item.instance)
        if replica in replicas:
            raise invalid("Duplicate replica in multicast group")
        replicas[replica] = None
    return list(replicas)


def _canonical(group: p4r.MulticastGroupEntry) -> p4r.MulticastGroupEntry:
    """Return the group with its replicas in the order of their instances, as in BMv2."""
    ordered = sorted(group.replicas, key=lambda item: (item.instance, item.egress_port, item.port))
    return p4r.MulticastGroupEntry(multicast_group_id=group.multicast_group_id, replicas=ordered)
