# SPDX-License-Identifier: Apache-2.0
"""What the controller learns from P4Info: lanes, block size and slots of a build."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from finsy.proto import p4i
from google.protobuf import text_format

from p4reduce.transport import base
from p4reduce_controller.p4runtime.builds import BUILDS, LEAST_MTU, Build, build_for
from p4reduce_controller.p4runtime.program import P4INFO, PipelineError, Program, load_schema

COMPILED = Path(__file__).parents[2] / "p4src" / "compiled"
SUMS = re.compile(r"\.lane(\d+)\.value(\d+)\.sums$")


def program(folder: Path, rename: Callable[[str], str | None]) -> Program:
    """The shipped program, its registers under other names; None: without that one."""
    shutil.copytree(COMPILED, folder, dirs_exist_ok=True)
    info = text_format.Parse((folder / P4INFO).read_text(), p4i.P4Info())
    registers = list(info.registers)
    del info.registers[:]
    for register in registers:
        name = rename(register.preamble.name)
        if name is not None:
            register.preamble.name = register.preamble.alias = name
            info.registers.append(register)
    (folder / P4INFO).write_text(text_format.MessageToString(info))
    return Program(load_schema(folder))


def test_a_register_of_pairs_holds_two_values(tmp_path: Path) -> None:
    """As on Tofino: one lane of 64 values in 32 registers."""

    def pairs(name: str) -> str | None:
        found = SUMS.search(name)
        if found is None:
            return name
        return name.replace("value", "pair") if found[1] == "0" and int(found[2]) < 32 else None

    layout = program(tmp_path, pairs).layout
    assert (layout.lanes, layout.block_size, layout.slots) == (1, 64, 512)


@pytest.mark.parametrize("missing", [r"lane2\.value7\.sums", r"\.sums"])
def test_missing_registers_are_an_error(tmp_path: Path, missing: str) -> None:
    with pytest.raises(PipelineError, match="lacks the registers"):
        program(tmp_path, lambda name: None if re.search(missing, name) else name)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.folder)
def test_what_is_installed_is_as_described(build: Build) -> None:
    layout = Program(load_schema(mtu=build.mtu)).layout
    assert (layout.lanes, layout.block_size, layout.mtu) == (build.lanes, build.block_size, build.mtu)


def test_hosts_know_the_least_mtu_of_a_program() -> None:
    assert base.LEAST_MTU == LEAST_MTU


@pytest.mark.parametrize(("mtu", "folder"), [(1086, "."), (1500, "."), (8269, "."), (8270, "jumbo"), (9000, "jumbo")])
def test_links_get_the_largest_packets_that_they_carry(mtu: int, folder: str) -> None:
    assert build_for(mtu).folder == folder
