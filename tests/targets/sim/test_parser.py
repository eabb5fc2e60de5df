# SPDX-License-Identifier: Apache-2.0
"""Tests of the parser: states, errors, header stacks, and bytes that it does not extract."""

from __future__ import annotations

import pytest

from .programs import Builder, assign, do, extract, field, header, number, op

BYTE = {"v": 8}
WORD = {"v": 16}


def with_error_shown(builder: Builder) -> Builder:
    """Let the program add a header in front that holds the parser's error."""
    show = [do("add_header", header("e")), assign("e.v", field("standard_metadata.parser_error"))]
    return builder.run(*show)


def test_select_with_masks_takes_first_match() -> None:
    builder = Builder({"e": BYTE, "kind": {"a": 4, "b": 12}, "x": BYTE, "y": WORD})
    builder.state("start", [extract("kind")], [field("kind.a"), field("kind.b")], v010002="one", v020000m0f0000="two")
    builder.state("one", [extract("x")], default=None).state("two", [extract("y")], default=None)
    builder.run(assign("x.v", number(0xAA)), assign("y.v", number(0xBBBB)))
    switch = builder.load()
    assert switch.process(1, bytes.fromhex("1002 01 02 03")) == [(1, bytes.fromhex("1002 aa 02 03"))]
    assert switch.process(1, bytes.fromhex("2fff 01 02 03")) == [(1, bytes.fromhex("2fff bbbb 03"))]
    assert switch.process(1, bytes.fromhex("1003 01 02 03")) == [(1, bytes.fromhex("1003 01 02 03"))]


@pytest.mark.parametrize(
    ("frame", "out"),
    [
        ("", "01"),  # nothing extracted
        ("11", "01 11"),
        ("11 2222", "01 11 2222"),  # the first two headers were there
        ("11 2222 33", "01 11 2222 33"),
        ("11 2222 3333", "00 11 2222 3333"),
        ("11 2222 3333 44", "00 11 2222 3333 44"),
    ],
)
def test_frame_too_short_keeps_what_was_parsed(frame: str, out: str) -> None:
    builder = Builder({"e": BYTE, "a": BYTE, "b": WORD, "c": WORD})
    builder.state("start", [extract("a"), extract("b")], default="more").state("more", [extract("c")], default=None)
    assert with_error_shown(builder).load().process(1, bytes.fromhex(frame)) == [(1, bytes.fromhex(out))]


def test_stack_unrolls_until_it_is_full() -> None:
    builder = Builder({"e": BYTE, "s[3]": {"last": 1, "v": 7}, "n": BYTE})
    builder.state(
        "start", [extract("s", "stack")], [{"type": "stack_field", "value": ["s", "last"]}], v00="start", v01=None
    )
    size = op("size_stack", None, {"type": "header_stack", "value": "s"})
    last = op("last_stack_index", None, {"type": "header_stack", "value": "s"})
    builder.run(do("add_header", header("n")))
    builder.run(assign("n.v", op("|", op("<<", size, number(4)), last)))
    switch = with_error_shown(builder).load()
    assert switch.process(1, bytes.fromhex("81 99")) == [(1, bytes.fromhex("00 81 10 99"))]
    assert switch.process(1, bytes.fromhex("01 02 83 99")) == [(1, bytes.fromhex("00 010283 32 99"))]
    assert switch.process(1, bytes.fromhex("01 02 03 99")) == [(1, bytes.fromhex("03 010203 32 99"))]
    assert switch.process(1, bytes.fromhex("01 02")) == [(1, bytes.fromhex("01 0102 21"))]


def test_last_of_a_stack_in_parser_expressions() -> None:
    builder = Builder({"n": BYTE, "s[2]": BYTE})
    copy = do("set", field("n.v"), {"type": "stack_field", "value": ["s", "v"]})
    builder.state("start", [extract("n"), extract("s", "stack"), extract("s", "stack"), copy], default=None)
    assert builder.load().process(1, bytes.fromhex("00 11 22")) == [(1, bytes.fromhex("22 11 22"))]


def test_lookahead_sets_without_taking() -> None:
    builder = Builder({"e": BYTE, "a": BYTE, "b": WORD})
    ahead = do("set", field("a.v"), {"type": "lookahead", "value": [4, 8]})
    builder.state("start", [extract("a"), ahead], [{"type": "lookahead", "value": [0, 4]}], v01="more", default=None)
    builder.state("more", [extract("b")], default=None)
    switch = with_error_shown(builder).load()
    assert switch.process(1, bytes.fromhex("00 1234 56")) == [(1, bytes.fromhex("00 23 1234 56"))]
    assert switch.process(1, bytes.fromhex("00")) == [(1, bytes.fromhex("01 00"))]


def test_advance_drops_bytes() -> None:
    builder = Builder({"e": BYTE, "a": BYTE, "b": BYTE})
    by_field = do("advance", op("<<", field("a.v"), number(2)))
    fixed = do("advance", number(8))
    builder.state("start", [extract("a"), fixed, by_field, extract("b")], default=None)
    switch = with_error_shown(builder).load()
    assert switch.process(1, bytes.fromhex("04 ff eeee 11 22")) == [(1, bytes.fromhex("00 04 11 22"))]
    assert switch.process(1, bytes.fromhex("01 ff 11")) == [(1, bytes.fromhex("06 01 11"))]  # half a byte
    assert switch.process(1, bytes.fromhex("08 ff 11")) == [(1, bytes.fromhex("01 08 11"))]
    assert switch.process(1, bytes.fromhex("08")) == [(1, bytes.fromhex("01 08"))]


def test_verify_ends_with_its_error() -> None:
    builder = Builder({"e": BYTE, "a": BYTE, "b": BYTE})
    check = do("verify", op("==", field("a.v"), number(4)), number(9))
    builder.state("start", [extract("a"), check, extract("b")], default=None)
    switch = with_error_shown(builder.run(assign("b.v", number(0)))).load()
    assert switch.process(1, bytes.fromhex("04 11 22")) == [(1, bytes.fromhex("00 04 00 22"))]
    assert switch.process(1, bytes.fromhex("05 11 22")) == [(1, bytes.fromhex("09 05 11 22"))]


def test_parser_sees_ingress_port() -> None:
    builder = Builder({"a": BYTE})
    builder.state("start", [], [field("standard_metadata.ingress_port")], v01fe="take", default=None)
    builder.state("take", [extract("a")], default=None).run(do("remove_header", header("a")))
    switch = builder.load()
    assert switch.process(510, b"\x01\x02") == [(1, b"\x02")]
    assert switch.process(509, b"\x01\x02") == [(1, b"\x01\x02")]
