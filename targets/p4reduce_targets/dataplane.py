# SPDX-License-Identifier: Apache-2.0
"""The interface between the P4Runtime server and the data planes of the targets.

Tables, actions, counters and meters have their fully qualified names of P4Info. Every method raises KeyError for a name
that the program does not have, and ValueError for a key or argument that does not fit. Those of a data plane across a
network also raise DataPlaneLost. A data plane need not be thread safe: the caller locks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Exact:
    """An exact match: the field equals `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """A longest-prefix match: the first `prefix_length` bits equal those of `value`. Length 0 matches anything."""

    value: int
    prefix_length: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """A ternary match: the field equals `value` in the bits set in `mask`. Mask 0 matches anything."""

    value: int
    mask: int


Key: TypeAlias = tuple[Exact | Lpm | Ternary, ...]  # in the order of the table's key fields


@dataclass(frozen=True, slots=True)
class Call:
    """An action with its arguments, in the order of the action's parameters."""

    action: str
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a multicast packet: its egress port, and the `egress_rid` that the program reads."""

    port: int
    instance: int


@dataclass(frozen=True, slots=True)
class Count:
    """The value of one counter cell."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """Two token buckets (RFC 2698): rates in packets or bytes a second, bursts in packets or bytes."""

    cir: int
    cburst: int
    pir: int
    pburst: int


class DataPlaneLost(RuntimeError):
    """The data plane is out of reach. Nobody knows which of the last writes it has done."""


@dataclass(slots=True)
class Batch:
    """A group of writes. The caller gives each write a number, and finds errors by it.

    label: the number of the writes that follow; the caller sets it.
    errors: the errors that the data plane found out after a write had returned, by label. It is complete when the
        batch has ended.
    """

    label: int = 0
    errors: dict[int, Exception] = field(default_factory=dict)


class DataPlane(Protocol):
    """A loaded program with its state.

    `priority` is P4Runtime's: the entry with the largest number wins. It is 0 in tables without ternary fields.
    """

    def batch(self) -> AbstractContextManager[Batch]:
        """Group the writes until the end of the context, without making them one transaction.

        The caller changes no entry, group or cell twice in a batch, but for an entry and its own direct counter.

        A data plane across a network sends them as one request. One in this process does each write at once, and raises
        each error at once.
        """
        ...

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Add an entry; raise ValueError if it exists (same key and priority), or the table is full or constant."""

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Change an entry's action and keep its direct counter; raise KeyError if there is no such entry."""

    def delete(self, table: str, key: Key, priority: int) -> None:
        """Remove an entry; raise KeyError if there is no such entry."""

    def set_default(self, table: str, call: Call | None) -> None:
        """Set the default action; None restores the program's own. Raises ValueError if it is constant."""

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Create or replace a multicast group, numbered from 1; an empty list of replicas removes it."""

    def read_counters(self, cells: Sequence[tuple[str, int]]) -> list[Count]:
        """Read cells of indirect counters, each given by counter and index; raise ValueError for an unknown index."""
        ...

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter; raise ValueError if the index is out of range."""

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of an indirect meter, with full buckets; None lets every packet pass, as initially."""

    def read_direct_counters(self, entries: Sequence[tuple[str, Key, int]]) -> list[Count]:
        """Read the direct counters of entries, each given by table, key and priority.

        Raises KeyError without such an entry, and ValueError if the table has no direct counter.
        """
        ...

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set an entry's direct counter; raise KeyError without such an entry, ValueError if the table has none."""


class PacketProcessor(DataPlane, Protocol):
    """A data plane that processes packets in this process."""

    cpu_port: int

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process one frame that arrived at `port`; return the frames to send, in order, each with its egress port.

        A packet-out is a frame that arrives at `cpu_port` and begins with the header `packet_out`. A packet-in is a
        frame that leaves at `cpu_port` and begins with the header `packet_in`.
        """
        ...


def wrong_cpu_port(of_program: int, of_switch: int) -> ValueError:
    """Return the error for a program that was compiled for another CPU port than the switch's."""
    return ValueError(
        f"the program is for CPU port {of_program}, and this switch has CPU port {of_switch}: start the switch with "
        f"--cpu-port {of_program}, or compile the program with -DCPU_PORT={of_switch}"
    )
