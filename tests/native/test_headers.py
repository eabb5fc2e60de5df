# SPDX-License-Identifier: Apache-2.0
"""Python's declarations of the native switch's C code agree with its headers."""

from __future__ import annotations

import re
from enum import IntEnum

import pytest

from p4reduce_targets.native import library, numbers, program
from p4reduce_targets.native.numbers import ActionId, CounterId, TableId
from tests.support.c_headers import NATIVE, constants, functions, is_declared, text_of


def test_functions() -> None:
    there = functions("NATIVE_API", NATIVE / "native.h")
    assert there.keys() == library._FUNCTIONS.keys()
    for name, (result, arguments) in library._FUNCTIONS.items():
        c_result, c_arguments = there[name]
        assert is_declared(c_result, 0, result, {}), f"{name} returns {c_result}, not {result}"
        assert len(arguments) == len(c_arguments), name
        for (kind, argument, length), python in zip(c_arguments, arguments, strict=True):
            assert is_declared(kind, length, python, {}), f"{argument} of {name} is {kind}, not {python}"


@pytest.mark.parametrize(
    ("ids", "header", "prefix", "end"),
    [
        (TableId, "tables.h", "TABLE_", "TABLES"),
        (ActionId, "tables.h", "ACTION_", "MAX_ARGUMENTS"),
        (CounterId, "plane.h", "COUNTER_", "COUNTERS"),
    ],
)
def test_ids(ids: type[IntEnum], header: str, prefix: str, end: str) -> None:
    there = constants(NATIVE / header)
    for one in ids:
        assert there["NO_ACTION" if one == ActionId.NO_ACTION and ids is ActionId else prefix + one.name] == one
    if end != "MAX_ARGUMENTS":
        assert there[end] == len(ids)
    assert {name for name in there if name.startswith(prefix)} <= {prefix + one.name for one in ids} | {"COUNTER_SETS"}


def test_limits() -> None:
    assert constants(NATIVE / "plane.h")["MAX_THREADS"] == numbers.MAX_THREADS
    assert constants(NATIVE / "tables.h")["MAX_ARGUMENTS"] == numbers.MAX_ARGUMENTS
    assert constants(NATIVE / "native.h")["NATIVE_MAX_FRAME"] == numbers.MAX_FRAME
    assert constants(NATIVE / "context.h")["MAX_FRAME"] <= numbers.MAX_FRAME


def test_tables_have_the_sizes_and_defaults_of_the_program() -> None:
    """Those that `program` holds a compiled program to."""
    known = {"MEMBERS": constants(NATIVE / "plane.h")["MEMBERS"]}
    rows = re.findall(r"\[TABLE_(\w+)\] = \{(\w+), (\w+)\}", text_of(NATIVE / "plane.c"))
    there = {name: (known.get(size) or int(size), miss.removeprefix("ACTION_")) for name, size, miss in rows}
    assert there == {
        table.number.name: (table.size, table.actions[table.miss].number.name) for table in program.TABLES.values()
    }
