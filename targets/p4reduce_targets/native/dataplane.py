# SPDX-License-Identifier: Apache-2.0
"""The data plane of the native switch. `p4reduce_targets.dataplane` documents its methods and their exceptions."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from p4reduce_targets.dataplane import Batch, Call, Count, Exact, Key, Lpm, MeterConfig, Replica
from p4reduce_targets.native.handle import Handle
from p4reduce_targets.native.library import Arguments, KeyWords, Words
from p4reduce_targets.native.numbers import KEY_WORDS, METER_LIMIT, WORD_BITS, two_words
from p4reduce_targets.native.program import Array, Layout, Table, implemented

PORTS = 512
_OUTPUT = struct.Struct("=II")


class NativeDataPlane:
    """An implementation of `PacketProcessor` by the C code. Thread safe."""

    def __init__(self, switch: Handle, layout: Layout) -> None:
        self.layout = layout
        self.cpu_port = layout.cpu_port
        self._switch = switch
        self._plane = switch.call(
            "plane_create", layout.lanes, layout.block_size, layout.halves, layout.cpu_port, layout.max_growth
        )
        if not self._plane:
            raise MemoryError("no memory for the slots of the native switch")

    def __del__(self) -> None:
        if getattr(self, "_plane", None):  # unset if the constructor failed
            self._switch.free(self._plane)

    @property
    def handle(self) -> int:
        """The C code's pointer to its `struct plane`."""
        return int(self._plane)

    def batch(self) -> AbstractContextManager[Batch]:
        """Return a context for a group of writes, each of which is done at once."""
        return nullcontext(Batch())

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Add an entry."""
        found, words = _table(table), _key_words(table, key, priority)
        error = self._call("insert", found.number, words, *_action(table, call))
        if error == -errno.EEXIST:
            raise ValueError(f"table {table} has an entry for {key} already")
        if error == -errno.ENOSPC:
            raise ValueError(f"table {table} is full with {found.size} entries")
        _check(error, f"table {table}")

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Change an entry's action."""
        self._check_found(table, key, self._call("modify", *_entry_key(table, key, priority), *_action(table, call)))

    def delete(self, table: str, key: Key, priority: int) -> None:
        """Remove an entry."""
        self._check_found(table, key, self._call("delete", *_entry_key(table, key, priority)))

    def set_default(self, table: str, call: Call | None) -> None:
        """Set the default action; None restores the program's own."""
        found = _table(table)
        _check(self._call("set_miss", found.number, *_action(table, call or Call(found.miss))), f"table {table}")

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Create or replace a multicast group; an empty list of replicas removes it."""
        if not 0 < group < 1 << 16:
            raise ValueError(f"group {group}: accepted are 1 to 65535")
        for replica in replicas:
            if not 0 <= replica.port < PORTS or not 0 <= replica.instance < 1 << 16:
                raise ValueError(f"group {group}: {replica}: ports are 0 to 511, instances 0 to 65535")
        numbers = [number for replica in replicas for number in (replica.port, replica.instance)]
        array = (ctypes.c_uint16 * len(numbers))(*numbers)
        _check(self._call("set_group", group, array, len(replicas)), f"group {group}")

    def read_counters(self, cells: Sequence[tuple[str, int]]) -> list[Count]:
        """Read cells of counters."""
        return [self._read_counter(counter, index) for counter, index in cells]

    def _read_counter(self, counter: str, index: int) -> Count:
        count = Words()
        self._call("read_counter", *_cell("counter", implemented().counters, counter, index), count)
        return Count(count[0], count[1])

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        """Set one cell of a counter."""
        cell = _cell("counter", implemented().counters, counter, index)
        self._call("write_counter", *cell, _counts(f"counter {counter}", count))

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of a meter. Only the peak rate and burst are used: the program checks for red alone."""
        _cell("meter", implemented().meters, meter, index)
        if config is not None and max(config.pir, config.pburst) > METER_LIMIT:
            raise ValueError(f"meter {meter}: {config}: rates and bursts up to {METER_LIMIT} are accepted")
        self._call("limit_hellos", index, None if config is None else Words(config.pir, config.pburst))

    def set_time(self, now: int | None) -> None:
        """Set the meters' clock to `now`, in nanoseconds from 1; None restores the machine's clock."""
        self._call("set_time", now or 0)

    def read_direct_counters(self, entries: Sequence[tuple[str, Key, int]]) -> list[Count]:
        """Read the counters of jobs' members; raise KeyError without such an entry, ValueError for other tables."""
        return [self._read_direct_counter(*entry) for entry in entries]

    def _read_direct_counter(self, table: str, key: Key, priority: int) -> Count:
        count = Words()
        self._check_found(table, key, self._call("read_member", _counter_key(table, key, priority), count))
        return Count(count[0], count[1])

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set the counter of a job's member; raise KeyError without such an entry, ValueError for other tables."""
        words = _counts(f"table {table}", count)
        self._check_found(table, key, self._call("write_member", _counter_key(table, key, priority), words))

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process one frame without using the switch's ports; raise ValueError for an invalid port or length."""
        with self._switch.outputs:
            start = ctypes.c_void_p()
            size = self._call("process", port, frame, len(frame), ctypes.byref(start))
            if size == -errno.EMSGSIZE:
                raise ValueError(f"port {port}, a frame of {len(frame)} bytes: ports are 0 to 511, frames up to 65593")
            _check(min(size, 0), "process")
            data = ctypes.string_at(start, size) if size else b""
        outputs = []
        at = 0
        while at < len(data):
            egress, length = _OUTPUT.unpack_from(data, at)
            at += _OUTPUT.size + length
            outputs.append((egress, data[at - length : at]))
        return outputs

    def _call(self, function: str, *arguments: Any) -> int:
        return self._switch.call(function, self._plane, *arguments) or 0

    @staticmethod
    def _check_found(table: str, key: Key, error: int) -> None:
        if error == -errno.ENOENT:
            raise KeyError(f"table {table} has no entry for {key}")
        _check(error, f"table {table}")


def _check(error: int, where: str) -> None:
    if error == -errno.ENOMEM:
        raise MemoryError(where)
    if error:
        raise OSError(-error, f"{where}: {os.strerror(-error)}")


def _table(name: str) -> Table:
    tables = implemented().tables
    if name not in tables:
        raise KeyError(f"there is no table {name}; there are {', '.join(tables)}")
    return tables[name]


def _entry_key(table: str, key: Key, priority: int) -> tuple[int, Any]:
    return _table(table).number, _key_words(table, key, priority)


def _counter_key(table: str, key: Key, priority: int) -> Any:
    """Return the key of an entry with a direct counter; raise ValueError for a table without one."""
    if not _table(table).counts:
        raise ValueError(f"table {table} has no direct counter")
    return _key_words(table, key, priority)


def _counts(where: str, count: Count) -> Any:
    for number in (count.packets, count.bytes):
        if not 0 <= number < 1 << 64:
            raise ValueError(f"{where}: {number} does not fit within 64 bits")
    return Words(count.packets, count.bytes)


def _key_words(name: str, key: Key, priority: int) -> Any:
    """Return the key as words of 64 bits, which hold all fields. `program.c` has their positions.

    In an LPM table, the second word is the prefix length.
    """
    table = _table(name)
    if priority:
        raise ValueError(f"table {name}: priority is {priority}, and must be 0 as no field is ternary")
    if len(key) != len(table.fields):
        raise ValueError(f"table {name}: a key has {len(table.fields)} fields, not {len(key)}")
    words = [0] * KEY_WORDS
    for field, match in zip(table.fields, key, strict=True):
        if type(match) is not {"exact": Exact, "lpm": Lpm}[table.match]:
            raise ValueError(f"table {name}: {match} does not fit {field.name}, which is {table.match}")
        _check_width(f"table {name}: {field.name}", match.value, field.bits)
        value = match.value
        if isinstance(match, Lpm):
            if not 0 <= match.prefix_length <= field.bits:
                raise ValueError(f"table {name}: prefix length {match.prefix_length} is not in 0..{field.bits}")
            value = value >> (field.bits - match.prefix_length) << (field.bits - match.prefix_length)
            words[1] = match.prefix_length
        if field.bits <= WORD_BITS:
            words[field.word] |= value << field.shift
        else:
            words[field.word : field.word + 2] = two_words(value)
    return KeyWords(*words)


def _action(table: str, call: Call) -> tuple[int, Any]:
    actions = _table(table).actions
    if call.action not in actions:
        raise KeyError(f"table {table} has no action {call.action}, only {', '.join(actions)}")
    action = actions[call.action]
    if len(call.arguments) != len(action.parameters):
        raise ValueError(f"{call.action} takes {len(action.parameters)} arguments, not {len(call.arguments)}")
    for (parameter, bits), value in zip(action.parameters, call.arguments, strict=True):
        _check_width(f"{call.action}: {parameter}", value, bits)
    words: list[int] = []
    for (_, bits), value in zip(action.parameters, call.arguments, strict=True):
        words += [value] if bits <= WORD_BITS else two_words(value)
    return action.number, Arguments(*words)


def _cell(kind: str, arrays: Mapping[str, Array], name: str, index: int) -> tuple[int, int]:
    """Return the number of a counter or meter, and the index of one of its cells."""
    if name not in arrays:
        raise KeyError(f"there is no {kind} {name}; there are {', '.join(arrays)}")
    found = arrays[name]
    if not 0 <= index < found.size:
        raise ValueError(f"{kind} {name}: index {index} is not in 0..{found.size - 1}")
    return found.number, index


def _check_width(what: str, value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what}: {value} does not fit within {bits} bits")
