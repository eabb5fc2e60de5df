# SPDX-License-Identifier: Apache-2.0
"""Match tables at run time. A lookup returns an entry, or None for a miss.

An entry is a tuple: the action's index in the table's list, the direct counter's [packets, bytes] or None, then the
action's arguments. `default` is a list with the default entry alone, so that generated code sees its changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import and_
from typing import TypeAlias

from p4reduce_targets.dataplane import Call, Exact, Key, Lpm, Ternary
from p4reduce_targets.sim.program import Action

Entry: TypeAlias = tuple[int | list[int] | None, ...]
Values: TypeAlias = tuple[int, ...]
Level: TypeAlias = tuple[int, Values]  # rank and masks
EntryKey: TypeAlias = tuple[Level, Values]  # an entry's level, and its values of the bits in the masks

NO_ACTION: Entry = (-1, None)  # a miss in a table without a default action


@dataclass(frozen=True, slots=True)
class KeyField:
    """One field of a table's key. `match` is exact, lpm or ternary."""

    name: str
    bits: int
    match: str


class Table(ABC):
    """The base of all kinds of tables: checks, the default entry and direct counters."""

    def __init__(self, name: str, key: Sequence[KeyField], actions: Sequence[Action], size: int, counts: bool) -> None:
        self.name = name
        self.key = tuple(key)
        self.actions = tuple(actions)
        self.size = size
        self.counts = counts
        self.constant_entries = False
        self.constant_default = False
        self.program_default: Entry = NO_ACTION
        self.default: list[Entry] = [NO_ACTION]

    def make_entry(self, call: Call, cell: list[int] | None = None) -> Entry:
        """Return the entry for a call. Raises KeyError for another table's action, ValueError for invalid arguments."""
        names = [action.name for action in self.actions]
        if call.action not in names:
            raise KeyError(f"table {self.name} has no action {call.action}, only {', '.join(names)}")
        number = names.index(call.action)
        action = self.actions[number]
        if len(call.arguments) != len(action.parameters):
            raise ValueError(f"{action.name} takes {len(action.parameters)} arguments, not {len(call.arguments)}")
        for parameter, argument in zip(action.parameters, call.arguments, strict=True):
            check_width(f"argument {parameter.name} of {action.name}", argument, parameter.bits)
        return (number, cell, *call.arguments)

    def set_program_default(self, call: Call, constant: bool) -> None:
        """Set the default action that the program declares."""
        self.program_default = self.default[0] = self.make_entry(call)
        self.constant_default = constant

    def set_default(self, call: Call | None) -> None:
        """Set the default action; None restores the program's own. Raises ValueError if it is constant."""
        if self.constant_default:
            raise ValueError(f"table {self.name} has a constant default action")
        self.default[0] = self.program_default if call is None else self.make_entry(call)

    def insert(self, key: Key, priority: int, call: Call) -> None:
        """Add an entry. Raises ValueError if it exists, or the table is full or constant."""
        self._check_changeable()
        entry_key = self._entry_key(key, priority)
        if self._get(entry_key) is not None:
            raise ValueError(f"table {self.name} has an entry for {key} of priority {priority} already")
        if len(self) >= self.size:
            raise ValueError(f"table {self.name} is full with {self.size} entries")
        self._put(entry_key, self.make_entry(call, [0, 0] if self.counts else None))

    def modify(self, key: Key, priority: int, call: Call) -> None:
        """Change an entry's action. Raises KeyError if there is no such entry."""
        self._check_changeable()
        cell = self._existing(key, priority)[1]
        assert cell is None or isinstance(cell, list)
        self._put(self._entry_key(key, priority), self.make_entry(call, cell))

    def delete(self, key: Key, priority: int) -> None:
        """Remove an entry. Raises KeyError if there is no such entry."""
        self._check_changeable()
        self._existing(key, priority)
        self._remove(self._entry_key(key, priority))

    def cell(self, key: Key, priority: int) -> list[int]:
        """Return an entry's direct counter. Raises KeyError without such an entry, ValueError if the table has none."""
        cell = self._existing(key, priority)[1]
        if not isinstance(cell, list):
            raise ValueError(f"table {self.name} has no direct counter")
        return cell

    def _check_changeable(self) -> None:
        if self.constant_entries:
            raise ValueError(f"the entries of table {self.name} are constant")

    def _existing(self, key: Key, priority: int) -> Entry:
        entry = self._get(self._entry_key(key, priority))
        if entry is None:
            raise KeyError(f"table {self.name} has no entry for {key} of priority {priority}")
        return entry

    def _entry_key(self, key: Key, priority: int) -> EntryKey:
        if len(key) != len(self.key):
            raise ValueError(f"a key of table {self.name} has {len(self.key)} fields, not {len(key)}")
        for field, match in zip(self.key, key, strict=True):
            where = f"field {field.name} of table {self.name}"
            if type(match) is not {"exact": Exact, "lpm": Lpm, "ternary": Ternary}[field.match]:
                raise ValueError(f"{where} takes a match of kind {field.match}, not {match}")
            check_width(where, match.value, field.bits)
            if isinstance(match, Lpm) and not 0 <= match.prefix_length <= field.bits:
                raise ValueError(f"{where}: prefix length {match.prefix_length} is not in 0..{field.bits}")
            if isinstance(match, Ternary):
                check_width(f"mask of {where}", match.mask, field.bits)
        return self._normalize(key, priority)

    def mask(self, field: KeyField, match: Exact | Lpm | Ternary) -> int:
        """Return the mask of the bits that must match."""
        if isinstance(match, Ternary):
            return match.mask
        full = (1 << field.bits) - 1
        if isinstance(match, Lpm):
            return full ^ (full >> match.prefix_length)
        return full

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _normalize(self, key: Key, priority: int) -> EntryKey: ...

    @abstractmethod
    def _get(self, entry_key: EntryKey) -> Entry | None: ...

    @abstractmethod
    def _put(self, entry_key: EntryKey, entry: Entry) -> None: ...

    @abstractmethod
    def _remove(self, entry_key: EntryKey) -> None: ...


class ExactTable(Table):
    """A table with exact fields only. The keys of `entries` are values of a single field, or tuples of several."""

    def __init__(self, name: str, key: Sequence[KeyField], actions: Sequence[Action], size: int, counts: bool) -> None:
        super().__init__(name, key, actions, size, counts)
        self.entries: dict[int | Values, Entry] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def _normalize(self, key: Key, priority: int) -> EntryKey:
        if priority:
            raise ValueError(f"table {self.name} has no priorities, so {priority} must be 0")
        return (0, ()), tuple(match.value for match in key)

    def _get(self, entry_key: EntryKey) -> Entry | None:
        return self.entries.get(self._index(entry_key))

    def _put(self, entry_key: EntryKey, entry: Entry) -> None:
        self.entries[self._index(entry_key)] = entry

    def _remove(self, entry_key: EntryKey) -> None:
        del self.entries[self._index(entry_key)]

    def _index(self, entry_key: EntryKey) -> int | Values:
        return entry_key[1][0] if len(entry_key[1]) == 1 else entry_key[1]


class MaskedTable(Table):
    """A table with LPM or ternary fields. It has a dictionary for each pair of rank and masks, highest rank first.

    The rank of an entry is its prefix length in an LPM table, and its priority in a ternary table.
    """

    def __init__(self, name: str, key: Sequence[KeyField], actions: Sequence[Action], size: int, counts: bool) -> None:
        super().__init__(name, key, actions, size, counts)
        self.ternary = any(field.match == "ternary" for field in key)
        self._levels: dict[Level, dict[Values, Entry]] = {}
        self._sorted: list[tuple[Values, dict[Values, Entry]]] = []

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._levels.values())

    def lookup(self, *values: int) -> Entry | None:
        """Return the matching entry of the highest rank, or None."""
        for masks, entries in self._sorted:
            entry = entries.get(tuple(map(and_, values, masks)))
            if entry is not None:
                return entry
        return None

    def _normalize(self, key: Key, priority: int) -> EntryKey:
        if priority and not self.ternary:
            raise ValueError(f"table {self.name} has no priorities, so {priority} must be 0")
        masks = tuple(self.mask(field, match) for field, match in zip(self.key, key, strict=True))
        wanted = tuple(match.value & mask for match, mask in zip(key, masks, strict=True))
        rank = priority if self.ternary else sum(match.prefix_length for match in key if isinstance(match, Lpm))
        return (rank, masks), wanted

    def _get(self, entry_key: EntryKey) -> Entry | None:
        return self._levels.get(entry_key[0], {}).get(entry_key[1])

    def _put(self, entry_key: EntryKey, entry: Entry) -> None:
        self._levels.setdefault(entry_key[0], {})[entry_key[1]] = entry
        self._sort()

    def _remove(self, entry_key: EntryKey) -> None:
        level, wanted = entry_key
        del self._levels[level][wanted]
        if not self._levels[level]:
            del self._levels[level]
        self._sort()

    def _sort(self) -> None:
        ranked = sorted(self._levels.items(), key=lambda item: -item[0][0])
        self._sorted = [(masks, entries) for (_, masks), entries in ranked]


def check_width(what: str, value: int, bits: int) -> None:
    """Raise ValueError unless the value has at most this many bits."""
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what}: {value} is not in 0..2^{bits}-1")
