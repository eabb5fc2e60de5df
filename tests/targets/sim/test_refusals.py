# SPDX-License-Identifier: Apache-2.0
"""A program that needs what is not there is refused when it is loaded, with the name of the thing and its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from p4reduce_targets.sim import UnsupportedFeature, load

from .programs import Builder, argument, assign, do, extract, field, header, named, number, op

BYTE = {"v": 8}


Change = Callable[[Builder], object]


def dynamic_index() -> object:
    element = op("dereference_header_stack", named("header_stack", "s"), field("h.v"))
    return op("access_field", element, 0)


def with_part(section: str, **part: object) -> Change:
    return lambda made: made.extra.update({section: [{"name": "thing", "id": 0, **part}]})


def with_table(match: str = "exact", **changes: Any) -> Change:
    return lambda made: made.table("t", {"h.v": match}, [made.action("nothing")], **changes)


def with_state(*operations: object) -> Change:
    return lambda made: made.state("start", operations, default=None)


def with_action(*primitives: object) -> Change:
    return lambda made: made.table("t", {}, [made.action("act", *primitives, index=8)])


def with_field(*description: object) -> Change:
    return lambda made: made.types[-1]["fields"].append(list(description))


def with_checksum(**changes: object) -> Change:
    return lambda made: made.checksum("h.v", [field("h.w")], verify=False).calculations[0].update(changes)


def looping(made: Builder) -> None:
    made.state("start", [extract("h")], default="again").state("again", [extract("h")], default="start")


@pytest.mark.parametrize(
    ("change", "what", "where"),
    [
        (with_part("meter_arrays", size=1, type="packets", is_direct=True), "direct meter", "thing"),
        (with_part("extern_instances", type="Hasher"), "extern of type Hasher", "thing"),
        (with_part("header_unions"), "header union", "thing"),
        (with_part("parse_vsets"), "parser value set", "thing"),
        (with_field("options", "*"), "variable length", "header type s[1]_t, field options"),
        (with_field("delta", 8, True), "signed field", "header type s[1]_t, field delta"),
        (with_field("odd", 3), "11 bits", "header s[1]"),
        (with_table("range"), "match kind range", "table t, key field h.v"),
        (with_table("optional"), "match kind optional", "table t, key field h.v"),
        (with_table(type="indirect_ws"), "table of type indirect_ws", "table t"),
        (with_table(direct_meters="m"), "direct meter", "table t"),
        (with_table(support_timeout=True), "idle timeout", "table t"),
        (
            with_action(do("clone_ingress_pkt_to_egress", number(1), number(0))),
            "clone_ingress_pkt_to_egress",
            "action act",
        ),
        (with_action(do("resubmit", number(0))), "resubmit", "action act"),
        (with_action(do("recirculate", number(0))), "recirculate", "action act"),
        (with_action(do("generate_digest", number(0), number(0))), "generate_digest", "action act"),
        (with_action(do("_Hasher_update", number(0))), "_Hasher_update", "action act"),
        (with_action(assign("standard_metadata.priority", number(1))), "a queue's priority", "action act"),
        (with_action(do("truncate", number(0))), "truncate", "action act"),
        (with_action(do("_jump", number(0))), "a jump backwards", "action act"),
        (with_action(do("push", named("header_stack", "s"), argument(0))), "that is no constant", "action act"),
        (with_action(assign("h.v", op("sat_cast", field("h.w"), number(8)))), "operator sat_cast", "action act"),
        (with_action(assign("h.v", op("==h", header("h"), header("h")))), "comparing headers", "action act"),
        (with_action(assign("h.v", dynamic_index())), "index into a header stack", "action act"),
        (
            with_action(do("assign", dynamic_index(), number(1))),
            "writing to an operand of type expression",
            "action act",
        ),
        (
            with_action(assign("h.v", {"type": "stack_field", "value": ["s", "v"]})),
            "the last header of stack s",
            "action act",
        ),
        (with_action(assign("h.v", {"type": "register", "value": ["r", number(0)]})), "type register", "action act"),
        (with_state(do("extract_VL")), "parser operation extract_VL", "parser state start"),
        (with_state(extract("h", "union_stack")), "type union_stack", "parser state start"),
        (
            with_state(do("primitive", do("generate_digest"))),
            "primitive generate_digest",
            "parser state start",
        ),
        (looping, "a loop that extracts to no stack", "parser, state"),
        (with_checksum(algo="crc32"), "algorithm crc32", "checksum checksum0"),
        (with_checksum(input=[{"type": "payload", "value": None}]), "input of type payload", "checksum checksum0"),
    ],
)
def test_refusal_names_it(change: Change, what: str, where: str) -> None:
    made = Builder({"h": {"v": 8, "w": 8}, "s[2]": BYTE})
    change(made)
    with pytest.raises(UnsupportedFeature) as refused:
        made.load()
    assert what in refused.value.what
    assert where in refused.value.where
    assert str(refused.value).startswith(refused.value.where)


@pytest.mark.parametrize("text", ["", "not JSON", "[]", '{"header_types": []}'])
def test_no_program_at_all(text: str) -> None:
    with pytest.raises(ValueError, match="the program is not"):
        load(text)


def for_cpu_port(cases: dict[str, str | None], key: str = "standard_metadata.ingress_port") -> Builder:
    made = Builder({"packet_out": BYTE, "h": BYTE})
    made.state("start", [], [field(key)] if key else [], **cases)
    made.state("parse_packet_out", [extract("packet_out")], default="parse_h")
    return made.state("parse_h", [extract("h")], default=None)


def test_a_program_for_another_cpu_port() -> None:
    """Packet-outs would be parsed as frames of a port."""
    with pytest.raises(ValueError, match=r"for CPU port 192, and this switch has CPU port 510: .*--cpu-port 192"):
        for_cpu_port({"v00c0": "parse_packet_out", "default": "parse_h"}).load()
    with pytest.raises(ValueError, match="for CPU port 64,"):  # nor is a port that goes elsewhere first
        for_cpu_port({"v01fe": "parse_h", "v0040": "parse_packet_out", "default": "parse_h"}).load()


@pytest.mark.parametrize(
    ("cases", "key"),
    [
        ({"v01fe": "parse_packet_out", "default": "parse_h"}, "standard_metadata.ingress_port"),
        ({"v00c0": "parse_packet_out", "v01fe": "parse_packet_out"}, "standard_metadata.ingress_port"),
        ({"v0100m0100": "parse_packet_out", "default": "parse_h"}, "standard_metadata.ingress_port"),
        ({"default": "parse_packet_out"}, "standard_metadata.ingress_port"),
        ({"default": "parse_packet_out"}, ""),
        ({"v00c0": "parse_packet_out", "default": "parse_h"}, "h.v"),
        ({"v0001": "parse_h", "default": "parse_h"}, "standard_metadata.ingress_port"),
    ],
)
def test_programs_that_may_be_for_this_cpu_port(cases: dict[str, str | None], key: str) -> None:
    for_cpu_port(cases, key).load()
