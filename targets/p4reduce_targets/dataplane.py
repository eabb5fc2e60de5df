# SPDX-License-Identifier: Apache-2.0
"""What an embedded data plane offers to the P4Runtime server in front of it.

Names are those of the compiled program: P4Info's fully qualified names. Not thread safe: the caller locks.
Every method raises KeyError for a name the program does not have, ValueError for a key or argument that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Exact:
    """Matches a field equal to `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """Matches a field whose first `prefix_length` bits are those of `value`; length 0 matches anything."""

    value: int
    prefix_length: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """Matches a field that equals `value` in the bits set in `mask`; mask 0 matches anything."""

    value: int
    mask: int


Key: TypeAlias = tuple[Exact | Lpm | Ternary, ...]  # in the order of the table's key fields


@dataclass(frozen=True, slots=True)
class Call:
    """An action and its arguments, in the order of the action's parameters."""

    action: str
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a multicast packet: the egress port and what the program sees as `egress_rid`."""

    port: int
    instance: int


@dataclass(frozen=True, slots=True)
class Count:
    """A counter cell."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """Two token buckets (RFC 2698): rates in packets or bytes a second, bursts in packets or bytes."""

    cir: int
    cburst: int
    pir: int
    pburst: int


class DataPlane(Protocol):
    """A running program. `priority` is P4Runtime's: the larger wins; it is 0 where no key field is ternary."""

    cpu_port: int

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Add an entry; ValueError if key and priority are there already, or the table is full or constant."""

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Give an entry another action; KeyError if there is no such entry. Its direct counter goes on."""

    def delete(self, table: str, key: Key, priority: int) -> None:
        """Remove an entry; KeyError if there is no such entry."""

    def set_default(self, table: str, call: Call | None) -> None:
        """Set what a miss does; None: the program's own default again. ValueError if the program made it constant."""

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Create or replace a multicast group (numbered from 1); no replicas: removes it."""

    def read_counter(self, counter: str, index: int) -> Count:
        """Read one cell of an indirect counter; ValueError if the index is out of range."""

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter; ValueError if the index is out of range."""

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of an indirect meter, with full buckets; None: it lets everything pass, as at first."""

    def read_direct_counter(self, table: str, key: Key, priority: int) -> Count:
        """Read an entry's counter; KeyError if there is no such entry, ValueError if the table counts nothing."""

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set an entry's counter; KeyError if there is no such entry, ValueError if the table counts nothing."""

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Run one frame that came in at `port`; return (egress port, frame) in order.

        Packet-out is a frame, `packet_out` header first, in at `cpu_port`; packet-in is a frame out of `cpu_port`,
        `packet_in` header first.
        """
        ...


def wrong_cpu_port(of_program: int, of_switch: int) -> ValueError:
    """Return the error of a data plane that is asked to run a program with another CPU port than the switch's."""
    return ValueError(
        f"the program is for CPU port {of_program}, and this switch has CPU port {of_switch}: start the switch with "
        f"--cpu-port {of_program}, or compile the program with -DCPU_PORT={of_switch}"
    )
