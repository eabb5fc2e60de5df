# SPDX-License-Identifier: Apache-2.0
"""Every operator of the JSON, and the widths of what is written."""

from __future__ import annotations

import struct

import pytest

from .programs import Builder, Json, assign, field, number, op

HEADER = {"a": 16, "b": 16, "flag": 8, "result": 32}
A, B, FLAG = field("h.a"), field("h.b"), field("h.flag")


def evaluate(expression: Json, a: int, b: int) -> int:
    """Run a program with the expression, and return its value modulo 2**32. It may use a header's fields."""
    switch = Builder({"h": HEADER}).run(assign("h.result", expression)).load()
    ((port, frame),) = switch.process(2, struct.pack("!HHBI", a, b, 0, 0xDEADBEEF))
    assert (port, frame[:5]) == (1, struct.pack("!HHB", a, b, 0))
    return int.from_bytes(frame[5:], "big")


def data(condition: Json) -> Json:
    return op("b2d", None, condition)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (op("+", A, B), 0xFFFF + 3),
        (op("&", op("+", A, B), number(0xFFFF)), 2),
        (op("-", B, A), 2**32 + 3 - 0xFFFF),
        (op("*", A, B), 0xFFFF * 3),
        (op("/", A, B), 0xFFFF // 3),
        (op("%", A, B), 0xFFFF % 3),
        (op("<<", A, number(8)), 0xFFFF00),
        (op("<<", A, B), 0xFFFF << 3),
        (op("<<", number(1), op("<<", A, number(12))), 0),
        (op(">>", A, B), 0xFFFF >> 3),
        (op(">>", A, number(4)), 0xFFF),
        (op("&", A, B), 3),
        (op("|", B, number(0x10)), 0x13),
        (op("^", A, B), 0xFFFC),
        (op("~", None, B), 0xFFFFFFFC),
        (op("&", op("~", None, A), number(0xFFFF)), 0),
        (op("&", op("-", B, A), number(0xFF)), 4),
        (op("?", A, B, cond=op("d2b", None, A)), 0xFFFF),
        (op("?", A, B, cond=op(">", B, A)), 3),
        (op("usat_cast", op("+", A, B), number(16)), 0xFFFF),
        (op("usat_cast", op("-", B, A), number(16)), 0),
        (data(op("<", B, A)), 1),
        (data(op(">=", B, A)), 0),
        (data(op("==", op("&", A, number(3)), B)), 1),
        (data(op("!=", A, B)), 1),
        (data(op("<=", op("-", B, A), number(0))), 1),
        (data(op("not", None, op("==", A, A))), 0),
        (data(op("and", op("d2b", None, A), op("or", op("==", A, B), op("d2b", None, B)))), 1),
        (data(op("==b", op("d2b", None, A), op("d2b", None, B))), 1),
        (data(op("!=b", op("d2b", None, A), op("d2b", None, FLAG))), 1),
        (op("+", data(op("not", None, op("d2b", None, FLAG))), number(1)), 2),
        (data(op("valid", None, {"type": "header", "value": "h"})), 1),
        (op("&", field("h.$valid$"), number(1)), 1),
    ],
    ids=lambda part: part["value"]["value"]["op"] if isinstance(part, dict) else None,
)
def test_operator(expression: Json, value: int) -> None:
    assert evaluate(expression, a=0xFFFF, b=3) == value


def test_narrow_field_keeps_lowest_bits() -> None:
    switch = Builder({"h": {"a": 3, "b": 5}}).run(assign("h.a", number(0xD)), assign("h.b", field("h.a"))).load()
    assert switch.process(2, b"\x00") == [(1, bytes([5 << 5 | 5]))]


def test_fields_that_straddle_bytes() -> None:
    widths = {"a": 1, "b": 6, "c": 9, "d": 48, "e": 24, "f": 40, "g": 128, "h": 4, "i": 12}
    switch = Builder({"h": widths}).run(
        *(assign(f"h.{name}", op("+", field(f"h.{name}"), number(1))) for name in widths)
    )
    values = {name: (0x5A5A5A5A5A5A5A5A5A5A5A5A5A5A5A5A * 3) % 2**bits for name, bits in widths.items()}

    def pack(parts: dict[str, int]) -> bytes:
        whole = 0
        for name, bits in widths.items():
            whole = whole << bits | parts[name] % 2**bits
        return whole.to_bytes(sum(widths.values()) // 8, "big")

    assert switch.load().process(2, pack(values)) == [(1, pack({name: value + 1 for name, value in values.items()}))]
