# SPDX-License-Identifier: Apache-2.0
"""Parts of BF Runtime's requests that the data plane and the ports share."""

from __future__ import annotations

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt.schema import Table


def entry_update(kind: pb.Update.Type, entry: pb.TableEntry) -> pb.Update:
    """Return an update of one entry."""
    return pb.Update(type=kind, entity=pb.Entity(table_entry=entry))


def encode(value: int, bits: int, what: str) -> bytes:
    """Return a number as the server takes it: big-endian, in all bytes of its field. Raises ValueError."""
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what}: {value} does not fit in {bits} bits")
    return value.to_bytes((bits + 7) // 8, "big")


def number_key(table: Table, number: int) -> pb.TableKey:
    """Return the key of a table with one key field, a number: a port, a group, a node, or the index of a cell."""
    (field,) = table.keys
    exact = pb.KeyField.Exact(value=encode(number, field.bits, f"{table.name}, {field.name}"))
    return pb.TableKey(fields=[pb.KeyField(field_id=field.id, exact=exact)])
