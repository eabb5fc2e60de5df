# SPDX-License-Identifier: Apache-2.0
"""Schemas (bf-rt.json): tables with their fields. A program's own is derived from its P4Info, the fixed ones are here.

p4c's backend for Tofino, which few machines have, writes a program's schema. `derive` makes the same of the P4Info by
the backend's rules, so tests need neither the backend nor a copy of its output. A test compares both where it is
installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from finsy.proto import p4i

Json: TypeAlias = dict[str, Any]

COUNTER_BYTES, COUNTER_PACKETS = 65553, 65554
METER_FIELDS = {
    p4i.MeterSpec.PACKETS: ((65549, "CIR_PPS"), (65550, "PIR_PPS"), (65551, "CBS_PKTS"), (65552, "PBS_PKTS")),
    p4i.MeterSpec.BYTES: ((65545, "CIR_KBPS"), (65546, "PIR_KBPS"), (65547, "CBS_KBITS"), (65548, "PBS_KBITS")),
}
NO_LIMIT = (1 << 64) - 1  # a meter that lets all pass
PRIORITY = "$MATCH_PRIORITY"
PRIORITY_ID = 65537
_MATCHES = {p4i.MatchField.EXACT: "Exact", p4i.MatchField.LPM: "LPM", p4i.MatchField.TERNARY: "Ternary"}
_SCOPES = {
    p4i.ActionRef.TABLE_AND_DEFAULT: ("TableAndDefault", []),
    p4i.ActionRef.TABLE_ONLY: ("TableOnly", [{"name": "@tableonly"}]),
    p4i.ActionRef.DEFAULT_ONLY: ("DefaultOnly", [{"name": "@defaultonly"}]),
}


@dataclass(frozen=True)
class Field:
    """A field of a key or of data. `bits` is 0 where the type is not an integer."""

    id: int
    name: str
    type: str
    bits: int
    repeated: bool
    match: str = ""

    @property
    def size(self) -> int:
        """Bytes of a value."""
        return (self.bits + 7) // 8


@dataclass(frozen=True)
class Action:
    """An action of a table with its parameters."""

    id: int
    name: str
    data: Mapping[int, Field]
    only: str  # "@defaultonly", "@tableonly" or ""


@dataclass(frozen=True)
class TableSchema:
    """A table of a schema."""

    id: int
    name: str
    type: str
    size: int
    key: Mapping[int, Field]
    actions: Mapping[int, Action]
    data: Mapping[int, Field]
    operations: tuple[str, ...]


def parse(text: bytes) -> dict[int, TableSchema]:
    """Return the tables of a schema by their ids. Of two with one id, the first counts."""
    return {table["id"]: _table(table) for table in reversed(json.loads(text)["tables"])}


def _table(table: Json) -> TableSchema:
    actions = (
        Action(
            action["id"],
            action["name"],
            _by_id(_field(one) for one in action["data"]),
            next((note["name"] for note in action["annotations"] if note["name"].endswith("only")), ""),
        )
        for action in table.get("action_specs", [])
    )
    return TableSchema(
        table["id"],
        table["name"],
        table["table_type"],
        table.get("size", 0),
        _by_id(_field(one) for one in table["key"]),
        {action.id: action for action in actions},
        _by_id(_field(one["singleton"]) for one in table["data"] if "singleton" in one),
        tuple(table["supported_operations"]),
    )


def _by_id(fields: Iterable[Field]) -> dict[int, Field]:
    return {field.id: field for field in fields}


def _field(field: Json) -> Field:
    type_ = field.get("type", {"type": "container"})
    kind = type_["type"]
    digits = kind.removeprefix("u").removeprefix("int")
    bits = type_["width"] if kind == "bytes" else int(digits) if digits.isdigit() else 0
    return Field(field["id"], field["name"], kind, bits, field["repeated"], field.get("match_type", ""))


def _typed(identity: int, name: str, kind: str, bits: int = 0, **more: Any) -> Json:
    """Return a field of the JSON."""
    type_ = {"type": kind, "width": bits} if kind == "bytes" else {"type": kind}
    if "default" in more:
        type_["default_value"] = more.pop("default")
    return {
        "id": identity,
        "name": name,
        "repeated": more.pop("repeated", False),
        "annotations": [],
        **more,
        "type": type_,
    }


def _singleton(field: Json, mandatory: bool = False, read_only: bool = False) -> Json:
    return {"mandatory": mandatory, "read_only": read_only, "singleton": field}


def _counts() -> list[Json]:
    names = (COUNTER_BYTES, "$COUNTER_SPEC_BYTES"), (COUNTER_PACKETS, "$COUNTER_SPEC_PKTS")
    return [_singleton(_typed(identity, name, "uint64", default=0)) for identity, name in names]


def _index(identity: int, name: str) -> list[Json]:
    return [_typed(identity, name, "uint32", mandatory=True, match_type="Exact")]


def derive(info: p4i.P4Info, registers: Mapping[str, tuple[int, int]]) -> bytes:
    """Return the schema of a program for Tofino. `registers`: cells and words a cell, which P4Info lacks."""
    actions = {action.preamble.id: action for action in info.actions}
    counted = {counter.direct_table_id for counter in info.direct_counters}
    tables = [_match_table(table, actions, table.preamble.id in counted) for table in info.tables]
    for counter in info.counters:
        name = counter.preamble.name
        noted = [{"name": annotation} for annotation in counter.preamble.annotations]
        made = _table_json(name, _external(0x83, counter.preamble.id), "Counter", counter.size)
        made |= {"annotations": noted, "key": _index(65556, "$COUNTER_INDEX"), "data": _counts()}
        tables.append({**made, "supported_operations": ["Sync"]})
    for meter in info.meters:
        made = _table_json(meter.preamble.name, _external(0x85, meter.preamble.id), "Meter", meter.size)
        data = [
            _singleton(_typed(identity, f"$METER_SPEC_{name}", "uint64", default=NO_LIMIT))
            for identity, name in METER_FIELDS[meter.spec.unit]
        ]
        made["attributes"] = ["MeterByteCountAdjust"]
        tables.append({**made, "key": _index(65555, "$METER_INDEX"), "data": data})
    for name, (size, words) in registers.items():
        made = _table_json(name, _external(0x8B, _hash(f"pipe.{name}")), "Register", size)
        noted = [{"name": "$bfrt_field_class", "value": "register_data"}]
        fields = [
            {**_typed(word + 1, f"{name}.f{word + 1}", "bytes", 32), "annotations": noted} for word in range(words)
        ]
        data = [_singleton(field, mandatory=True) for field in fields]
        made["supported_operations"] = ["Sync"]
        tables.append({**made, "key": _index(65557, "$REGISTER_INDEX"), "data": data})
    return json.dumps({"schema_version": "1.0.0", "tables": tables, "learn_filters": []}).encode()


def _external(kind: int, identity: int) -> int:
    return kind << 24 | identity & 0xFFFFFF


def _table_json(name: str, identity: int, kind: str, size: int) -> Json:
    return {
        "name": f"pipe.{name}",
        "id": identity,
        "table_type": kind,
        "size": size,
        "depends_on": [],
        "supported_operations": [],
        "attributes": [],
    }


def _match_table(table: p4i.Table, actions: Mapping[int, p4i.Action], counted: bool) -> Json:
    key = [
        _typed(field.id, field.name, "bytes", field.bitwidth, mandatory=False, match_type=_MATCHES[field.match_type])
        for field in table.match_fields
    ]
    if any(field.match_type == p4i.MatchField.TERNARY for field in table.match_fields):
        key.append(_typed(PRIORITY_ID, PRIORITY, "uint32", mandatory=False, match_type="Exact"))
    specs = []
    for reference in table.action_refs:
        action = actions[reference.id]
        scope, noted = _SCOPES[reference.scope]
        data = [
            _typed(one.id, one.name, "bytes", one.bitwidth, mandatory=True, read_only=False) for one in action.params
        ]
        specs.append(
            {
                "id": reference.id,
                "name": action.preamble.name,
                "action_scope": scope,
                "annotations": noted,
                "data": data,
            }
        )
    return {
        **_table_json(table.preamble.name, table.preamble.id, "MatchAction_Direct", table.size),
        "annotations": [],
        "has_const_default_action": table.const_default_action_id != 0,
        "key": key,
        "action_specs": specs,
        "data": _counts() if counted else [],
        "supported_operations": ["SyncCounters"] if counted else [],
        "attributes": ["EntryScope"],
    }


def _hash(text: str) -> int:
    """Return Jenkins's one-at-a-time hash, from which p4c makes ids."""
    value, word = 0, 0xFFFFFFFF
    for byte in text.encode():
        value = value + byte & word
        value = value + (value << 10) & word
        value ^= value >> 6
    value = value + (value << 3) & word
    value ^= value >> 11
    return value + (value << 15) & word


# The fixed tables, as `bf_rt_*_tf1.json` and `bf_rt_*_tf2.json` have them: those that are of use here.
_PORT = """$SPEED:string $FEC:string $N_LANES:uint32 $PORT_ENABLE:bool $AUTO_NEGOTIATION:string $LOOPBACK_MODE:string
$TX_MTU:uint32 $RX_MTU:uint32 $TX_PFC_EN_MAP:uint32 $RX_PFC_EN_MAP:uint32 $TX_PAUSE_FRAME_EN:bool
$RX_PAUSE_FRAME_EN:bool $CUT_THROUGH_EN:bool $PORT_DIR:string $MEDIA_TYPE:string $SDS_TX_ATTN:uint32 $SDS_TX_PRE:int32
$SDS_TX_PRE2:int32 $SDS_TX_POST:int32 $SDS_TX_POST2:int32 $IS_VALID:bool $IS_INTERNAL:bool $CONN_ID:uint32
$CHNL_ID:uint32 $PORT_UP:bool $PORT_NAME:string"""
_MGID = """$MULTICAST_NODE_ID:uint32* $MULTICAST_NODE_L1_XID_VALID:bool* $MULTICAST_NODE_L1_XID:uint16*
$MULTICAST_ECMP_ID:uint32* $MULTICAST_ECMP_L1_XID_VALID:bool* $MULTICAST_ECMP_L1_XID:uint16*"""
_DEVICE = """sku:string num_pipes:uint32 num_stages:uint32 num_max_ports:uint32 num_front_ports:uint32
pcie_cpu_port:uint32 eth_cpu_port_list:uint32* internal_port_list:uint32* external_port_list:uint32*
recirc_port_list:uint32*"""
_RECIRCULATION = "recirculation_enable:bool pktgen_enable:bool pattern_matching_enable:bool clear_port_down_enable:bool"
# name, id, type, size, key, data, attributes
_FIXED = (
    ("$PORT", 0xFF010001, "PortConfigure", 256, "$DEV_PORT:uint32", _PORT, ["port_status_notif_cb"]),
    ("$PORT_HDL_INFO", 0xFF010003, "PortHdlInfo", 256, "$CONN_ID:uint32 $CHNL_ID:uint32", "$DEV_PORT:uint32", []),
    ("$PORT_STR_INFO", 0xFF010005, "PortStrInfo", 256, "$PORT_NAME:string", "$DEV_PORT:uint32", []),
    ("$pre.mgid", 0xFF020001, "PreMgid", 65536, "$MGID:uint16", _MGID, ["pre_device_config"]),
    (
        "$pre.node",
        0xFF020002,
        "PreNode",
        1 << 24,
        "$MULTICAST_NODE_ID:uint32",
        "$MULTICAST_RID:uint16 $MULTICAST_LAG_ID:uint8* $DEV_PORT:uint32*",
        [],
    ),
    ("{family}.pktgen.port_cfg", 0xFF030001, "PktgenPortCfg", 256, "dev_port:uint32", _RECIRCULATION, []),
    ("{family}.dev.device_configuration", 0xFF060001, "DevConfigure", 1, "", _DEVICE, []),
    # Servers also have tables of a chip without files of its own, whose ids are those of other tables.
    ("{family}.tm.pool.cfg", 0xFF050002, "TmPoolCfg", 14, "pool:string", "size_cells:uint32", []),
    ("tf5.tm.pool.cfg", 0xFF050002, "TmPoolCfg", 38, "pool:string", "size_cells:uint32", []),
)


def fixed(family: str) -> bytes:
    """Return the schema of a chip's fixed tables; `family` is tf1 or tf2."""
    tables = []
    for name, identity, kind, size, key, data, attributes in _FIXED:
        keys = [{**field, "mandatory": True, "match_type": "Exact"} for field in _fields(key)]
        made = _table_json("", identity, kind, size)
        made |= {"name": name.format(family=family), "attributes": attributes, "key": keys}
        tables.append({**made, "data": [_singleton(field) for field in _fields(data)]})
    return json.dumps({"tables": tables}).encode()


def _fields(text: str) -> list[Json]:
    made = []
    for number, one in enumerate(text.split(), 1):
        name, _, kind = one.rpartition(":")
        made.append(_typed(number, name, kind.removesuffix("*"), repeated=kind.endswith("*")))
    return made
