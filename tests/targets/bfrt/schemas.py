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
    return {"id": action_id, "name": name, "action_scope": scope, "annotations": [], "data": list(parameters)}


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
