# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client of conformance.p4, and its entries, among them malformed ones."""

from __future__ import annotations

from pathlib import Path

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from tests.support.dataplane import p4runtime
from tests.support.dataplane.p4runtime import DEVICE, Failed, Get, Set, group_entry, number, refused

__all__ = ["DEVICE", "Failed", "Get", "Set", "group_entry", "refused"]

HERE = Path(__file__).parent

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE

INFO = text_format.Parse((HERE / "conformance.p4info.txtpb").read_text(), p4i.P4Info())
CONFIG = (HERE / "conformance.json").read_bytes()

TABLES = {table.preamble.alias: table for table in INFO.tables}
ACTIONS = {action.preamble.alias: action.preamble.id for action in INFO.actions}
COUNTERS = {counter.preamble.alias: counter.preamble.id for counter in INFO.counters}
COUNTERS |= {counter.preamble.alias: counter.preamble.id for counter in INFO.direct_counters}
REGISTER = INFO.registers[0].preamble.id
PACKET_OUT = {item.name: item.id for item in INFO.controller_packet_metadata[0].metadata}


def action(name: str, *values: int | bytes) -> p4r.TableAction:
    result = p4r.TableAction()
    result.action.action_id = ACTIONS[name]
    for index, value in enumerate(values):
        result.action.params.add(param_id=index + 1, value=number(value) if isinstance(value, int) else value)
    return result


def exact_entry(dst: int | bytes, act: p4r.TableAction | None = None) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=TABLES["exact_table"].preamble.id, action=act)
    entry.match.add(field_id=1).exact.value = number(dst) if isinstance(dst, int) else dst
    return entry


def ternary_entry(
    src: tuple[int, int] | None, kind: int, priority: int, act: p4r.TableAction | None = None
) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=TABLES["ternary_table"].preamble.id, action=act, priority=priority)
    if src is not None:
        ternary = entry.match.add(field_id=1).ternary
        ternary.value, ternary.mask = number(src[0]), number(src[1])
    entry.match.add(field_id=2).exact.value = number(kind)
    return entry


def lpm_entry(dst: tuple[int, int] | None, act: p4r.TableAction | None = None) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=TABLES["lpm_table"].preamble.id, action=act)
    if dst is not None:
        lpm = entry.match.add(field_id=1).lpm
        lpm.value, lpm.prefix_len = number(dst[0]), dst[1]
    return entry


def default_entry(table: str, act: p4r.TableAction | None = None) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=TABLES[table].preamble.id, is_default_action=True, action=act)


def counter_entry(name: str | int, index: int | None = None, packets: int = 0, size: int = 0) -> p4r.Entity:
    entity = p4r.Entity()
    entity.counter_entry.counter_id = COUNTERS[name] if isinstance(name, str) else name
    if index is not None:
        entity.counter_entry.index.index = index
    if packets or size:
        entity.counter_entry.data.packet_count, entity.counter_entry.data.byte_count = packets, size
    return entity


class Client(p4runtime.Client):
    """A controller of conformance.p4."""

    def __init__(self, address: str, election_id: int = 1) -> None:
        super().__init__(address, INFO, CONFIG, election_id)
