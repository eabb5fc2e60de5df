# SPDX-License-Identifier: Apache-2.0
"""Small schemas of BF Runtime: those of a made-up program, and of the tables that every switch has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Described = Mapping[str, Any]


def kind(text: str | int) -> Described:
    """Return the type of a field: a number of bits, or the name of a type."""
    return {"type": "bytes", "width": text} if isinstance(text, int) else {"type": text}


def key(field_id: int, name: str, type_: str | int, match_type: str = "Exact", mandatory: bool = False) -> Described:
    return {
        "id": field_id,
        "name": name,
        "repeated": False,
        "annotations": [],
        "mandatory": mandatory,
        "match_type": match_type,
        "type": kind(type_),
    }


def data(field_id: int, name: str, type_: str | int, repeated: bool = False, **other: Any) -> Described:
    """Return a data field of a table. `other`: mandatory, read_only, annotations."""
    field = {"id": field_id, "name": name, "repeated": repeated, "type": kind(type_)}
    field["annotations"] = other.pop("annotations", [])
    return {"mandatory": False, "read_only": False, **other, "singleton": field}


def parameter(field_id: int, name: str, bits: int) -> Described:
    return {
        "id": field_id,
        "name": name,
        "repeated": False,
        "mandatory": True,
        "read_only": False,
        "annotations": [],
        "type": kind(bits),
    }


def action(action_id: int, name: str, *parameters: Described, scope: str = "TableAndDefault") -> Described:
    annotations = [{"name": "@defaultonly"}] if scope == "DefaultOnly" else []
    return {"id": action_id, "name": name, "action_scope": scope, "annotations": annotations, "data": list(parameters)}


def table(
    table_id: int,
    name: str,
    table_type: str,
    size: int,
    keys: Sequence[Described],
    fields: Sequence[Described] = (),
    actions: Sequence[Described] = (),
    **other: Any,
) -> Described:
    described = {
        "name": name,
        "id": table_id,
        "table_type": table_type,
        "size": size,
        "annotations": [],
        "key": list(keys),
    }
    described |= {"data": list(fields), "supported_operations": [], "attributes": [], **other}
    return described | ({"action_specs": actions} if actions else {})


def text(*tables: Described) -> bytes:
    return json.dumps({"schema_version": "1.0.0", "tables": tables}).encode()


COUNTS = (data(65553, "$COUNTER_SPEC_BYTES", "uint64"), data(65554, "$COUNTER_SPEC_PKTS", "uint64"))


def _meter(*names: str) -> list[Described]:
    return [data(65549 + at, f"$METER_SPEC_{name}", "uint64") for at, name in enumerate(names)]


def _index(field_id: int, name: str) -> list[Described]:
    return [key(field_id, name, "uint32", mandatory=True)]


PROGRAM = text(
    table(
        1,
        "pipe.Ingress.jobs",
        "MatchAction_Direct",
        64,
        [key(1, "port", 9), key(2, "destination", 32, "LPM")],
        COUNTS,
        [
            action(11, "Ingress.admit", parameter(1, "bit", 32), parameter(2, "group", 12)),
            action(12, "Ingress.discard"),
            action(13, "NoAction", scope="DefaultOnly"),
        ],
        supported_operations=["SyncCounters"],
    ),
    table(
        2,
        "pipe.Ingress.rules",
        "MatchAction_Direct",
        512,
        [
            key(1, "op", 8, "Ternary"),
            key(2, "flags", 3, "Exact"),
            key(65537, "$MATCH_PRIORITY", "uint32"),
        ],
        actions=[action(12, "Ingress.discard")],
        has_const_default_action=True,
    ),
    table(
        3,
        "pipe.Ingress.outcomes",
        "Counter",
        17,
        _index(65556, "$COUNTER_INDEX"),
        COUNTS,
        supported_operations=["Sync"],
    ),
    table(
        4,
        "pipe.Ingress.losses",
        "Counter",
        8,
        _index(65556, "$COUNTER_INDEX"),
        COUNTS[1:],
        supported_operations=["Sync"],
    ),
    table(
        5,
        "pipe.Ingress.hellos",
        "Meter",
        512,
        _index(65555, "$METER_INDEX"),
        _meter("CIR_PPS", "PIR_PPS", "CBS_PKTS", "PBS_PKTS"),
    ),
    table(
        6,
        "pipe.Ingress.bytes",
        "Meter",
        4,
        _index(65555, "$METER_INDEX"),
        _meter("CIR_KBPS", "PIR_KBPS", "CBS_KBITS", "PBS_KBITS"),
    ),
    table(
        7,
        "pipe.Ingress.seqs",
        "Register",
        1024,
        _index(65557, "$REGISTER_INDEX"),
        [data(1, "Ingress.seqs.f1", 32, mandatory=True)],
        supported_operations=["Sync"],
    ),
    table(8, "pipe.IngressParser.$PORT_METADATA", "PortMetadata", 288, [key(65575, "port", 9, mandatory=True)]),
)

MULTICAST = text(
    table(
        0xFF010001,
        "$pre.mgid",
        "PreMgid",
        65536,
        [key(1, "$MGID", "uint16", mandatory=True)],
        [
            data(1, "$MULTICAST_NODE_ID", "uint32", repeated=True),
            data(2, "$MULTICAST_NODE_L1_XID_VALID", "bool", repeated=True),
            data(3, "$MULTICAST_NODE_L1_XID", "uint16", repeated=True),
        ],
    ),
    table(
        0xFF010002,
        "$pre.node",
        "PreNode",
        16777216,
        [key(1, "$MULTICAST_NODE_ID", "uint32", mandatory=True)],
        [
            data(1, "$MULTICAST_RID", "uint16", mandatory=True),
            data(2, "$MULTICAST_LAG_ID", "uint8", repeated=True, mandatory=True),
            data(3, "$DEV_PORT", "uint32", repeated=True, mandatory=True),
        ],
    ),
)


def outcomes(*annotations: str) -> bytes:
    """Return a schema with the counter on which a program says which ports it is for."""
    described = [{"name": annotation} for annotation in annotations]
    keys = _index(65556, "$COUNTER_INDEX")
    return text(table(9, "pipe.SwitchIngress.aggregation.outcomes", "Counter", 17, keys, COUNTS, annotations=described))
