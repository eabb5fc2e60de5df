# SPDX-License-Identifier: Apache-2.0
"""The tables of the packet replication engine: `$pre.node` and `$pre.mgid` (`bf_rt_pre_table_impl.cpp`, mc_mgr)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from p4reduce_targets.dataplane import Replica

from .ports import PIPE_PORTS
from .schema import TableSchema
from .status import BfStatus, Failure
from .tables import Data, Table, TableKey, Tables, integer

NODES, XIDS_VALID, XIDS, ECMPS, ECMP_XIDS_VALID, ECMP_XIDS = range(1, 7)  # fields of $pre.mgid
RID, LAGS, PORTS = range(1, 4)  # fields of $pre.node


@dataclass
class Node:
    """A level 1 node: an instance with its ports. A node is in one group at most."""

    instance: int
    ports: list[int]
    group: int | None = None


@dataclass
class Engine:
    """The state of the engine, which both tables share."""

    device: Tables
    nodes: dict[int, Node] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)  # nodes

    def update(self, group: int) -> None:
        """Pass a group on to the data plane. Group 0 is a group as well, but no packet can go there."""
        members = [self.nodes[node] for node in self.groups.get(group, ())]
        if group:
            self.device.plane.set_group(
                group, [Replica(port, node.instance) for node in members for port in node.ports]
            )


class _EngineTable(Table):
    """The base of both tables, which cannot be cleared."""

    partial = False

    def __init__(self, schema: TableSchema, device: Tables, engine: Engine) -> None:
        super().__init__(schema, device)
        self.engine = engine

    def set_value(self, data: Data, number: int, kind: str, value: Any) -> None:
        """Set a field, which is an array or an integer."""
        declared = self.schema.data.get(number)
        if declared is None:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        wanted = ("bool_arr_val" if declared.type == "bool" else "int_arr_val") if declared.repeated else "stream"
        if kind != wanted:
            raise Failure(BfStatus.NOT_SUPPORTED)
        made = integer(declared, value) if kind == "stream" else list(value.val)
        if kind == "int_arr_val" and any(one >> declared.bits for one in made):
            raise Failure(BfStatus.INVALID_ARG)
        data.values[number] = made


class NodeTable(_EngineTable):
    """The table `$pre.node`."""

    def add(self, key: TableKey, data: Data) -> None:
        """Create a node."""
        if key[0] in self.engine.nodes:
            raise Failure(BfStatus.ALREADY_EXISTS)
        if len(self.engine.nodes) >= self.size:
            raise Failure(BfStatus.NO_SPACE)
        self.engine.nodes[key[0]] = Node(data.values.get(RID, 0), self._ports(data))

    def modify(self, key: TableKey, data: Data) -> None:
        """Change the ports of a node; its instance stays (`mcMgrNodeUpdate` does not take one)."""
        node = self._existing(key)
        node.ports = self._ports(data)
        if RID in data.values and data.values[RID] != node.instance:
            self.device.remarks.append(f"{self.name}: a node's instance is modified, which does nothing")
        if node.group is not None:
            self.engine.update(node.group)

    def delete(self, key: TableKey) -> None:
        """Remove a node, also from its group (`bf_mc_node_destroy`)."""
        node = self._existing(key)
        if node.group is not None:
            self.device.remarks.append(f"{self.name}: node {key[0]} is deleted, which group {node.group} has")
            self.engine.groups[node.group].remove(key[0])
            self.engine.update(node.group)
        del self.engine.nodes[key[0]]

    def get(self, key: TableKey, _wanted: Data) -> Data:
        """Return a node."""
        node = self._existing(key)
        return Data(0, {RID: node.instance, LAGS: [], PORTS: node.ports}, set(self.schema.data))

    def keys(self) -> Iterable[TableKey]:
        """Return all nodes."""
        return [(node,) for node in sorted(self.engine.nodes)]

    def _existing(self, key: TableKey) -> Node:
        if key[0] not in self.engine.nodes:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        return self.engine.nodes[key[0]]

    def _ports(self, data: Data) -> list[int]:
        """Return the ports in the order of the bitmap that they become, in which there is no bit for some ports."""
        if data.values.get(LAGS):
            raise Failure(BfStatus.NOT_IMPLEMENTED)
        ports = set(data.values.get(PORTS, ()))
        kept = {port for port in ports if port < 4 * PIPE_PORTS and port % PIPE_PORTS < 72}
        if kept != ports:
            self.device.remarks.append(f"{self.name}: a node with ports that no chip has: {sorted(ports - kept)}")
        return sorted(kept)


class GroupTable(_EngineTable):
    """The table `$pre.mgid`."""

    def add(self, key: TableKey, data: Data) -> None:
        """Create a group of nodes that exist, and that no other group has (`mcMGIDNodeMbrsAdd`)."""
        (group,) = key
        if group in self.engine.groups:
            raise Failure(BfStatus.ALREADY_EXISTS)
        if len(self.engine.groups) >= self.size:
            raise Failure(BfStatus.NO_SPACE)
        self._check_sizes(data)
        self._associate(group, data.values.get(NODES, []))

    def modify(self, key: TableKey, data: Data) -> None:
        """Replace the nodes of a group. If that fails, it has those that it had."""
        (group,) = key
        if group not in self.engine.groups:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        self._check_sizes(data)
        old = self.engine.groups[group]
        self._dissociate(group)
        try:
            self._associate(group, data.values.get(NODES, []))
        except Failure:
            self._associate(group, old)
            raise

    def modify_incrementally(self, key: TableKey, data: Data, remove: bool) -> None:
        """Add nodes to a group, or remove some of its nodes. Those before one that fails are done."""
        (group,) = key
        if group not in self.engine.groups:
            raise Failure(BfStatus.ALREADY_EXISTS)  # sic
        self._check_sizes(data)
        try:
            for node in data.values.get(NODES, []):
                if remove:
                    self._take_out(group, node)
                else:
                    self._put_in(group, node)
        finally:
            self.engine.update(group)

    def delete(self, key: TableKey) -> None:
        """Remove a group; its nodes stay."""
        if key[0] not in self.engine.groups:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        self._dissociate(key[0])

    def get(self, key: TableKey, _wanted: Data) -> Data:
        """Return a group."""
        if key[0] not in self.engine.groups:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        nodes = self.engine.groups[key[0]]
        values = {NODES: nodes, XIDS_VALID: [False] * len(nodes), XIDS: [0] * len(nodes)}
        return Data(0, values, set(self.schema.data))

    def keys(self) -> Iterable[TableKey]:
        """Return all groups."""
        return [(group,) for group in sorted(self.engine.groups)]

    def _check_sizes(self, data: Data) -> None:
        """Refuse lists of different lengths (`mcMGIDValidateDataMbrsSize`)."""
        for fields in ((NODES, XIDS, XIDS_VALID), (ECMPS, ECMP_XIDS, ECMP_XIDS_VALID)):
            if len({len(data.values.get(one, ())) for one in fields}) > 1:
                raise Failure(BfStatus.INVALID_ARG)
        if data.values.get(ECMPS):
            raise Failure(BfStatus.OBJECT_NOT_FOUND)

    def _associate(self, group: int, nodes: list[int]) -> None:
        self.engine.groups[group] = []
        try:
            for node in nodes:
                self._put_in(group, node)
        except Failure:
            self._dissociate(group)
            raise
        self.engine.update(group)

    def _put_in(self, group: int, node: int) -> None:
        if node not in self.engine.nodes:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        if self.engine.nodes[node].group is not None:
            raise Failure(BfStatus.ALREADY_EXISTS)
        self.engine.nodes[node].group = group
        self.engine.groups[group].append(node)

    def _take_out(self, group: int, node: int) -> None:
        """Dissociate a node (`mc_mgr_l1_dissociate`)."""
        if node not in self.engine.nodes:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        if self.engine.nodes[node].group != group:
            raise Failure(BfStatus.ALREADY_EXISTS)  # sic
        self.engine.nodes[node].group = None
        self.engine.groups[group].remove(node)

    def _dissociate(self, group: int) -> None:
        for node in self.engine.groups.pop(group):
            self.engine.nodes[node].group = None
        self.engine.update(group)
