# SPDX-License-Identifier: Apache-2.0
"""Random frames: the C code and the P4 program, as sim runs it, must answer the same, byte for byte.

By calls into both, so a hundred times as many as in tests/dataplane/test_fuzz.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p4reduce_targets import native, sim
from tests.support.dataplane.p4runtime import Program
from tests.support.dataplane.traffic import Setup, Traffic
from tests.support.scripts import P4SRC, compiler

from .direct import Direct


def compare(program: Program, seed: int, steps: int) -> None:
    left = Direct("sim", sim.load(program.config), program)
    right = Direct("native", native.load(program.config), program)
    setups = {switch.name: Setup(switch) for switch in (left, right)}
    for switch in (left, right):
        setups[switch.name].install(switch)
    traffic = Traffic(setups["sim"], seed, program.lanes, program.block_size, program.halves)
    for index in range(steps):
        step = next(traffic)
        wanted, found = step.apply(left).sorted(), step.apply(right).sorted()
        assert found == wanted, (
            f"seed {seed}, step {index}: {step.what}\nsim\n{wanted.describe()}\nnative\n{found.describe()}"
        )
    for one, other in zip(left.state(setups["sim"].halves), right.state(setups["native"].halves), strict=True):
        assert one == other


@pytest.mark.parametrize("seed", range(5))
def test_random_traffic(seed: int) -> None:
    compiled = P4SRC / "compiled"
    compare(Program(compiled / "p4info.txtpb", compiled / "p4reduce.json"), seed, 4000)


@pytest.mark.parametrize("simd", ["portable", "avx2", "avx512", "nothing that there is"])
def test_every_kind_of_addition(simd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_SIMD", simd)
    compiled = P4SRC / "compiled"
    compare(Program(compiled / "p4info.txtpb", compiled / "p4reduce.json"), 77, 1000)


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "block_size"), [(1, 32), (2, 128), (8, 32), (4, 256)])
def test_other_builds_of_the_program(lanes: int, block_size: int, tmp_path: Path) -> None:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    compiler().compile_program(tmp_path, [f"-DLANES={lanes}", f"-DBLOCK_SIZE={block_size}", "-DSLOTS=32"])
    compare(Program(tmp_path / "p4info.txtpb", tmp_path / "p4reduce.json"), lanes, 3000)
