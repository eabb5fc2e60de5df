# SPDX-License-Identifier: Apache-2.0
"""The wheels, made as `make dist` makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.made_once import made_once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return the wheels, made with the build tools that are installed here."""

    def make(folder: Path) -> None:
        tools = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        command = ["make", "-C", str(ROOT), "dist", f"DIST={folder}", "-o", "setup"]
        command.append(f"BIN={Path(sys.executable).parent}")
        subprocess.run(command, check=True, timeout=280, env={**os.environ, **tools}, stdout=subprocess.DEVNULL)

    made = {path.name.split("-")[0]: path for path in made_once(tmp_path_factory, "dist", make).glob("*.whl")}
    assert sorted(made) == ["p4reduce", "p4reduce_bench"]
    return {"p4reduce": made["p4reduce"], "bench": made["p4reduce_bench"]}
