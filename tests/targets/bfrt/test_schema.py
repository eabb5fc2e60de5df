# SPDX-License-Identifier: Apache-2.0
"""Schemas of BF Runtime are read as the compiler and the SDE write them."""

from __future__ import annotations

import json

import pytest

from p4reduce_targets.bfrt.schema import Action, DataField, KeyField, Schema, SchemaError
from tests.targets.bfrt import schemas

ROUTES = schemas.table(
    7,
    "pipe.Ingress.routes",
    "MatchAction_Direct",
    1024,
    [schemas.key(1, "port", 9), schemas.key(2, "destination", 32, "LPM")],
    schemas.COUNTS,
    [
        schemas.action(21, "Ingress.route", schemas.parameter(1, "port", 9), schemas.parameter(2, "mac", 48)),
        schemas.action(22, "NoAction", scope="DefaultOnly"),
    ],
    annotations=[{"name": "@cpu_port(64)"}, {"name": "@hidden"}, {"name": "$class", "value": "direct"}],
    supported_operations=["SyncCounters"],
    has_const_default_action=True,
)
NODES = schemas.table(
    0xFF010002,
    "$pre.node",
    "PreNode",
    16777216,
    [schemas.key(1, "$MULTICAST_NODE_ID", "uint32", mandatory=True)],
    [
        schemas.data(1, "$MULTICAST_RID", "uint16", mandatory=True),
        schemas.data(3, "$DEV_PORT", "uint32", repeated=True),
        schemas.data(4, "$NAME", "string"),
        schemas.data(5, "$UP", "bool"),
    ],
)


def test_reads_tables_of_all_files() -> None:
    schema = Schema.parse(schemas.text(ROUTES), schemas.text(NODES))
    assert set(schema.tables) == {"pipe.Ingress.routes", "$pre.node"}
    routes = schema.table("pipe.Ingress.routes")
    assert schema.table_of(7) is routes
    assert (routes.kind, routes.size, routes.has_const_default) == ("MatchAction_Direct", 1024, True)
    assert routes.keys == (KeyField(1, "port", "Exact", 9), KeyField(2, "destination", "LPM", 32))
    assert routes.action("Ingress.route").data == (DataField(1, "port", 9), DataField(2, "mac", 48))
    assert routes.action("NoAction") == Action(22, "NoAction", ())
    assert routes.annotations == ("@cpu_port(64)", "@hidden", "$class(direct)")
    assert routes.operations == ("SyncCounters",)
    assert routes.field("$COUNTER_SPEC_PKTS").bits == 64
    assert routes.has_field("$COUNTER_SPEC_PKTS")


def test_reads_types() -> None:
    nodes = Schema.parse(schemas.text(NODES)).table("$pre.node")
    assert nodes.key("$MULTICAST_NODE_ID").bits == 32
    assert (nodes.field("$MULTICAST_RID").bits, nodes.field("$DEV_PORT").bits) == (16, 32)
    assert (nodes.field("$NAME").bits, nodes.field("$UP").bits) == (0, 1)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (lambda schema: schema.table("pipe.other"), "no table pipe.other"),
        (lambda schema: schema.table_of(8), "no table with the number 0x8"),
        (lambda schema: schema.table("$pre.node").key("x"), r"\$pre.node has no key field x"),
        (lambda schema: schema.table("$pre.node").field("x"), r"\$pre.node has no data field x"),
        (lambda schema: schema.table("$pre.node").action("x"), r"\$pre.node has no action x"),
    ],
)
def test_names_what_is_missing(wanted: object, complaint: str) -> None:
    with pytest.raises(KeyError, match=complaint):
        wanted(Schema.parse(schemas.text(NODES)))  # type: ignore[operator]


def test_a_number_is_that_of_the_first_table() -> None:
    """The server of open-p4studio lists tables of another chip, some with the numbers of its own chip's tables."""
    schema = Schema.parse(schemas.text(NODES, {**NODES, "name": "other"}))
    assert schema.table_of(NODES["id"]).name == NODES["name"]
    assert schema.table("other").id == NODES["id"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"\x0a\x08", "is not JSON"),
        (b"[]", "with a list `tables`, and this is not"),
        (b'{"tables": [7]}', "table number 0: "),
        (
            schemas.text({key: value for key, value in NODES.items() if key != "id"}),
            r"table \$pre.node: there is no 'id'",
        ),
        (schemas.text(NODES, NODES), "two tables"),
    ],
)
def test_refuses_what_is_no_schema(text: bytes, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        Schema.parse(text)


def test_an_unknown_type_has_no_width() -> None:
    """A newer server may have one, in a table that nobody uses here."""
    schema = Schema.parse(schemas.text({**NODES, "key": [schemas.key(1, "k", "varbit")]}))
    assert schema.table("$pre.node").key("k").bits == 0


def test_leaves_out_fields_in_fields() -> None:
    """A table for tests of the chip has these, and nobody uses it."""
    group = {"mandatory": False, "singleton": {"id": 1, "name": "stages", "container": [], "annotations": []}}
    assert Schema.parse(json.dumps({"tables": [{**NODES, "data": [group]}]}).encode()).table("$pre.node").data == ()
