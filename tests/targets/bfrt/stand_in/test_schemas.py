# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: its schemas and boards.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.bfrt import programs
from tests.support.bfrt.ports import BOARDS
from tests.support.bfrt.schema import derive

from .entries import (
    KINDS,
)

pytestmark = pytest.mark.p4c


def test_boards() -> None:
    names = BOARDS["tofino1"].names()
    assert (names["1/0"], names["16/3"], names["17/0"], names["33/0"]) == (0, 63, 128, 64)
    assert BOARDS["tofino2"].names()["1/0"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("profile", programs.tofino.PROFILES)
def test_the_schema_is_the_compilers(profile: str, tmp_path: Path) -> None:
    """`derive` makes the same tables as p4c's backend, which alone knows the names of a register's words."""
    try:
        programs.tofino.compile_profile(profile, tmp_path)
    except programs.tofino.ToolMissing as missing:
        pytest.skip(str(missing))
    compiled = tables_of((tmp_path / "bf-rt.json").read_bytes())
    registers = {
        name.removeprefix("pipe."): (table["size"], len(table["data"]))
        for name, table in compiled.items()
        if table["table_type"] == "Register"
    }
    derived = tables_of(derive(programs.p4info(profile), registers))
    assert derived == {name: table for name, table in compiled.items() if table["table_type"] in KINDS}


def tables_of(schema: bytes) -> dict[str, Any]:
    """Return the tables of a schema, without the names of registers' words."""
    tables = {table["name"]: table for table in json.loads(schema)["tables"]}
    for table in tables.values():
        if table["table_type"] == "Register":
            for field in table["data"]:
                del field["singleton"]["name"]
    return tables
