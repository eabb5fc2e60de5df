# SPDX-License-Identifier: Apache-2.0
"""Checksums over fields that do not fill words, of headers that may be absent, under conditions."""

from __future__ import annotations

import random

import pytest

from tests.support.dataplane.frames import checksum

from .programs import Builder, assign, do, extract, field, number, op

HEADER = {"a": 3, "b": 13, "c": 8, "d": 24, "e": 48, "f": 32, "sum": 16}
INPUTS = [field(f"h.{name}") for name in HEADER if name != "sum"]


def test_update_and_verify() -> None:
    update = Builder({"h": HEADER}).checksum("h.sum", INPUTS, verify=False).load()
    verify = Builder({"h": HEADER, "x": {"v": 8}}).state("start", [extract("h")], default=None)
    verify.checksum("h.sum", INPUTS, verify=True).run(do("add_header", {"type": "header", "value": "x"}))
    verifying = verify.run(assign("x.v", field("standard_metadata.checksum_error"))).load()
    draw = random.Random(2)
    for _ in range(50):
        data = draw.randbytes(16)
        right = checksum(data).to_bytes(2, "big")
        assert update.process(1, data + b"\x12\x34rest") == [(1, data + right + b"rest")]
        assert verifying.process(1, data + right) == [(1, data + right + b"\x00")]
        wrong = (checksum(data) ^ 1).to_bytes(2, "big")
        assert verifying.process(1, data + wrong) == [(1, data + wrong + b"\x01")]


def test_condition_and_constant() -> None:
    inputs = [field("h.c"), {**number(0xABCDE), "bitwidth": 24}, *INPUTS[4:]]
    condition = op("==", field("h.c"), number(7))
    switch = Builder({"h": HEADER}).checksum("h.sum", inputs, verify=False, condition=condition).load()
    for c in (6, 7):
        head, tail = bytes([0, 0, c, 1, 2, 3]), bytes(range(10))
        expected = checksum(bytes([c]) + bytes.fromhex("0abcde") + tail).to_bytes(2, "big") if c == 7 else b"!!"
        assert switch.process(1, head + tail + b"!!") == [(1, head + tail + expected)]


@pytest.mark.parametrize("extra", [False, True])
def test_absent_header_is_left_out(extra: bool) -> None:
    builder = Builder({"h": {"kind": 16, "sum": 16}, "x": {"v": 32}})
    builder.state("start", [extract("h")], [field("h.kind")], v0001="more").state("more", [extract("x")], default=None)
    switch = builder.checksum("h.sum", [field("h.kind"), field("x.v")], verify=False).load()
    tail = bytes.fromhex("01020304")
    head = b"\x00\x01" if extra else b"\x00\x02"
    expected = checksum(head + tail if extra else head).to_bytes(2, "big")
    assert switch.process(1, head + b"??" + tail) == [(1, head + expected + tail)]
