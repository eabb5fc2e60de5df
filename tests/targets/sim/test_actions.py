# SPDX-License-Identifier: Apache-2.0
"""Primitives, and what becomes of a packet between the pipelines."""

from __future__ import annotations

import pytest

from p4reduce_targets.dataplane import Count, Replica

from .programs import Builder, Json, assign, do, extract, field, header, named, number, op

BYTE = {"v": 8}
PAIR = {"a": 8, "b": 8}


def test_registers_and_their_ends() -> None:
    builder = Builder({"h": {"index": 8, "v": 8}}).register("r", 4, 4)
    builder.run(
        do("register_read", field("h.v"), named("register_array", "r"), field("h.index")),
        do("register_write", named("register_array", "r"), field("h.index"), op("+", field("h.v"), number(0x1F))),
    )
    switch = builder.load()
    assert switch.process(1, b"\x03\xaa") == [(1, b"\x03\x00")]
    assert switch.process(1, b"\x03\xaa") == [(1, b"\x03\x0f")]  # four bits are kept
    assert switch.process(1, b"\x04\xaa") == [(1, b"\x04\xaa")]  # beyond the end: nothing read
    assert switch.process(1, b"\x00\xaa") == [(1, b"\x00\x00")]


def test_indirect_counters() -> None:
    builder = Builder({"h": BYTE}).counter("c", 3).run(do("count", named("counter_array", "c"), field("h.v")))
    switch = builder.load()
    for frame in (b"\x02", b"\x02abc", b"\x03", b"\xff"):
        switch.process(1, frame)
    assert switch.read_counters([("c", index) for index in range(3)]) == [Count(0, 0), Count(0, 0), Count(2, 5)]
    switch.write_counter("c", 0, Count(5, 6))
    assert switch.read_counters([("c", 0)]) == [Count(5, 6)]
    with pytest.raises(ValueError, match=r"not in 0\.\.2"):
        switch.read_counters([("c", 3)])
    with pytest.raises(KeyError):
        switch.read_counters([("d", 0)])


def test_headers_come_and_go() -> None:
    builder = Builder({"a": BYTE, "b": PAIR, "length": {"v": 32}})
    builder.state("start", [extract("a")], [field("a.v")], v01="more", default=None)
    builder.state("more", [extract("b")], default=None)
    builder.run(do("add_header", header("b")), assign("b.b", op("+", field("b.b"), number(1))))
    builder.run(do("remove_header", header("a")), do("remove_header", header("a")), pipeline="ingress")
    show = [do("add_header", header("length")), assign("length.v", field("standard_metadata.packet_length"))]
    switch = builder.run(*show, pipeline="egress").load()
    assert switch.process(1, b"\x01\x10\x20!") == [(1, b"\x10\x21\x00\x00\x00\x03!")]
    assert switch.process(1, b"\x02!") == [(1, b"\x00\x01\x00\x00\x00\x03!")]  # added: all zeros before


def test_copying_headers() -> None:
    builder = Builder({"kind": BYTE, "a": PAIR, "b": PAIR})
    builder.state("start", [extract("kind")], [field("kind.v")], v01="to_a", v02="to_b")
    builder.state("to_a", [extract("a")], default=None).state("to_b", [extract("b")], default=None)
    switch = builder.run(do("assign_header", header("b"), header("a"))).load()
    assert switch.process(1, b"\x01\x10\x20") == [(1, b"\x01\x10\x20\x10\x20")]
    assert switch.process(1, b"\x02\x10\x20") == [(1, b"\x02")]  # copying an invalid one invalidates


@pytest.mark.parametrize(
    ("primitive", "count"), [("push", 1), ("push", 2), ("push", 5), ("pop", 1), ("pop", 2), ("pop", 3)]
)
def test_stacks_shift(primitive: str, count: int) -> None:
    builder = Builder({"n": BYTE, "s[3]": BYTE}).state("start", [extract("s", "stack"), extract("s", "stack")])
    builder.states[-1]["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": None}]
    builder.run(do(primitive, named("header_stack", "s"), number(count)), do("add_header", header("n")))
    valid = [op("<<", field(f"s[{index}].$valid$"), number(index)) for index in range(3)]
    builder.run(assign("n.v", op("|", op("|", valid[0], valid[1]), valid[2])))
    ((_, frame),) = builder.load().process(1, b"\x11\x22!")
    moved: list[int | None] = [0x11, 0x22, None]
    moved = [*[None] * count, *moved] if primitive == "push" else [*moved[count:], None, None, None]
    expected = [value for value in moved[:3] if value is not None]
    assert frame == bytes([sum(1 << i for i, v in enumerate(moved[:3]) if v is not None), *expected]) + b"!"


def test_jumps_in_an_action() -> None:
    h: Json = field("h.a")
    switch = (
        Builder({"h": PAIR})
        .run(
            do("_jump_if_zero", op("b2d", None, op("<", h, number(5))), number(3)),
            assign("h.b", number(1)),
            do("_jump", number(5)),
            do("_jump_if_zero", op("b2d", None, op("<", h, number(9))), number(5)),
            assign("h.b", number(2)),
            assign("h.a", number(0xFF)),
        )
        .load()
    )
    assert [switch.process(1, bytes([a, 0]))[0][1][1] for a in (4, 5, 8, 9)] == [1, 2, 2, 0]
    assert switch.process(1, b"\x04\x00")[0][1][0] == 0xFF


def test_exit_ends_the_pipeline_after_the_action() -> None:
    builder = Builder({"h": PAIR})
    jump = do("_jump_if_zero", op("b2d", None, op("==", field("h.a"), number(1))), number(2))
    builder.run(jump, do("exit"), assign("h.b", number(7)))
    builder.run(assign("h.b", number(8)))
    builder.run(assign("h.a", number(0xEE)), pipeline="egress")
    switch = builder.load()
    assert switch.process(1, b"\x01\x00") == [(1, b"\xee\x07")]
    assert switch.process(1, b"\x02\x00") == [(1, b"\xee\x08")]


def test_random_numbers_stay_in_their_range() -> None:
    switch = (
        Builder({"h": PAIR})
        .run(
            do("modify_field_rng_uniform", field("h.a"), number(3), number(5)),
            do("modify_field_rng_uniform", field("h.b"), number(9), field("h.b")),
        )
        .load()
    )
    sent = [switch.process(1, b"\x00\x0a")[0][1] for _ in range(200)]
    assert {frame[0] for frame in sent} == {3, 4, 5}
    assert {frame[1] for frame in sent} == {9, 10}
    assert switch.process(1, b"\x00\x08")[0][1][1] == 8  # an empty range writes nothing


@pytest.mark.parametrize("pipeline", ["ingress", "egress"])
def test_drop(pipeline: str) -> None:
    builder = Builder({"h": BYTE}).run(assign("standard_metadata.mcast_grp", number(1)))
    switch = builder.run(do("mark_to_drop", header("standard_metadata")), pipeline=pipeline).load()
    switch.set_group(1, [Replica(1, 1), Replica(2, 2)])
    assert switch.process(1, b"\x01") == []


def test_drop_in_ingress_can_be_taken_back() -> None:
    builder = Builder({"h": BYTE}).run(do("mark_to_drop", header("standard_metadata")))
    switch = builder.run(assign("standard_metadata.egress_spec", number(3))).load()
    assert switch.process(1, b"\x01") == [(3, b"\x01")]


def test_multicast_copies_are_independent() -> None:
    builder = Builder({"h": {"port": 8, "instance": 8, "kind": 8, "seen": 8}, "tail": {"v": 16}})
    builder.run(assign("standard_metadata.mcast_grp", field("h.port")))
    builder.run(
        assign("h.port", field("standard_metadata.egress_port")),
        assign("h.instance", field("standard_metadata.egress_rid")),
        assign("h.kind", field("standard_metadata.instance_type")),
        assign("h.seen", op("+", field("h.seen"), number(1))),
        pipeline="egress",
    )
    switch = builder.load()
    switch.set_group(9, [Replica(4, 7), Replica(2, 0), Replica(4, 8)])
    frame = bytes([9, 0, 0, 0, 0xAB, 0xCD]) + b"payload"
    tail = b"\x01\xab\xcdpayload"
    copies = [(4, b"\x04\x07\x05" + tail), (2, b"\x02\x00\x05" + tail), (4, b"\x04\x08\x05" + tail)]
    assert switch.process(1, frame) == copies
    switch.set_group(9, [Replica(1, 1)])
    assert switch.process(1, frame) == [(1, b"\x01\x01\x05" + tail)]
    switch.set_group(9, [])
    assert switch.process(1, frame) == []
    assert switch.process(1, bytes(4)) == [(1, b"\x01\x00\x00\x01")]  # no group: unicast
    with pytest.raises(ValueError, match="group 0"):
        switch.set_group(0, [])


def test_metadata_lives_from_ingress_to_egress_but_not_longer() -> None:
    builder = Builder({"h": PAIR}, {"m": 8})
    builder.run(assign("h.a", field("scalars.m")), assign("scalars.m", field("h.b")))
    switch = builder.run(assign("h.b", op("+", field("scalars.m"), number(1))), pipeline="egress").load()
    assert [switch.process(1, bytes([9, b])) for b in (4, 5)] == [[(1, b"\x00\x05")], [(1, b"\x00\x06")]]


def test_egress_sees_a_fresh_egress_spec() -> None:
    builder = Builder({"h": BYTE})
    switch = builder.run(assign("h.v", field("standard_metadata.egress_spec")), pipeline="egress").load()
    assert switch.process(1, b"\x09") == [(1, b"\x00")]


def test_condition_chooses_the_way() -> None:
    builder = Builder({"h": BYTE})
    small = builder.action("small", assign("h.v", number(1)))
    large = builder.action("large", assign("h.v", number(2)))
    builder.condition(op("<", field("h.v"), number(10)), "yes", "no")
    builder.table("yes", {}, [small], default=small, const=True, next_tables={"small": None})
    builder.table("no", {}, [large], default=large, const=True, next_tables={"large": None})
    switch = builder.load()
    assert [switch.process(1, bytes([v]))[0][1] for v in (9, 10)] == [b"\x01", b"\x02"]
