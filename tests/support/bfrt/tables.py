# SPDX-License-Identifier: Apache-2.0
"""Tables of the program behind a BF Runtime server, as `bf_rt_p4_table_impl.cpp` and what is below it have them.

A table checks what a client sends, keeps what the client may read, and passes the rest on to the data plane. Where the
drivers accept what is probably an error of the client, such as a key without one of its fields, the table does so too,
and adds a remark to the device's list.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from p4reduce_targets.dataplane import Call, Count, DataPlane, Exact, Key, Lpm, MeterConfig, Ternary

from . import bfruntime_pb2 as bfrt
from .schema import COUNTER_BYTES, COUNTER_PACKETS, PRIORITY, Field, TableSchema
from .status import BfStatus, Failure, Refusal, explained

ALL_PIPES = 0xFFFF
NOTHING = Count(0, 0)
CLOCK = 1_271_000_000  # of the chip, in cycles a second
_KINDS = {"exact": "Exact", "ternary": "Ternary", "lpm": "LPM", "range": "Range", "optional": "Optional"}


def single(value: float) -> float:
    """Return a number as a C float, in which the drivers count a meter's rates."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


GREEN = (int(single(511 * single(CLOCK))), 255 << 31)  # the highest rate and burst of a meter

Value: TypeAlias = Any  # an integer, bool, text or float, or a list of the first two
Matches: TypeAlias = dict[int, Any]  # by field: a value, (value, mask) or (value, prefix length)
TableKey: TypeAlias = tuple[Any, ...]  # matches, in the order of the schema


@dataclass
class Data:
    """The data of an entry. `active`: the fields that it is about; all of them if `everything`."""

    action: int = 0
    values: dict[int, Value] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    everything: bool = True
    from_hw: bool = False  # of data that a client wants
    reset_stats: bool = False  # of a modification


class Tables(Protocol):
    """The part of the device that tables use."""

    remarks: list[str]
    limits: dict[str, int]
    pipes: int

    @property
    def plane(self) -> DataPlane: ...


class Table:
    """The base of all tables: it parses keys and data, and supports no operation (`BfRtTableObj`)."""

    partial = True  # data may have some of the fields only (`make_data`)
    has_default = False  # DEFAULT_ENTRY_GET is supported
    counts_all = False  # USAGE_GET is not supported: a wildcard read gets as many entries as the table has

    def __init__(self, schema: TableSchema, device: Tables) -> None:
        self.schema = schema
        self.name = schema.name
        self.device = device

    @property
    def size(self) -> int:
        """The entries that fit; a test may have set a lower limit."""
        return self.device.limits.get(self.name, self.schema.size)

    def make_key(self, key: bfrt.TableKey) -> TableKey:
        """Return the key of a request (`make_key`)."""
        matches: Matches = {}
        for one in key.fields:
            kind = one.WhichOneof("match_type")
            declared = self.schema.key.get(one.field_id)
            if kind is None:
                raise Refusal(BfStatus.INVALID_ARG, f"Invalid match type table:{self.name}")
            if kind == "exact" and declared is None:
                text = f"ERROR getting Field data type for field {one.field_id} table:{self.name}"
                raise Refusal(BfStatus.OBJECT_NOT_FOUND, text)
            with explained(f"Failed to create key for field:{one.field_id} table:{self.name}"):
                if declared is None:
                    raise Failure(BfStatus.OBJECT_NOT_FOUND)
                if declared.match != _KINDS[kind]:
                    raise Failure(BfStatus.INVALID_ARG)
                matches[one.field_id] = self._match(declared, getattr(one, kind))
        return self._whole_key(matches)

    def _match(self, declared: Field, match: Any) -> Any:
        if declared.match == "Exact":
            return match.value.decode() if declared.type == "string" else integer(declared, match.value)
        value = integer(declared, match.value)
        if declared.match == "LPM":
            if match.prefix_len & 0xFFFF > declared.bits:
                raise Failure(BfStatus.INVALID_ARG)
            mask = prefix_mask(declared.bits, match.prefix_len)
            return value & mask, match.prefix_len
        if declared.match == "Ternary":
            mask = integer(declared, match.mask)
            return value & mask, mask
        raise Failure(BfStatus.NOT_SUPPORTED)

    def _whole_key(self, matches: Matches) -> TableKey:
        """Add what is missing: zero, or a match of anything. The drivers do not say that it was missing."""
        made = []
        for declared in self.schema.key.values():
            if declared.id not in matches and declared.name != PRIORITY:
                self.device.remarks.append(f"{self.name}: a key without {declared.name}, which is 0")
            missing = {"Exact": "" if declared.type == "string" else 0, "LPM": (0, declared.bits)}
            made.append(matches.get(declared.id, missing.get(declared.match, (0, 0))))
        return tuple(made)

    def key_message(self, key: TableKey) -> bfrt.TableKey:
        """Return a key for a response (`formResponseKey`)."""
        made = bfrt.TableKey()
        for declared, match in zip(self.schema.key.values(), key, strict=True):
            one = made.fields.add(field_id=declared.id)
            if declared.match == "Exact":
                one.exact.value = match.encode() if declared.type == "string" else match.to_bytes(declared.size, "big")
            elif declared.match == "LPM":
                one.lpm.value, one.lpm.prefix_len = match[0].to_bytes(declared.size, "big"), match[1]
            else:
                one.ternary.value, one.ternary.mask = (part.to_bytes(declared.size, "big") for part in match)
        return made

    def field_ids(self, action: int) -> list[int]:
        """Return the data's fields with an action; 0 for those of all actions (`dataFieldIdListGet`)."""
        if action and action not in self.schema.actions:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        return sorted([*(self.schema.actions[action].data if action else ()), *self.schema.data])

    def data_field(self, number: int, action: int) -> Field | None:
        """Return a field of the data."""
        declared = self.schema.actions[action].data.get(number) if action in self.schema.actions else None
        return declared or self.schema.data.get(number)

    def allocate(self, action: int, fields: Sequence[int]) -> Data:
        """Return data for some fields, or for all if there are none (`dataAllocate`)."""
        if fields and not self.partial:
            raise Failure(BfStatus.NOT_SUPPORTED)
        if action and not self.schema.actions:
            raise Failure(BfStatus.NOT_SUPPORTED)
        known = self.field_ids(action)
        return Data(action, {}, {one for one in fields or known if one in known}, not fields)

    def make_data(self, entry: bfrt.TableEntry) -> Data:
        """Return the data of a request (`make_data`)."""
        action, given = entry.data.action_id, [one.field_id for one in entry.data.fields]
        if self.partial:
            with explained(f"ERROR Unable to get data field list for table : {self.name}"):
                known = self.field_ids(action)
            if len(given) == len(known):
                given = []
        else:
            given = []
        with explained(f"Table data allocation failed for table : {self.name}"):
            data = self.allocate(action, given)
        for one in entry.data.fields:
            with explained(f"SetValue failed for field:{one.field_id} table:{self.name}"):
                kind = one.WhichOneof("value")
                if kind is not None:
                    self.set_value(data, one.field_id, kind, getattr(one, kind))
        return data

    def data_message(self, data: Data, fields: Sequence[int]) -> bfrt.TableData:
        """Return data for a response; `fields`: those that the client asked for, or none for all."""
        made = bfrt.TableData(action_id=data.action)
        for number in fields or self.field_ids(data.action):
            declared = self.data_field(number, data.action)
            if declared is None:
                raise Refusal(BfStatus.OBJECT_NOT_FOUND, f"ERROR Field ID {number} doesn't exist table:{self.name}")
            if number in data.active:
                self.add_field(made, declared, data.values.get(number))
        return made

    def add_field(self, made: bfrt.TableData, declared: Field, value: Value) -> None:
        """Add a field to data for a response."""
        one = made.fields.add(field_id=declared.id)
        if declared.repeated and declared.type == "bool":
            one.bool_arr_val.val.extend(value or ())
        elif declared.repeated:
            one.int_arr_val.val.extend(value or ())
        elif declared.type == "bool":
            one.bool_val = bool(value)
        elif declared.type == "string":
            one.str_val = value or ""
        elif declared.bits:
            one.stream = (value or 0).to_bytes(declared.size, "big", signed=declared.type.startswith("int"))

    def check_pipe(self, pipe: int, wanted: Data | None = None) -> None:
        """Refuse a pipe that the table does not have. `wanted`: what a client reads. Fixed tables accept any."""

    def unsupported(self, *_: object) -> Any:
        """Refuse an operation."""
        raise Failure(BfStatus.NOT_SUPPORTED)

    # Operations, with the arguments that tables which support them have. `get` has the data that the client wants.
    add = unsupported  # (key, data): `tableEntryAdd`
    modify = unsupported  # (key, data): `tableEntryMod`
    modify_incrementally = unsupported  # (key, data, whether to remove): `tableEntryModInc`
    add_or_modify = unsupported  # (key, data), and returns whether the entry is new: `tableEntryAddOrMod`
    delete = unsupported  # (key): `tableEntryDel`
    clear = unsupported  # (): `tableClear`
    set_default = unsupported  # (data): `tableDefaultEntrySet`
    reset_default = unsupported  # (): `tableDefaultEntryReset`
    synchronize = unsupported  # (): `tableOperationsExecute`
    set_value = unsupported  # (data, field, kind of value, value): `setValue`
    get = unsupported  # (key, wanted), and returns data: `tableEntryGet`
    keys = unsupported  # (), and returns all keys: `tableEntryGetFirst`, `tableEntryGetNext_n`
    get_default = unsupported  # (wanted), and returns data: `tableDefaultEntryGet`


def integer(declared: Field, value: bytes) -> int:
    """Return a value, which has as many bytes as its field, and fits its bits (`boundsCheck`)."""
    made = int.from_bytes(value, "big")
    if len(value) != declared.size or made >> declared.bits:
        raise Failure(BfStatus.INVALID_ARG)
    return made


def prefix_mask(bits: int, length: int) -> int:
    """Return the mask of a prefix."""
    full = (1 << bits) - 1
    return full ^ (full >> length)


@dataclass
class Entry:
    """An entry of a match table. `count` is what the last synchronisation found."""

    data: Data
    count: Count = NOTHING


class MatchTable(Table):
    """A table of the program with its entries (`BfRtMatchActionTable`)."""

    has_default = True

    def __init__(
        self, schema: TableSchema, device: Tables, default: Data | None, constant_default: bool, constant: bool
    ) -> None:
        super().__init__(schema, device)
        self.plane_name = schema.name.removeprefix("pipe.")
        self.entries: dict[TableKey, Entry] = {}
        self.constant = constant
        self.constant_default = constant_default
        self.program_default = self.default = default
        self.counts = COUNTER_PACKETS in schema.data

    def set_value(self, data: Data, number: int, kind: str, value: Any) -> None:
        """Set a field (`BfRtMatchActionTableData::setValue`)."""
        declared = self.data_field(number, data.action)
        if kind not in ("stream", "str_val", "float_val"):
            raise Failure(BfStatus.NOT_SUPPORTED)
        if declared is None or kind == "str_val":
            raise Failure(BfStatus.INVALID_ARG)
        if kind == "float_val":
            raise Failure(BfStatus.UNEXPECTED)
        data.values[number] = integer(declared, value)

    def add(self, key: TableKey, data: Data) -> None:
        """Add an entry; its counter has the value that the data have, or 0."""
        self._check_constant()
        call = self._call(data, default=False)
        if key in self.entries:
            raise Failure(BfStatus.ALREADY_EXISTS)
        if len(self.entries) >= self.size:
            raise Failure(BfStatus.NO_SPACE)
        match, priority = self._plane_key(key)
        with refused_by_plane():
            self.device.plane.insert(self.plane_name, match, priority, call)
        self.entries[key] = Entry(Data(data.action, self._arguments(data)))
        if self.counts:
            self._set_count(key, data)

    def modify(self, key: TableKey, data: Data) -> None:
        """Change an entry's action, its counter, or both (`tableEntryModInternal`).

        Without an action, only counters change; without `reset_stats`, no counter does (BF_RT_SKIP_STAT_RESET).
        """
        entry = self._existing(key)
        if data.action:
            match, priority = self._plane_key(key)
            with refused_by_plane():
                self.device.plane.modify(self.plane_name, match, priority, self._call(data, default=None))
            entry.data = Data(data.action, self._arguments(data))
        if self.counts and data.active & {COUNTER_BYTES, COUNTER_PACKETS}:
            if data.reset_stats:
                self._set_count(key, data)
            elif COUNTER_PACKETS in data.values:
                self.device.remarks.append(f"{self.name}: a counter is modified without reset_stats: nothing")

    def add_or_modify(self, key: TableKey, data: Data) -> bool:
        """Add an entry or change it."""
        self._check_constant()
        if key not in self.entries:
            self.add(key, data)
            return True
        self._call(data, default=False)
        self.modify(key, data)
        return False

    def delete(self, key: TableKey) -> None:
        """Remove an entry."""
        self._check_constant()
        self._existing(key)
        match, priority = self._plane_key(key)
        with refused_by_plane():
            self.device.plane.delete(self.plane_name, match, priority)
        del self.entries[key]

    def clear(self) -> None:
        """Remove all entries, and restore the default entry (`tableClearMatCommon`)."""
        self._check_constant()
        for key in list(self.entries):
            self.delete(key)
        if not self.constant_default:
            self.reset_default()

    def set_default(self, data: Data) -> None:
        """Set the default action. A constant one may be set to itself (`pipe_mgr_mat_default_entry_set`)."""
        call = self._call(data, default=True) if data.action else None
        if call is None:
            return  # counters of the default entry, which no data plane here has
        arguments = self._arguments(data)
        if self.constant_default and self.default is not None:
            if data.action != self.default.action:
                raise Failure(BfStatus.INVALID_ARG)
            if arguments != self.default.values:
                raise Failure(BfStatus.NOT_SUPPORTED)
            return
        with refused_by_plane():
            self.device.plane.set_default(self.plane_name, call)
        self.default = Data(data.action, arguments)

    def reset_default(self) -> None:
        """Restore the program's default action."""
        if not self.constant_default:
            with refused_by_plane():
                self.device.plane.set_default(self.plane_name, None)
        self.default = self.program_default

    def synchronize(self) -> None:
        """Copy all counters of entries."""
        for key in self.entries:
            self._synchronize(key)

    def get(self, key: TableKey, wanted: Data) -> Data:
        """Return an entry; one of another action than asked for is an invalid argument (`populate_data_fields`)."""
        entry = self._existing(key)
        if wanted.action and wanted.action != entry.data.action:
            raise Failure(BfStatus.INVALID_ARG)
        if self.counts and wanted.from_hw:
            self._synchronize(key)
        counts = {COUNTER_BYTES: entry.count.bytes, COUNTER_PACKETS: entry.count.packets} if self.counts else {}
        active = set(self.field_ids(entry.data.action)) if wanted.everything else wanted.active
        return Data(entry.data.action, {**entry.data.values, **counts}, active)

    def keys(self) -> Iterable[TableKey]:
        """Return the keys of all entries."""
        return list(self.entries)

    def get_default(self, wanted: Data) -> Data:
        """Return the default entry."""
        if self.default is None:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        if wanted.action and wanted.action != self.default.action:
            raise Failure(BfStatus.INVALID_ARG)
        active = set(self.field_ids(self.default.action)) if wanted.everything else wanted.active
        return Data(self.default.action, dict(self.default.values), active)

    def _check_constant(self) -> None:
        if self.constant:
            raise Failure(BfStatus.INVALID_ARG)

    def check_pipe(self, pipe: int, wanted: Data | None = None) -> None:
        """Refuse to write to a single pipe, since the tables are symmetric (`pipe_mgr_verify_pipe_id`)."""
        if pipe != ALL_PIPES and (wanted is None or pipe >= self.device.pipes):
            raise Failure(BfStatus.INVALID_ARG)

    def _existing(self, key: TableKey) -> Entry:
        if key not in self.entries:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        return self.entries[key]

    def _arguments(self, data: Data) -> dict[int, Value]:
        """Return all arguments of an action; those that the client left out are 0."""
        parameters = self.schema.actions[data.action].data
        for number, declared in parameters.items():
            if number not in data.values:
                self.device.remarks.append(f"{self.name}: an action without {declared.name}, which is 0")
        return {number: data.values.get(number, 0) for number in parameters}

    def _call(self, data: Data, default: bool | None) -> Call:
        """Return the call for the data plane. `default`: for the default entry, for another one, or unchecked."""
        action = self.schema.actions.get(data.action)
        if action is None or action.only == {True: "@tableonly", False: "@defaultonly", None: None}[default]:
            raise Failure(BfStatus.INVALID_ARG)
        return Call(action.name, tuple(data.values.get(number, 0) for number in action.data))

    def _plane_key(self, key: TableKey) -> tuple[Key, int]:
        """Return the key and priority for the data plane, in which the greater number wins."""
        made: list[Exact | Lpm | Ternary] = []
        priority = 0
        for declared, match in zip(self.schema.key.values(), key, strict=True):
            if declared.name == PRIORITY:
                priority = (1 << 32) - match
            elif declared.match == "Exact":
                made.append(Exact(match))
            else:
                made.append(Lpm(*match) if declared.match == "LPM" else Ternary(*match))
        return tuple(made), priority

    def _set_count(self, key: TableKey, data: Data) -> None:
        count = Count(data.values.get(COUNTER_PACKETS, 0), data.values.get(COUNTER_BYTES, 0))
        self.device.plane.write_direct_counter(self.plane_name, *self._plane_key(key), count)
        self.entries[key].count = count

    def _synchronize(self, key: TableKey) -> None:
        entry = (self.plane_name, *self._plane_key(key))
        (self.entries[key].count,) = self.device.plane.read_direct_counters([entry])


class IndexedTable(Table):
    """A table of cells, which all exist always: counters, meters or registers."""

    partial = False
    counts_all = True

    def __init__(self, schema: TableSchema, device: Tables) -> None:
        super().__init__(schema, device)
        self.plane_name = schema.name.removeprefix("pipe.")

    def set_value(self, data: Data, number: int, kind: str, value: Any) -> None:
        """Set a field (`indirectResourceSetValueHelper`)."""
        if kind != "stream":
            raise Failure(BfStatus.NOT_SUPPORTED)
        if number not in self.schema.data:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        data.values[number] = integer(self.schema.data[number], value)

    def add(self, key: TableKey, data: Data) -> None:
        """Set a cell; fields that are missing are 0."""
        (index,) = key
        if index >= self.schema.size:  # verify_key_for_idx_tbls
            raise Failure(BfStatus.INVALID_ARG)
        for number, declared in self.schema.data.items():
            if number not in data.values:
                self.device.remarks.append(f"{self.name}: a cell without {declared.name}, which is 0")
        self.write(index, {number: data.values.get(number, 0) for number in self.schema.data})

    def modify(self, key: TableKey, data: Data) -> None:
        """Set a cell."""
        self.add(key, data)

    def get(self, key: TableKey, wanted: Data) -> Data:
        """Return a cell."""
        (index,) = key
        if index >= self.schema.size:
            raise Failure(BfStatus.INVALID_ARG)
        return Data(0, self.read(index, wanted.from_hw), set(self.schema.data))

    def keys(self) -> Iterable[TableKey]:
        """Return the keys of all cells."""
        return [(index,) for index in range(self.schema.size)]

    def clear(self) -> None:
        """Reset all cells."""
        self.reset()

    def check_pipe(self, pipe: int, wanted: Data | None = None) -> None:
        """Refuse a single pipe, of which a symmetric table has no instance."""
        if pipe != ALL_PIPES:
            synchronizes = wanted is not None and wanted.from_hw
            raise Failure(BfStatus.INVALID_ARG if synchronizes else BfStatus.OBJECT_NOT_FOUND)

    def write(self, index: int, values: dict[int, int]) -> None:
        """Set all fields of a cell."""
        raise NotImplementedError

    def read(self, index: int, from_hw: bool) -> dict[int, Value]:
        """Return all fields of a cell."""
        raise NotImplementedError

    def reset(self) -> None:
        """Reset all cells."""
        raise NotImplementedError


class CounterTable(IndexedTable):
    """An indirect counter (`BfRtCounterTable`)."""

    def __init__(self, schema: TableSchema, device: Tables) -> None:
        super().__init__(schema, device)
        self._known: dict[int, Count] = {}  # what the last synchronisation found

    def write(self, index: int, values: dict[int, int]) -> None:
        """Set a cell."""
        count = Count(values.get(COUNTER_PACKETS, 0), values.get(COUNTER_BYTES, 0))
        self.device.plane.write_counter(self.plane_name, index, count)
        self._known[index] = count

    def read(self, index: int, from_hw: bool) -> dict[int, Value]:
        """Return a cell, from the hardware, or as the last synchronisation left it (`pipe_mgr_stat_mgr_ent_query`)."""
        if from_hw:
            (self._known[index],) = self.device.plane.read_counters([(self.plane_name, index)])
        count = self._known.get(index, NOTHING)
        return {COUNTER_BYTES: count.bytes, COUNTER_PACKETS: count.packets}

    def synchronize(self) -> None:
        """Copy all cells."""
        for index in range(self.schema.size):
            self.read(index, from_hw=True)

    def reset(self) -> None:
        """Set all cells to 0 (`pipe_mgr_stat_table_reset`)."""
        for index in range(self.schema.size):
            self.write(index, {})


class MeterTable(IndexedTable):
    """An indirect meter (`BfRtMeterTable`). The fields are cir, pir, and their bursts."""

    def __init__(self, schema: TableSchema, device: Tables) -> None:
        super().__init__(schema, device)
        self._cells: dict[int, tuple[int, ...]] = {}
        self._unit = 125 if any("KBPS" in one.name for one in schema.data.values()) else 1

    def write(self, index: int, values: dict[int, int]) -> None:
        """Configure a cell. Rates and bursts are in packets, or in kilobits of 125 bytes."""
        cir, pir, cburst, pburst = (values[number] * self._unit for number in self.schema.data)
        (cir, cburst), (pir, pburst) = chip_bucket(cir, cburst), chip_bucket(pir, pburst)
        unlimited = (cir, cburst, pir, pburst) == GREEN * 2
        self.device.plane.set_meter(
            self.plane_name, index, None if unlimited else MeterConfig(cir, cburst, pir, pburst)
        )
        self._cells[index] = (cir, pir, cburst, pburst)

    def read(self, index: int, _from_hw: bool) -> dict[int, Value]:
        """Return what the chip has, rounded up to kilobits; at first nothing limits it."""
        cir, pir, cburst, pburst = self._cells.get(index, (GREEN[0], GREEN[0], GREEN[1], GREEN[1]))
        values = (-(-value // self._unit) for value in (cir, pir, cburst, pburst))
        return dict(zip(self.schema.data, values, strict=True))

    def reset(self) -> None:
        """Let all packets pass all cells."""
        for index in self._cells:
            self.device.plane.set_meter(self.plane_name, index, None)
        self._cells.clear()


def chip_bucket(rate: int, burst: int) -> tuple[int, int]:
    """Return rate and burst as the chip has them (`pipe_mgr_meter_tof_encode_meter_spec`).

    A rate is m / 2^e tokens a cycle with m up to 511 and e up to 27, a burst b * 2^e with b up to 255. Both are rounded
    down, also to 0. A rate of more tokens a cycle than the burst is refused.
    """
    if rate == 0:
        return 0, 0
    if rate >= 511 * CLOCK and burst >= GREEN[1]:
        return GREEN
    shift = max(0, burst.bit_length() - 8)
    made = burst >> shift << shift
    exponent, per_cycle = 0, single(single(rate) / single(CLOCK))
    while per_cycle * 2 <= min(511, made) and exponent + 1 + max(0, shift - 14) <= 27:
        exponent, per_cycle = exponent + 1, per_cycle * 2
    mantissa = int(per_cycle)
    if mantissa > made:
        raise Failure(BfStatus.NOT_SUPPORTED)
    return int(single(mantissa / 2**exponent * single(CLOCK))), made


class RegisterTable(IndexedTable):
    """A register (`BfRtRegisterTable`). The data plane is the first pipe; others have what was written.

    `cells`: an array for each word of the register, or None if the data plane has none.
    """

    def __init__(self, schema: TableSchema, device: Tables, cells: list[list[int]] | None) -> None:
        super().__init__(schema, device)
        self._cells = cells or [[0] * schema.size for _ in schema.data]
        self._initial, self._known, self._written = ([list(words) for words in self._cells] for _ in range(3))

    def write(self, index: int, values: dict[int, int]) -> None:
        """Set a cell in all pipes."""
        for word, number in enumerate(self.schema.data):
            for cells in (self._cells, self._known, self._written):
                cells[word][index] = values[number]

    def read(self, index: int, from_hw: bool) -> dict[int, Value]:
        """Return a cell in all pipes."""
        if from_hw:
            for known, cells in zip(self._known, self._cells, strict=True):
                known[index] = cells[index]
        return {
            number: [known[index], *[written[index]] * (self.device.pipes - 1)]
            for number, known, written in zip(self.schema.data, self._known, self._written, strict=True)
        }

    def add_field(self, made: bfrt.TableData, declared: Field, value: Value) -> None:
        """Add a field for each pipe (`populateReadResponseWithRegisterFields`)."""
        for one in value:
            made.fields.add(field_id=declared.id, stream=one.to_bytes(declared.size, "big"))

    def synchronize(self) -> None:
        """Copy all cells."""
        self._known = [list(words) for words in self._cells]

    def reset(self) -> None:
        """Set all cells to the program's initial values."""
        for cells, written, initial in zip(self._cells, self._written, self._initial, strict=True):
            cells[:] = written[:] = initial
        self.synchronize()


@contextmanager
def refused_by_plane() -> Iterator[None]:
    """Turn what a data plane refuses, although the table would accept it, into an invalid argument."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise Failure(BfStatus.INVALID_ARG) from error
