# SPDX-License-Identifier: Apache-2.0
"""Loops over all fields of a header, done at once: the same results as field by field, and only where that is safe."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib.resources import files

import pytest

from p4reduce_targets.sim import Switch, load, rows
from p4reduce_targets.sim.program import parse

from .programs import Builder, Json, argument, assign, do, field, header, named, number, op

FIELDS = 16
WIDE = {f"v{index}": 32 for index in range(FIELDS)}


def vector(expression: Callable[[int], Json], *, bits: int = 32) -> Builder:
    """Return a program that sets v_i = expression(i) and r_i[n] = v_i for every i of `values`.

    It also reads registers into scratch fields.
    """
    scratch = {f"t{index}": bits for index in range(FIELDS)}
    builder = Builder({"h": {"n": 8, "s": 32}, "values": dict.fromkeys(WIDE, bits)}, scratch)
    primitives = []
    for index in range(FIELDS):
        builder.register(f"r{index}", 4, bits)
        register = named("register_array", f"r{index}")
        primitives += [
            do("register_read", field(f"scalars.t{index}"), register, field("h.n")),
            assign(f"values.v{index}", expression(index)),
            do("register_write", register, field("h.n"), field(f"values.v{index}")),
        ]
    return builder.run(*primitives)


def outputs(switch: Switch, bits: int = 32) -> list[object]:
    draw = random.Random(3)
    edge = [0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1]
    sent: list[object] = []
    for _ in range(60):
        values = [draw.choice([*edge, draw.getrandbits(bits)]) for _ in range(FIELDS)]
        whole = sum(value << (bits * (FIELDS - 1 - index)) for index, value in enumerate(values))
        scalar = draw.choice([0, 0xFFFFFFFF, draw.getrandbits(32)])
        frame = bytes([draw.randrange(5)]) + scalar.to_bytes(4, "big") + whole.to_bytes(bits * FIELDS // 8, "big")
        sent.append(switch.process(1, frame))
    return sent


def row_headers(builder: Builder) -> set[str]:
    return set(rows.Rows(parse(json.dumps(builder.json()))).headers)


V: Callable[[int], Json] = lambda index: field(f"values.v{index}")  # noqa: E731
T: Callable[[int], Json] = lambda index: field(f"scalars.t{index}")  # noqa: E731
S = field("h.s")
MASK = number(0xFFFFFFFF)


@pytest.mark.parametrize(
    "expression",
    [
        lambda index: op("&", op("+", V(index), op("&", T(index), S)), MASK),
        lambda index: op("&", op("-", V(index), T(index)), MASK),
        lambda index: op("-", T(index), V(index)),
        lambda index: op("+", V(index), op("+", T(index), op("+", S, number(1)))),
        lambda index: op("|", op("^", V(index), S), op("&", op("~", None, T(index)), MASK)),
        lambda index: T(index),
        lambda _: S,
        lambda _: number(0x80000001),
    ],
)
@pytest.mark.parametrize("bits", [32, 16])
def test_same_as_field_by_field(expression: Callable[[int], Json], bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = vector(expression, bits=bits)
    assert row_headers(builder) == {"values"}
    at_once = outputs(builder.load(), bits)
    monkeypatch.setattr(rows, "MIN_FIELDS", 1000)
    assert row_headers(builder) == set()
    assert outputs(builder.load(), bits) == at_once


@pytest.mark.parametrize(
    "spoil",
    [
        lambda builder: builder.run(assign("values.v3", number(1))),
        lambda builder: builder.run(assign("h.s", field("values.v15"))),
        lambda builder: builder.run(do("register_write", named("register_array", "r0"), number(0), number(1))),
        lambda builder: builder.run(assign("h.s", field("scalars.t1"))),
        lambda builder: builder.table("t", {"values.v1": "exact"}, [builder.action("nothing")]),
        lambda builder: builder.checksum("h.s", [field("values.v1")], verify=False),
        lambda builder: builder.run(do("assign_header", header("values"), header("values"))),
    ],
)
def test_no_row_where_one_field_is_used_alone(spoil: Callable[[Builder], Builder]) -> None:
    builder = vector(lambda index: op("&", op("+", V(index), T(index)), MASK))
    assert row_headers(builder) == {"values"}
    assert row_headers(spoil(builder)) == set()
    outputs(builder.load())


@pytest.mark.parametrize(
    "expression",
    [
        lambda index: op("*", V(index), T(index)),
        lambda index: op(">>", V(index), number(1)),
        lambda index: op("?", V(index), T(index), cond=op("<", V(index), T(index))),
        lambda index: number(index),
        lambda index: V((index + 1) % FIELDS),
    ],
)
def test_no_row_where_fields_would_mix(expression: Callable[[int], Json]) -> None:
    assert row_headers(vector(expression)) == set()


def test_rows_come_and_go_with_their_header() -> None:
    builder = Builder({"h": {"n": 8}, "values": WIDE})
    clear = builder.action(
        "clear",
        do("add_header", header("values")),
        *(assign(f"values.v{i}", argument(0)) for i in range(FIELDS)),
        word=32,
    )
    builder.table("t", {"h.n": "exact"}, [clear], default=clear, data=[0x01020304])
    builder.state("start", [do("extract", {"type": "regular", "value": "h"})], default=None)
    assert row_headers(builder) == {"values"}
    assert builder.load().process(1, b"\x07rest") == [(1, b"\x07" + bytes([1, 2, 3, 4]) * FIELDS + b"rest")]


def test_all_values_of_the_shipped_program_are_rows() -> None:
    program = files("p4reduce_controller.compiled").joinpath("p4reduce.json").read_bytes()
    found = rows.Rows(parse(program))
    assert {name for name in found.headers if name.startswith("values")} == set(found.headers)
    assert len(found.headers) == len(found.banks) == 4
    assert "values_3_v63" not in load(program).source
