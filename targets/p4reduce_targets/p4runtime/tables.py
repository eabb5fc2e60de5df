# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of table entries, default actions and direct counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finsy.proto import p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import Call, Count, DataPlane, Key
from p4reduce_targets.p4runtime.counters import read_count, write_count
from p4reduce_targets.p4runtime.errors import Refused, invalid, unsupported
from p4reduce_targets.p4runtime.matching import read_action, read_key, write_action, write_key
from p4reduce_targets.p4runtime.program import Counter, Program, Table
from p4reduce_targets.p4runtime.readback import Undo, store, stored_elsewhere

_EntryKey = tuple[Key, int]  # key and priority


class Tables:
    """The entries and default actions as they are read back. Each is also set in the data plane."""

    def __init__(self, program: Program, data_plane: DataPlane) -> None:
        self._program = program
        self._data_plane = data_plane
        self._entries: dict[int, dict[_EntryKey, p4r.TableEntry]] = {table_id: {} for table_id in program.tables}
        self._defaults: dict[int, p4r.TableEntry] = {}
        for table in program.tables.values():
            self._defaults[table.id] = self._initial_default(table)

    def write(self, kind: int, entry: p4r.TableEntry) -> Undo:
        """Insert, modify or delete an entry; return a function that undoes it here, but not in the data plane.

        Raises Refused, or what the data plane raises, and then changes nothing.
        """
        table = self._program.table(entry.table_id)
        if entry.HasField("time_since_last_hit"):
            raise invalid("time_since_last_hit must not be set in a WriteRequest")
        if entry.idle_timeout_ns:
            raise invalid(f"idle_timeout_ns must be 0: {table.name} does not support idle timeout")
        if entry.HasField("meter_config"):
            raise invalid(f"Table has no direct meters: {table.name}")
        count = _count_of(table, entry)
        if entry.is_default_action:
            return self._write_default(kind, table, entry)
        if kind == p4r.Update.INSERT:
            return self._insert(table, entry, count)
        if kind == p4r.Update.MODIFY:
            return self._modify(table, entry, count)
        return self._delete(table, entry)

    def _insert(self, table: Table, entry: p4r.TableEntry, count: Count | None) -> Undo:
        if not entry.HasField("action"):
            raise invalid("'action' field must be set")
        key, priority = read_key(table, entry)
        call = read_action(self._program, table, entry.action, default=False)
        if (key, priority) in self._entries[table.id]:
            raise Refused(StatusCode.ALREADY_EXISTS, "Match entry exists, use MODIFY if you wish to change action")
        self._data_plane.insert(table.name, key, priority, call)
        if count is not None:
            self._data_plane.write_direct_counter(table.name, key, priority, count)
        return self._store(table, key, priority, entry, call)

    def _modify(self, table: Table, entry: p4r.TableEntry, count: Count | None) -> Undo:
        key, priority = read_key(table, entry)
        if not entry.HasField("action"):
            raise invalid("'action' field must be set for non-default entries")
        call = read_action(self._program, table, entry.action, default=False)
        self._find(table, key, priority)
        self._data_plane.modify(table.name, key, priority, call)
        if count is not None:
            self._data_plane.write_direct_counter(table.name, key, priority, count)
        return self._store(table, key, priority, entry, call)

    def _delete(self, table: Table, entry: p4r.TableEntry) -> Undo:
        key, priority = read_key(table, entry)
        self._find(table, key, priority)
        self._data_plane.delete(table.name, key, priority)
        return store(self._entries[table.id], (key, priority), None)

    def _find(self, table: Table, key: Key, priority: int) -> p4r.TableEntry:
        found = self._entries[table.id].get((key, priority))
        if found is None:
            raise Refused(StatusCode.NOT_FOUND, f"Cannot find match entry in {table.name}")
        return found

    def _store(self, table: Table, key: Key, priority: int, entry: p4r.TableEntry, call: Call) -> Undo:
        stored = p4r.TableEntry(
            table_id=table.id, controller_metadata=entry.controller_metadata, metadata=entry.metadata
        )
        write_key(table, key, priority, stored)
        stored.action.CopyFrom(write_action(self._program.action(entry.action.action.action_id), call.arguments))
        return store(self._entries[table.id], (key, priority), stored)

    def _initial_default(self, table: Table) -> p4r.TableEntry:
        entry = p4r.TableEntry(table_id=table.id, is_default_action=True)
        if table.default is not None:
            entry.action.CopyFrom(table.default)
        return entry

    def _write_default(self, kind: int, table: Table, entry: p4r.TableEntry) -> Undo:
        if kind != p4r.Update.MODIFY:
            raise invalid("Only MODIFY can be used for the default entry, not INSERT or DELETE")
        if entry.match or entry.priority:
            raise invalid("Non-empty key or non-zero priority for default entry")
        if table.default_is_constant:
            raise Refused(
                StatusCode.PERMISSION_DENIED,
                f"Cannot set / reset default action for table {table.name} which has a const default action",
            )
        if entry.HasField("counter_data"):
            raise unsupported("Direct counters of default entries are not supported")
        call = read_action(self._program, table, entry.action, default=True) if entry.HasField("action") else None
        self._data_plane.set_default(table.name, call)
        stored = self._initial_default(table)
        if call is not None:
            action = self._program.action(entry.action.action.action_id)
            stored.action.CopyFrom(write_action(action, call.arguments))
            stored.controller_metadata, stored.metadata = entry.controller_metadata, entry.metadata
        return store(self._defaults, table.id, stored)

    def read(self, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Yield one entry, all entries of a table or of every table (table id 0), or default entries."""
        if wanted.HasField("time_since_last_hit"):
            raise invalid("Do not set time_since_last_hit: no table supports idle timeout")
        tables = [self._program.table(wanted.table_id)] if wanted.table_id else list(self._program.tables.values())
        for table in tables:
            found = self._matching(table, wanted)
            counted = (
                wanted.HasField("counter_data") and not wanted.is_default_action and table.direct_counter is not None
            )
            counts = self._counts(table, found) if counted else [None] * len(found)
            for stored, count in zip(found, counts, strict=True):
                entry = p4r.TableEntry()
                entry.CopyFrom(stored)
                if count is not None:
                    write_count(entry.counter_data, count)
                yield entry

    def _matching(self, table: Table, wanted: p4r.TableEntry) -> list[p4r.TableEntry]:
        if wanted.is_default_action:
            return [self._defaults[table.id]]
        if not wanted.match:
            return list(self._entries[table.id].values())
        found = self._entries[table.id].get(read_key(table, wanted))
        return [] if found is None else [found]

    def write_direct_counter(self, kind: int, wanted: p4r.DirectCounterEntry) -> Undo:
        """Set an entry's counter. DELETE sets it to 0."""
        table = self._table_of(wanted)
        counter = _direct_counter(table)
        key, priority = self._existing_key(table, wanted.table_entry)
        if kind == p4r.Update.INSERT:
            raise invalid("INSERT update type not supported for counters")
        count = Count(0, 0) if kind == p4r.Update.DELETE else read_count(wanted.data, counter)
        self._data_plane.write_direct_counter(table.name, key, priority, count)
        return stored_elsewhere

    def read_direct_counters(self, wanted: p4r.DirectCounterEntry) -> Iterator[p4r.DirectCounterEntry]:
        """Yield one entry's counter, those of a table, or those of every table (table id 0)."""
        if wanted.HasField("table_entry") and not wanted.table_entry.table_id:
            tables = [table for table in self._program.tables.values() if table.direct_counter is not None]
        else:
            tables = [self._table_of(wanted)]
        for table in tables:
            _direct_counter(table)
            if wanted.table_entry.match or wanted.table_entry.is_default_action:
                entries = [self._entries[table.id][self._existing_key(table, wanted.table_entry)]]
            else:
                entries = list(self._entries[table.id].values())
            for entry, count in zip(entries, self._counts(table, entries), strict=True):
                answer = p4r.DirectCounterEntry()
                answer.table_entry.table_id, answer.table_entry.priority = table.id, entry.priority
                answer.table_entry.match.extend(entry.match)
                write_count(answer.data, count)
                yield answer

    def _table_of(self, wanted: p4r.DirectCounterEntry) -> Table:
        if not wanted.HasField("table_entry"):
            raise invalid("Missing table_entry field in DirectCounterEntry")
        return self._program.table(wanted.table_entry.table_id)

    def _existing_key(self, table: Table, entry: p4r.TableEntry) -> _EntryKey:
        if entry.is_default_action:
            raise unsupported("Direct counters of default entries are not supported")
        key_and_priority = read_key(table, entry)
        if key_and_priority not in self._entries[table.id]:
            raise invalid(f"Cannot map table entry to handle: {table.name} has no such entry")
        return key_and_priority

    def _counts(self, table: Table, entries: Sequence[p4r.TableEntry]) -> list[Count]:
        return self._data_plane.read_direct_counters([(table.name, *read_key(table, entry)) for entry in entries])

    def replay(self, other: Tables) -> None:
        """Copy all entries, with their counters, and default actions of `other`.

        Raises Refused if this program cannot have one of them.
        """
        for entry in other.read(p4r.TableEntry(counter_data=p4r.CounterData())):
            self.write(p4r.Update.INSERT, entry)
        for entry in other._defaults.values():
            if entry != other._initial_default(other._program.table(entry.table_id)):
                self.write(p4r.Update.MODIFY, entry)


def _count_of(table: Table, entry: p4r.TableEntry) -> Count | None:
    """Return the value for the direct counter that comes with an entry; None if none does. Raises Refused."""
    return read_count(entry.counter_data, _direct_counter(table)) if entry.HasField("counter_data") else None


def _direct_counter(table: Table) -> Counter:
    if table.direct_counter is None:
        raise invalid(f"Table has no direct counters: {table.name}")
    return table.direct_counter
