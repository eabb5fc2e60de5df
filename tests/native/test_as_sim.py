# SPDX-License-Identifier: Apache-2.0
"""Random frames: the C code and the P4 program, as sim runs it, must answer the same, byte for byte.

By calls into both, so a hundred times as many as in tests/dataplane/test_fuzz.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p4reduce_targets import native, sim
from tests.support.dataplane import fuzz
from tests.support.dataplane.direct import Direct
from tests.support.dataplane.switch import SHIPPED
from tests.support.scripts import compiler


def compare(seed: int, steps: int, compiled: Path = SHIPPED) -> None:
    config = (compiled / "p4reduce.json").read_bytes()
    switches = (Direct(target.__name__, target.load(config), compiled) for target in (sim, native))
    report = fuzz.compare(*switches, steps, seed, print)
    assert report.difference is None, str(report)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_random_traffic(seed: int) -> None:
    compare(seed, 4000)


@pytest.mark.parametrize("simd", ["portable", "avx2", "avx512", "nothing that there is"])
def test_every_kind_of_addition(simd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_SIMD", simd)
    compare(77, 600)


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "block_size"), [(1, 32), (2, 128), (8, 32), (4, 256)])
def test_other_builds_of_the_program(lanes: int, block_size: int, tmp_path: Path) -> None:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    compiler().compile_program(tmp_path, [f"-DLANES={lanes}", f"-DBLOCK_SIZE={block_size}", "-DSLOTS=32"])
    compare(lanes, 3000, tmp_path)
