# SPDX-License-Identifier: Apache-2.0
"""Builds of the P4 program; a skip says that p4c is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.made_once import made_once
from tests.support.scripts import Build, compiler


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that compiles the program with build parameters, once a session, and returns its folder.

    The folder has p4reduce.json and p4info.txtpb.
    """
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")

    def compile_with(parameters: dict[str, int]) -> Path:
        options = [f"-D{name}={value}" for name, value in parameters.items()]
        name = "-".join(["p4", *options])
        return made_once(tmp_path_factory, name, lambda to: compiler().compile_program(to, options))

    return compile_with
