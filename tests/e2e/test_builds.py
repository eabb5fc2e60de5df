# SPDX-License-Identifier: Apache-2.0
"""Ranks learn lanes and block size from the controller, and it from the build that it installs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.p4src.build import compiler

from .conftest import Setting, over_udp
from .test_stack import SHAPES, finish

pytestmark = [pytest.mark.p4c, pytest.mark.slow]


@pytest.mark.parametrize("backend", ["python", "c"])
@pytest.mark.parametrize(("lanes", "block_size"), [(1, 64), (1, 32), (1, 256), (4, 64)])
def test_jobs_on_other_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int, block_size: int, backend: str
) -> None:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    compiler().compile_program(tmp_path, [f"-DLANES={lanes}", f"-DBLOCK_SIZE={block_size}", "-DSLOTS=32"])
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with over_udp("--pipeline", str(tmp_path)) as stack:
        finish(Setting(stack), SHAPES, "build", world_size=3, slots=32)
