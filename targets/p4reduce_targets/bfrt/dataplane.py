# SPDX-License-Identifier: Apache-2.0
"""A Tofino's tables, counters, meters and multicast groups, behind the interface that sim and native have as well.

A write becomes one update of BF Runtime, or several for a multicast group; those of a batch go in one request. If part
of a group is refused, the rest of it is taken back.

All writes are for all pipes. Counters come back as the sum of all pipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt.client import BfrtError, Client, ReadRefused, UpdateError
from p4reduce_targets.bfrt.schema import DataField, KeyField, Schema, Table
from p4reduce_targets.bfrt.updates import encode, entry_update, number_key
from p4reduce_targets.dataplane import Batch, Call, Count, Exact, Key, Lpm, MeterConfig, Replica, Ternary

LARGEST_PRIORITY = (1 << 24) - 1
"""The largest priority of P4Runtime. A TCAM has as many below the next group of priorities; Stratum has the same."""

_MATCH_TABLES = ("MatchAction_Direct",)  # kinds of tables; those with action profiles are not supported
_PRIORITY = "$MATCH_PRIORITY"
_BYTES, _PACKETS = "$COUNTER_SPEC_BYTES", "$COUNTER_SPEC_PKTS"
_SYNC = ("Sync", "SyncCounters")  # the operation's names for indirect and direct counters
# Cells that are read from the chip one by one: each took 3 ms with Intel's model. For more, the operation copies all
# cells of a table first, which took 250 ms.
_MOST_FROM_HW = 64
_GROUPS, _NODES = "$pre.mgid", "$pre.node"
_PORTS_OF_PIPE = 72  # of the 128 numbers that a pipe has
_CLEAR_TIMEOUT_S = 60.0  # for one table: a register has tens of thousands of cells in each pipe

# A meter adds m / 2^e tokens in each cycle of the chip's clock, with m from 1 to 511 and e to 27. The driver rounds m
# down without a word, to 0 for less than clock / 2^27 packets a second, or for a burst below 2; 0 never adds a token.
# This rate is the least for clocks up to 1.6 GHz.
_LEAST_RATE = 12  # packets a second
_LEAST_BURST = 2  # packets
_UNLIMITED = (1 << 64) - 1  # the schema's default: the driver configures a meter that lets everything pass


@dataclass(frozen=True, slots=True)
class _Step:
    """An update, and the one that takes it back if another step of the same write is refused."""

    do: pb.Update
    undo: pb.Update | None = None


@dataclass(frozen=True, slots=True)
class _Write:
    """A write: one update, or the replicas of a multicast group. `label`: the batch's."""

    label: int
    update: pb.Update | None = None
    group: int = 0
    nodes: Mapping[int, tuple[int, ...]] | None = None  # the ports of each instance (rid)


class BfrtDataPlane:
    """The data plane of a bound client; writes wait until `run`. Not thread safe: the caller locks it.

    Its methods raise what `DataPlane` says, and BfrtLost when the connection has ended: then the switch may have done
    some of the last writes.
    """

    def __init__(self, client: Client, schema: Schema) -> None:
        """Create the data plane. `schema`: of the program, and of the tables that every switch has."""
        self._client = client
        self._schema = schema
        self._running = False
        self._batch: Batch | None = None
        self._pending: list[_Write] = []
        self._groups: dict[int, Mapping[int, tuple[int, ...]]] = {}  # as they are in the switch

    def run(self, *, is_clear: bool = False) -> None:
        """Clear the switch, and do the writes so far; later ones are done at once.

        is_clear: nothing was written since the program was installed, so there is nothing to clear.

        Raises ValueError if one of the writes is refused, and BfrtError.
        """
        if not is_clear:
            self.clear()
        self._running = True
        if errors := self._flush():
            raise ValueError(*next(iter(errors.values())).args)

    def clear(self) -> None:
        """Remove everything that an earlier client has written or packets have left. Raises BfrtError.

        That is entries, default actions, groups, and the values of counters, meters and registers.
        """
        for table in self._schema.tables.values():
            if table.kind in (*_MATCH_TABLES, "Counter", "Meter", "Register"):
                self._clear(table)
        for name in (_GROUPS, _NODES):  # groups first, as they name the nodes
            table = self._schema.table(name)
            found = self._client.read([pb.TableEntry(table_id=table.id)])
            deletes = [
                entry_update(pb.Update.DELETE, pb.TableEntry(table_id=table.id, key=entry.key)) for entry in found
            ]
            for error in self._client.write(deletes):
                if error is not None:
                    raise BfrtError(f"{self._client}: an old entry of {name} cannot be removed: {error}")
        self._groups = {}

    def _clear(self, table: Table) -> None:
        delete_all = entry_update(pb.Update.DELETE, pb.TableEntry(table_id=table.id))
        (error,) = self._client.write([delete_all], timeout_s=_CLEAR_TIMEOUT_S)
        if error is not None and table.kind in _MATCH_TABLES and error.code is grpc.StatusCode.INVALID_ARGUMENT:
            # A table with constant entries gives this answer; only the server's context.json shows which has. The
            # server then leaves the default action, which it otherwise resets as well.
            entry = pb.TableEntry(table_id=table.id, is_default_entry=True)
            resets = [] if table.has_const_default else [entry_update(pb.Update.DELETE, entry)]
            error = next(iter(self._client.write(resets)), None)
        if error is not None:
            raise BfrtError(f"{self._client}: {table.name} cannot be cleared: {error}")

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Send the writes until the end of the context as one request. `Batch.errors` then has those refused."""
        self._batch = batch = Batch()
        try:
            yield batch
        finally:
            self._batch = None
            if self._running:
                batch.errors.update(self._flush())

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        self._write_entry(pb.Update.INSERT, table, key, priority, call)

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        self._write_entry(pb.Update.MODIFY, table, key, priority, call)

    def delete(self, table: str, key: Key, priority: int) -> None:
        self._write_entry(pb.Update.DELETE, table, key, priority, None)

    def set_default(self, table: str, call: Call | None) -> None:
        found = self._match_table(table)
        if found.has_const_default:
            raise ValueError(f"the default action of {table} is constant")
        entry = pb.TableEntry(table_id=found.id, is_default_entry=True)
        if call is not None:
            entry.data.CopyFrom(_action(found, call))
        self._submit(entry_update(pb.Update.DELETE if call is None else pb.Update.MODIFY, entry))

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        width = self._schema.table(_GROUPS).key("$MGID").bits
        if not 0 < group < 1 << width:
            raise ValueError(f"multicast group {group}: accepted are 1 to {(1 << width) - 1}")
        nodes: dict[int, tuple[int, ...]] = {}
        for replica in replicas:
            ports = nodes.get(replica.instance, ())
            if not 0 <= replica.instance <= 0xFFFF:
                raise ValueError(f"multicast group {group}: instance {replica.instance}; accepted are 0 to {0xFFFF}")
            # The server silently leaves out such a port, or takes another for it.
            if not 0 <= replica.port < 512 or replica.port % 128 >= _PORTS_OF_PIPE:
                raise ValueError(f"multicast group {group}: the chip has no port {replica.port}")
            if replica.port in ports:
                raise ValueError(f"multicast group {group}: {replica} is there twice")
            nodes[replica.instance] = (*ports, replica.port)
        self._add(_Write(self._label, group=group, nodes=nodes))

    def read_counters(self, cells: Sequence[tuple[str, int]]) -> list[Count]:
        tables = [self._indirect(counter, "Counter", index) for counter, index in cells]
        entries = [
            pb.TableEntry(table_id=table.id, key=number_key(table, index))
            for table, (_, index) in zip(tables, cells, strict=True)
        ]
        return self._read_counts(tables, entries)

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        table = self._indirect(counter, "Counter", index)
        data = pb.TableData(fields=_counts(table, count))
        entry = pb.TableEntry(table_id=table.id, key=number_key(table, index), data=data)
        self._submit(entry_update(pb.Update.MODIFY, entry))

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        table = self._indirect(meter, "Meter", index)
        data = pb.TableData(fields=_meter(table, config))
        entry = pb.TableEntry(table_id=table.id, key=number_key(table, index), data=data)
        self._submit(entry_update(pb.Update.MODIFY, entry))

    def read_direct_counters(self, entries: Sequence[tuple[str, Key, int]]) -> list[Count]:
        tables = [self._counted(table) for table, _, _ in entries]
        wanted = [
            pb.TableEntry(
                table_id=table.id,
                key=_key(table, key, priority),
                data=pb.TableData(fields=[pb.DataField(field_id=field.id) for field in _count_fields(table)]),
            )
            for table, (_, key, priority) in zip(tables, entries, strict=True)
        ]
        return self._read_counts(tables, wanted)

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        found = self._counted(table)
        entry = pb.TableEntry(table_id=found.id, key=_key(found, key, priority))
        if (inserted := self._just_inserted()) and (inserted.table_id, inserted.key) == (found.id, entry.key):
            inserted.data.fields.extend(_counts(found, count))  # so both are done, or neither
            return
        # Without this flag, the server leaves counters as they are, and says nothing.
        entry.table_flags.reset_stats = True
        entry.data.fields.extend(_counts(found, count))
        self._submit(entry_update(pb.Update.MODIFY, entry))

    def _just_inserted(self) -> pb.TableEntry | None:
        """Return the entry that the last write inserts, if that waits and has the same label as what comes now."""
        last = self._pending[-1] if self._pending else None
        if last is None or last.label != self._label or last.update is None or last.update.type != pb.Update.INSERT:
            return None
        return last.update.entity.table_entry

    def _write_entry(self, kind: pb.Update.Type, table: str, key: Key, priority: int, call: Call | None) -> None:
        found = self._match_table(table)
        data = None if call is None else _action(found, call)
        self._submit(entry_update(kind, pb.TableEntry(table_id=found.id, key=_key(found, key, priority), data=data)))

    def _match_table(self, name: str) -> Table:
        return self._named(name, _MATCH_TABLES, "table")

    def _counted(self, name: str) -> Table:
        table = self._match_table(name)
        if not _count_fields(table):
            raise ValueError(f"table {name} has no direct counter")
        return table

    def _indirect(self, name: str, kind: str, index: int) -> Table:
        table = self._named(name, (kind,), kind.lower())
        if not 0 <= index < table.size:
            raise ValueError(f"{name} has no index {index}: 0 to {table.size - 1}")
        return table

    def _named(self, name: str, kinds: Sequence[str], what: str) -> Table:
        table = self._schema.tables.get(f"pipe.{name}")
        if table is None or table.kind not in kinds:
            raise KeyError(f"the program has no {what} {name}")
        return table

    def _read_counts(self, tables: Sequence[Table], entries: Sequence[pb.TableEntry]) -> list[Count]:
        """Read counters, with what the chip has counted since they were last read."""
        if len(entries) <= _MOST_FROM_HW:
            for entry in entries:
                entry.table_flags.from_hw = True
        else:
            self._synchronize(tables)
        try:
            found = self._client.read(entries)
        except ReadRefused as refused:
            at, first = next((at, error) for at, error in enumerate(refused.errors) if error is not None)
            raise _error(first, tables[at].name) from None
        return [_count(table, entry) for table, entry in zip(tables, found, strict=True)]

    def _synchronize(self, tables: Sequence[Table]) -> None:
        """Let the driver add what the chip has counted to its own numbers. Raises ValueError."""
        syncs = [
            pb.TableOperation(table_id=table.id, table_operations_type=name)
            for table in {table.id: table for table in tables}.values()  # twice for one table would take 5 s
            for name in table.operations
            if name in _SYNC
        ]
        # The server waits 5 s for each, and then goes on without an error. What is read then is older.
        for error in self._client.write([pb.Update(entity=pb.Entity(table_operation=sync)) for sync in syncs]):
            if error is not None:
                raise ValueError(f"{self._client}: counters cannot be read from the chip: {error}")

    @property
    def _label(self) -> int:
        return 0 if self._batch is None else self._batch.label

    def _submit(self, update: pb.Update) -> None:
        self._add(_Write(self._label, update))

    def _add(self, write: _Write) -> None:
        self._pending.append(write)
        if self._running and self._batch is None and (errors := self._flush()):
            raise next(iter(errors.values()))

    def _flush(self) -> dict[int, Exception]:
        """Send all pending writes, and return the errors of those refused, by label."""
        writes, self._pending = self._pending, []
        steps = [self._steps(write) for write in writes]
        results = iter(self._client.write([step.do for each in steps for step in each]))
        refused: dict[int, Exception] = {}
        undo: list[pb.Update] = []
        for write, each in zip(writes, steps, strict=True):
            errors = [next(results) for _ in each]
            first = next(((error, step) for error, step in zip(errors, each, strict=True) if error is not None), None)
            if first is not None:
                error = _error(first[0], self._schema.table_of(_table_id(first[1].do)).name)
                refused.setdefault(write.label, error)
                done = [step for error, step in zip(errors, each, strict=True) if error is None]
                undo += [step.undo for step in reversed(done) if step.undo is not None]
            elif write.nodes is not None:
                self._groups[write.group] = write.nodes
        for left in self._client.write(undo):
            if left is not None:
                raise self._client.lose(f"{self._client}: part of a refused multicast group is left: {left}")
        return refused

    def _steps(self, write: _Write) -> list[_Step]:
        if write.update is not None:
            return [_Step(write.update)]
        assert write.nodes is not None
        return self._group_steps(write.group, self._groups.get(write.group, {}), write.nodes)

    def _group_steps(
        self, group: int, old: Mapping[int, tuple[int, ...]], new: Mapping[int, tuple[int, ...]]
    ) -> list[_Step]:
        """Return the steps from one set of nodes to another. Nodes that stay are never without their group."""
        insert, modify, delete = pb.Update.INSERT, pb.Update.MODIFY, pb.Update.DELETE

        def node(kind: pb.Update.Type, instance: int, ports: tuple[int, ...]) -> pb.Update:
            return entry_update(kind, self._node(group, instance, None if kind == delete else ports))

        def members(kind: pb.Update.Type, instances: Sequence[int], remove: bool = False) -> pb.Update:
            return entry_update(kind, self._members(group, instances, remove))

        added = [instance for instance in new if instance not in old]
        removed = [instance for instance in old if instance not in new]
        changed = [instance for instance in new if instance in old and set(new[instance]) != set(old[instance])]
        steps = [_Step(node(insert, one, new[one]), node(delete, one, new[one])) for one in added]
        if new and not old:
            steps.append(_Step(members(insert, added), entry_update(delete, self._members(group))))
        elif old and not new:
            steps.append(_Step(entry_update(delete, self._members(group)), members(insert, removed)))
        else:
            # One update for each node: of several, the server does those before one that it refuses.
            add = {one: members(pb.Update.MODIFY_INC, [one]) for one in (*added, *removed)}
            remove = {one: members(pb.Update.MODIFY_INC, [one], remove=True) for one in (*added, *removed)}
            steps += [_Step(add[one], remove[one]) for one in added]
            steps += [_Step(node(modify, one, new[one]), node(modify, one, old[one])) for one in changed]
            steps += [_Step(remove[one], add[one]) for one in removed]
        steps += [_Step(node(delete, one, old[one]), node(insert, one, old[one])) for one in removed]
        return steps

    def _node(self, group: int, instance: int, ports: tuple[int, ...] | None) -> pb.TableEntry:
        """Return the entry of a node: one instance (rid) of a group with its ports; None: its key alone."""
        table = self._schema.table(_NODES)
        entry = pb.TableEntry(table_id=table.id, key=number_key(table, _node_id(group, instance)))
        if ports is not None:
            rid = _stream(table.field("$MULTICAST_RID"), instance)
            lags = pb.DataField(field_id=table.field("$MULTICAST_LAG_ID").id, int_arr_val=pb.DataField.IntArray())
            devices = pb.DataField.IntArray(val=ports)
            dev_ports = pb.DataField(field_id=table.field("$DEV_PORT").id, int_arr_val=devices)
            entry.data.fields.extend([rid, lags, dev_ports])
        return entry

    def _members(self, group: int, instances: Sequence[int] = (), remove: bool = False) -> pb.TableEntry:
        """Return the entry of a group with these of its nodes; none of them: its key alone."""
        table = self._schema.table(_GROUPS)
        entry = pb.TableEntry(table_id=table.id, key=number_key(table, group))
        if instances:
            nodes = pb.DataField.IntArray(val=[_node_id(group, instance) for instance in instances])
            # The three lists must be of one length. An exclusion id that is not valid excludes nothing.
            valid = pb.DataField.BoolArray(val=[False] * len(instances))
            xids = pb.DataField.IntArray(val=[0] * len(instances))
            entry.data.fields.extend(
                [
                    pb.DataField(field_id=table.field("$MULTICAST_NODE_ID").id, int_arr_val=nodes),
                    pb.DataField(field_id=table.field("$MULTICAST_NODE_L1_XID_VALID").id, bool_arr_val=valid),
                    pb.DataField(field_id=table.field("$MULTICAST_NODE_L1_XID").id, int_arr_val=xids),
                ]
            )
        if remove:
            entry.table_flags.mod_del = True
        return entry


def _node_id(group: int, instance: int) -> int:
    """Return the number of a node, which is the switch's for all groups: both are 16 bits."""
    return group << 16 | instance


def _table_id(update: pb.Update) -> int:
    return update.entity.table_entry.table_id


def _error(error: UpdateError, table: str) -> Exception:
    text = f"{table.removeprefix('pipe.')}: the switch refuses this: {error}"
    return KeyError(text) if error.code is grpc.StatusCode.NOT_FOUND else ValueError(text)


def _stream(field: DataField, value: int) -> pb.DataField:
    return pb.DataField(field_id=field.id, stream=encode(value, field.bits, field.name))


def _key(table: Table, key: Key, priority: int) -> pb.TableKey:
    """Return an entry's key. In BF Runtime the lowest priority wins, in P4Runtime the highest."""
    fields = [field for field in table.keys if field.name != _PRIORITY]
    if len(key) != len(fields):
        raise ValueError(f"{table.name} has {len(fields)} key fields, and this key {len(key)}")
    found = [_key_field(table, field, match) for field, match in zip(fields, key, strict=True)]
    if len(fields) < len(table.keys):
        if not 0 < priority <= LARGEST_PRIORITY:
            raise ValueError(f"{table.name}: priority {priority}; accepted are 1 to {LARGEST_PRIORITY}")
        field = table.key(_PRIORITY)
        exact = pb.KeyField.Exact(value=encode(LARGEST_PRIORITY - priority, field.bits, _PRIORITY))
        found.append(pb.KeyField(field_id=field.id, exact=exact))
    elif priority:
        raise ValueError(f"{table.name} has no priorities, and this one is {priority}")
    return pb.TableKey(fields=found)


def _key_field(table: Table, field: KeyField, match: Exact | Lpm | Ternary) -> pb.KeyField:
    what = f"{table.name}, {field.name}"
    value = encode(match.value, field.bits, what)
    if field.match_type == "Exact" and isinstance(match, Exact):
        return pb.KeyField(field_id=field.id, exact=pb.KeyField.Exact(value=value))
    if field.match_type == "LPM" and isinstance(match, Lpm):
        if not 0 <= match.prefix_length <= field.bits:
            raise ValueError(f"{what}: a prefix of {match.prefix_length} bits; accepted are 0 to {field.bits}")
        return pb.KeyField(field_id=field.id, lpm=pb.KeyField.LPM(value=value, prefix_len=match.prefix_length))
    if field.match_type == "Ternary" and isinstance(match, Ternary):
        mask = encode(match.mask, field.bits, what)
        return pb.KeyField(field_id=field.id, ternary=pb.KeyField.Ternary(value=value, mask=mask))
    raise ValueError(f"{what}: the match is {type(match).__name__}, and the field's is {field.match_type}")


def _action(table: Table, call: Call) -> pb.TableData:
    action = table.action(call.action)
    if len(call.arguments) != len(action.data):
        raise ValueError(f"{call.action} has {len(action.data)} parameters, and this call {len(call.arguments)}")
    fields = [_stream(field, value) for field, value in zip(action.data, call.arguments, strict=True)]
    return pb.TableData(action_id=action.id, fields=fields)


def _count_fields(table: Table) -> list[DataField]:
    return [field for field in table.data if field.name in (_BYTES, _PACKETS)]


def _counts(table: Table, count: Count) -> list[pb.DataField]:
    values = {_BYTES: count.bytes, _PACKETS: count.packets}
    return [_stream(field, values[field.name]) for field in _count_fields(table)]


def _count(table: Table, entry: pb.TableEntry) -> Count:
    names = {field.id: field.name for field in _count_fields(table)}
    found = {
        names[field.field_id]: int.from_bytes(field.stream, "big")
        for field in entry.data.fields
        if field.field_id in names
    }
    return Count(found.get(_PACKETS, 0), found.get(_BYTES, 0))


def _meter(table: Table, config: MeterConfig | None) -> list[pb.DataField]:
    """Return the rates and bursts of a meter in the units that its table has: packets, or kilobits."""
    in_packets = table.has_field("$METER_SPEC_CIR_PPS")

    if config is None:
        rates, bursts = [_UNLIMITED] * 2, [_UNLIMITED] * 2
    elif in_packets:
        rates = [max(rate, _LEAST_RATE) if rate else 0 for rate in (config.cir, config.pir)]
        bursts = [max(burst, _LEAST_BURST) for burst in (config.cburst, config.pburst)]
    else:
        rates = [_kilobits(rate) for rate in (config.cir, config.pir)]
        bursts = [max(_kilobits(burst), 1) for burst in (config.cburst, config.pburst)]
    per_second, tokens = ("PPS", "PKTS") if in_packets else ("KBPS", "KBITS")
    names = [f"CIR_{per_second}", f"PIR_{per_second}", f"CBS_{tokens}", f"PBS_{tokens}"]
    fields = [table.field(f"$METER_SPEC_{name}") for name in names]
    return [_stream(field, value) for field, value in zip(fields, [*rates, *bursts], strict=True)]


def _kilobits(octets: int) -> int:
    """Return bytes as kilobits of 1000 bits, rounded up."""
    return -(-octets * 8 // 1000)
