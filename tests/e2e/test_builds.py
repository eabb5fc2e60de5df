# SPDX-License-Identifier: Apache-2.0
"""Ranks learn lanes and block size from the controller, and it from the build that it installs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cluster.calls import SHAPES, finish
from tests.support.cluster.stack import Setting, over_udp
from tests.support.made_once import made_once
from tests.support.scripts import compiler

pytestmark = [pytest.mark.p4c, pytest.mark.slow]


@pytest.fixture(
    scope="module", params=[(1, 64), (1, 32), (1, 256), (4, 64)], ids=lambda build: "lanes-{}-block-{}".format(*build)
)
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    lanes, block_size = request.param
    options = [f"-DLANES={lanes}", f"-DBLOCK_SIZE={block_size}", "-DSLOTS=32"]
    name = f"pipeline-{lanes}-{block_size}"
    return made_once(tmp_path_factory, name, lambda folder: compiler().compile_program(folder, options))


@pytest.mark.parametrize("backend", ["python", "c"])
def test_jobs_on_other_builds(pipeline: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with over_udp("--pipeline", str(pipeline)) as stack:
        finish(Setting(stack), SHAPES, "build", world_size=3, slots=32)
